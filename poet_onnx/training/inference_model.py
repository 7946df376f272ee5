"""Write a plain ONNX model for inference of a forward graph and trained values, tensor by tensor.

What does not change is copied from the forward model's file, and values are written from where they are: beside what
it reads, this takes the names of the graph and a block of a tensor. Nothing of ONNX is imported.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.adapters.lora import ADAPTERS_KEY, Adapters
from poet_onnx.errors import InputError, shown
from poet_onnx.files import data_files
from poet_onnx.files.atomic import Written, cannot_write, write_file
from poet_onnx.files.contained import BelowFolder
from poet_onnx.files.data_files import SMALL_BYTES, DataPiece, copy_data, write_beside
from poet_onnx.files.element_types import NUMBERS
from poet_onnx.files.onnx_messages import GRAPH, INITIALIZER, INPUT, NODE, OUTPUT, RAW_DATA, file_fields, head_fields
from poet_onnx.files.protobuf import (
    MESSAGE,
    Field,
    Piece,
    copied,
    fields,
    in_chunks,
    message_field,
    text,
    text_field,
    written,
)
from poet_onnx.files.regular import resolved
from poet_onnx.files.values import Kind, kind_of, pieces_of
from poet_onnx.training.adapter_merging import cut_off, is_in_graph, merge_adapters
from poet_onnx.training.forward_graph import NODE_VALUES, ForwardGraph, Node
from poet_onnx.training.free_batch import FreeBatch
from poet_onnx.training.unplanned import Changes, remove_plan

Array = npt.NDArray[np.generic]

_OWN_METADATA = "poet."


def write_inference_model(
    path: str | os.PathLike[str],
    forward: ForwardGraph,
    values: Mapping[str, Array],
    *,
    outputs: Sequence[str] | None,
    merged: Adapters | None,
    batch: FreeBatch | None = None,
) -> None:
    """Write a forward graph with trained values; after a failure or a crash there is the old file or the new one.

    Args:
        path: of the file.
        forward: computes what it does for inference; it has parameters as inputs or initializers.
        values: parameters and running statistics by name.
        outputs: names of what is to be computed; None for all that the graph returns.
        merged: adapters that become a part of the weights.
        batch: types of any number of samples; None for those of the graph.

    Raises:
        InputError: if an output is not there, nothing is trained that the model reads, or the file cannot be written.
    """
    names = list(forward.outputs) if outputs is None else check_outputs(outputs, forward)
    changes = remove_plan(forward)
    elements: dict[str, Piece] = {}
    gone = set[str]()
    if merged is not None:
        elements = merge_adapters(forward, merged, values)
        changes = cut_off(forward, merged, changes) if is_in_graph(forward, merged) else changes
        gone = {*elements, *merged.parameters}
    chosen = _choose(forward, [changes.names.get(name, name) for name in names], changes)
    known = _known(forward, values, gone)
    if not known and not elements:
        raise InputError("The model has none of the trained parameters: give the forward model that was trained.")
    tensors = map(partial(_as_seen, forward), _tensors(forward, chosen.read, values, known, elements))
    target = Path(path)
    try:
        with Written() as files:
            pieces = _model(forward, chosen, _placed(tensors, target, files), batch, adapters=merged is None)
            write_file(target, partial(_fill, pieces), written=files)
    except OSError as error:
        raise cannot_write(target, error) from error


def check_outputs(names: Sequence[str], forward: ForwardGraph | None = None) -> list[str]:
    """Check names of what is to be computed.

    Args:
        names: as given.
        forward: which must compute them; None where it is not known yet.

    Raises:
        InputError: if they are no list of names, or there is no node that makes one.
    """
    is_list = isinstance(names, Collection) and not isinstance(names, str) and len(names) > 0
    if not is_list or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InputError(f"The outputs to export are {shown(names)}: give a list of one name or more, each once.")
    made = set(names) if forward is None else {name for node in forward.nodes for name in node.outputs}
    for name in names:
        if name not in made:
            own = "" if forward is None else f": its own outputs are {', '.join(map(repr, forward.outputs))}"
            raise InputError(f"No node of the model makes an output '{name}'{own}.")
    return list(names)


@dataclass(frozen=True)
class _Chosen:
    """What is written of a graph.

    Attributes:
        nodes: in their order.
        outputs: names of what it returns.
        read: names of all that these nodes read, and of the outputs.
        renamed: names that change.
    """

    nodes: list[Node]
    outputs: list[str]
    read: set[str]
    renamed: Mapping[str, str]


def _choose(forward: ForwardGraph, outputs: list[str], changes: Changes) -> _Chosen:
    """Return what outputs depend on."""
    renamed = changes.names
    read, nodes = set(outputs), list[Node]()
    for node in reversed(forward.nodes):
        made = {renamed.get(name, name) for name in node.outputs}
        if node.begin not in changes.gone and not read.isdisjoint(made):
            nodes.append(node)
            read.update(renamed.get(name, name) for name in node.inputs)
    return _Chosen(nodes[::-1], outputs, read, renamed)


def _known(forward: ForwardGraph, values: Mapping[str, Array], gone: Collection[str]) -> dict[str, Kind]:
    """Return what the values are that a model has a place for, but those that are gone; their shapes are checked."""
    places = forward.inputs.keys() | forward.weights.keys()
    known = {name: kind_of(values, name) for name in values if name in places and name not in gone}
    for name, kind in known.items():
        weight = forward.weights.get(name)
        shape = forward.shape(forward.inputs[name]) if weight is None else weight.dims
        if shape is not None and shape != kind.shape:
            raise InputError(
                f"'{name}' has shape {list(shape)} in the forward model, but {list(kind.shape)} was trained: "
                "give the forward model that was trained."
            )
    return known


class _Tensor(NamedTuple):
    """An initializer that is written.

    Attributes:
        name, kind, dims: as of `Weight`.
        elements: its bytes, if they are known.
        message: where it is as it is to be written, if it is not changed.
        file: where its elements stay, or are to be copied from.
    """

    name: str
    kind: int
    dims: tuple[int, ...]
    elements: Piece | None
    message: Field | None
    file: BelowFolder | None

    @property
    def is_embedded(self) -> bool:
        return self.file is None

    @property
    def size_bytes(self) -> int:
        return self.elements.size_bytes if self.elements is not None else 0


def _tensors(
    forward: ForwardGraph,
    read: set[str],
    values: Mapping[str, Array],
    known: Mapping[str, Kind],
    merged: Mapping[str, Piece],
) -> Iterator[_Tensor]:
    """Yield the initializers that are read."""
    for name, kind in known.items():
        if name in read:
            yield _Tensor(name, NUMBERS[kind.dtype], kind.shape, _of_value(values, name, kind), None, None)
    for name, sums in merged.items():
        if name in read:
            dims = forward.weights[name].dims if name in forward.weights else kind_of(values, name).shape
            yield _Tensor(name, NUMBERS["float32"], dims, sums, None, None)
    for name, weight in forward.weights.items():
        if name in read and name not in known and name not in merged:
            elements = None if weight.elements is None else copied(forward.data, *weight.elements)
            yield _Tensor(name, weight.kind, weight.dims, elements, weight.message, weight.file)


def _as_seen(forward: ForwardGraph, tensor: _Tensor) -> _Tensor:
    """Return an initializer of the type and the sizes that its readers take it for."""
    if tensor.name not in forward.seen:
        return tensor
    kind, dims = forward.seen[tensor.name]
    return tensor._replace(kind=kind, dims=dims, message=None)


def _of_value(values: Mapping[str, Array], name: str, kind: Kind) -> Piece:
    """Return a value, which is read while it is written."""
    size_bytes = math.prod(kind.shape) * np.dtype(kind.dtype).itemsize
    return Piece(size_bytes, lambda: itertools.chain.from_iterable(map(in_chunks, pieces_of(values, name))))


def _placed(tensors: Iterable[_Tensor], target: Path, files: Written) -> list[_Tensor]:
    """Let all external data be in the target's folder, and move large tensors there if a file cannot hold them."""
    folder = resolved(target.parent)
    found = list(tensors)
    elsewhere: dict[Path, list[BelowFolder]] = {}
    places: dict[BelowFolder, BelowFolder] = {}
    for place in (tensor.file for tensor in found if tensor.file is not None):
        if place.path.is_relative_to(folder):
            places[place] = _moved(place, folder, place.path.relative_to(folder).as_posix(), place.first)
            with places[place].opened():
                pass
        else:
            elsewhere.setdefault(place.path, []).append(place)
    for others in elsewhere.values():
        name, starts = copy_data(others, target, files)
        places |= {place: _moved(place, folder, name, starts[place]) for place in others}
    found = [tensor if tensor.file is None else tensor._replace(file=places[tensor.file]) for tensor in found]
    if sum(tensor.size_bytes for tensor in found if tensor.is_embedded) <= data_files.LARGEST_FILE_BYTES:
        return found
    large = {tensor.name: tensor for tensor in found if tensor.is_embedded and tensor.size_bytes > SMALL_BYTES}
    starts_of = dict(zip(large, itertools.accumulate((t.size_bytes for t in large.values()), initial=0), strict=False))
    pieces = [
        DataPiece(starts_of[name], tensor.elements.chunks)
        for name, tensor in large.items()
        if tensor.elements is not None
    ]
    name = write_beside(target, "weights", pieces, 0o777, files)
    return [
        tensor._replace(
            message=None,
            file=BelowFolder(tensor.name, folder, PurePosixPath(name), starts_of[tensor.name], tensor.size_bytes),
        )
        if tensor.name in large
        else tensor
        for tensor in found
    ]


def _moved(place: BelowFolder, folder: Path, location: str, first: int) -> BelowFolder:
    return BelowFolder(place.name, folder, PurePosixPath(location), first, place.nbytes)


def _model(
    forward: ForwardGraph, chosen: _Chosen, tensors: list[_Tensor], batch: FreeBatch | None, *, adapters: bool
) -> list[Piece]:
    """Return the model."""
    data = forward.data
    domains = {"", "ai.onnx"}.union(*(node.domains for node in chosen.nodes))
    kept = [field for domain, field in forward.opsets if domain in domains or forward.has_functions]
    for key, field in forward.metadata:
        if not key.startswith(_OWN_METADATA) or (adapters and key == ADAPTERS_KEY):
            kept.append(field)
    return [
        *(copied(data, field.begin, field.end) for field in (*forward.others, *kept)),
        *message_field(GRAPH, _graph(forward, chosen, tensors, batch)),
    ]


def _graph(forward: ForwardGraph, chosen: _Chosen, tensors: list[_Tensor], batch: FreeBatch | None) -> list[Piece]:
    data = forward.data
    filled = {tensor.name for tensor in tensors}
    made = {chosen.renamed.get(name, name) for node in chosen.nodes for name in node.outputs} - set(chosen.outputs)
    inputs = {name: field for name, field in forward.inputs.items() if name in chosen.read and name not in filled}
    kept = list(forward.graph_others)
    if batch is None:  # else sizes within the graph are those of one batch
        kept += [*inputs.values(), *(field for name, field in forward.types.items() if name in made)]
    pieces = [*_nodes(forward, chosen), *_joined(forward, ((field.begin, field.end) for field in kept))]
    if batch is not None:
        for name, field in inputs.items():
            pieces += message_field(INPUT, batch.typed(name, field))
    for name in chosen.outputs:
        value = forward.outputs.get(name) or forward.types.get(name)
        if value is None:
            said = [written(text_field(1, name))]
        else:
            said = [copied(data, value.content, value.end)] if batch is None else batch.typed(name, value)
        pieces += message_field(OUTPUT, said)
    for tensor in tensors:
        pieces += _initializer(forward, tensor)
    return pieces


def _nodes(forward: ForwardGraph, chosen: _Chosen) -> Iterator[Piece]:
    """Yield the nodes, with other names where these change."""
    for changes, nodes in itertools.groupby(chosen.nodes, partial(_changes, chosen.renamed)):
        if not changes:
            yield from _joined(forward, ((node.begin, node.end) for node in nodes))
            continue
        for node in nodes:
            (message,) = fields(forward.data, Field(0, MESSAGE, node.begin, node.begin, node.end))
            inner = []
            for field in fields(forward.data, message):
                name = text(forward.data, field) if field.number in NODE_VALUES else ""
                new = chosen.renamed.get(name)
                inner.append(
                    copied(forward.data, field.begin, field.end)
                    if new is None
                    else written(text_field(field.number, new))
                )
            yield from message_field(NODE, inner)


def _changes(renamed: Mapping[str, str], node: Node) -> bool:
    return not renamed.keys().isdisjoint((*node.inputs, *node.outputs))


def _joined(forward: ForwardGraph, places: Iterable[tuple[int, int]]) -> Iterator[Piece]:
    """Yield what is copied, in as few pieces as can be."""
    first, last = 0, 0
    for begin, end in places:
        if begin != last:
            if last > first:
                yield copied(forward.data, first, last)
            first = begin
        last = end
    if last > first:
        yield copied(forward.data, first, last)


def _initializer(forward: ForwardGraph, tensor: _Tensor) -> list[Piece]:
    if tensor.message is not None:
        return [copied(forward.data, tensor.message.begin, tensor.message.end)]
    head = head_fields(tensor.name, tensor.kind, tensor.dims)
    if tensor.file is not None:
        location = os.fsencode(tensor.file.location.as_posix())
        head += file_fields(location, tensor.file.first, tensor.file.nbytes)
        return message_field(INITIALIZER, [written(head)])
    assert tensor.elements is not None
    return message_field(INITIALIZER, [written(head), *message_field(RAW_DATA, [tensor.elements])])


def _fill(pieces: Sequence[Piece], file: BinaryIO) -> None:
    for piece in pieces:
        file.writelines(piece.chunks())
