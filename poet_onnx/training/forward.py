"""The forward model that is exported: as it lies in a file that `rewrite` wrote, else made like one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poet_onnx.description.forward import TURNED_BYTES, turned_inputs, unpack_forward
from poet_onnx.description.names import OUTPUTS_KEY
from poet_onnx.errors import InputError
from poet_onnx.files.element_types import NAMES
from poet_onnx.files.model_file import metadata_of, opened, read_metadata
from poet_onnx.files.protobuf import Bytes
from poet_onnx.files.tensor_file import flat, parse_json
from poet_onnx.files.values import Kind, Values, joined
from poet_onnx.training.forward_graph import ForwardGraph, Weight
from poet_onnx.training.unquantized import read_whole
from poet_onnx.training.unstored import take_from_store

if TYPE_CHECKING:
    from poet_onnx.training.batch import Array
    from poet_onnx.training.prepare import AnyModel


_CHUNK_BYTES = 2**18


def open_forward(
    given: AnyModel, values: Mapping[str, Array], *, outputs: Sequence[str] | None, cut_loss: bool
) -> tuple[ForwardGraph, Sequence[str] | None, Mapping[str, Array]]:
    """Return a forward model, the names of what is to be computed, None for all that it returns, and its values.

    Args:
        given: an evaluation graph, or the model that was trained.
        values: parameters and running statistics, by name.
        outputs: names of what is to be computed; default the model's own outputs.
        cut_loss: whether a loss stands behind the model's outputs.

    Returns:
        All of it; the values are those that were given, and constants that the model takes from the file it is in.

    Raises:
        InputError: if it cannot be used, or does not tell its outputs.
    """
    data, folder = _read(given, values, outputs=outputs, cut_loss=cut_loss)
    if outputs is None and cut_loss:
        outputs = _names(metadata_of(data)[OUTPUTS_KEY])
    around = _stored(given) if isinstance(data, bytes) else None
    forward = ForwardGraph(data, folder)
    if around is not None:
        values = joined(_constants_of(*around, forward.inputs, turned_inputs(metadata_of(data))), values)
    read_whole(forward)
    take_from_store(forward)
    return forward, outputs, values


def stored_constants(given: AnyModel | None) -> Mapping[str, Array] | None:
    """Return the initializers in an evaluation graph's file, read when they are asked for; None if it is another one.

    Raises:
        InputError: if it cannot be used.
    """
    found = _stored(given)
    if found is None:
        return None
    packed = _packed(found[0])
    if packed is None:
        return _constants_of(*found)
    return joined(_constants_of(packed, found[1]), _constants_of(*found, turned=turned_inputs(metadata_of(packed))))


def _constants_of(
    data: Bytes, folder: Path, names: Collection[str] | None = None, turned: Mapping[str, str] | None = None
) -> Values:
    """Return initializers of a model.

    Args:
        data: the model.
        folder: that it is in.
        names: of those that are wanted; default all.
        turned: names of matrices besides, with those of the initializers of which they are the transposes.
    """
    forward, others = ForwardGraph(data, folder, only_weights=True), turned or {}
    kinds = {
        name: Kind(NAMES[weight.kind], weight.dims)
        for name, weight in forward.weights.items()
        if weight.kind in NAMES and (weight.elements is not None or weight.file is not None)
    }
    matrices = {name: other for name, other in others.items() if other in kinds and len(kinds[other].shape) == 2}
    kinds |= {name: Kind(kinds[other].dtype, kinds[other].shape[::-1]) for name, other in matrices.items()}
    kinds = {name: kind for name, kind in kinds.items() if names is None or name in names}

    def pieces(name: str) -> Iterator[memoryview]:
        if name in matrices:
            yield from _turned_pieces(forward, forward.weights[matrices[name]], kinds[name])
            return
        weight = forward.weights[name]
        for place in range(0, weight.size_bytes, _CHUNK_BYTES):
            yield memoryview(forward.read(weight, place, min(_CHUNK_BYTES, weight.size_bytes - place)) or b"")

    def read_into(name: str, array: Array) -> None:
        room, place = flat(array), 0
        for piece in pieces(name):
            room[place : place + len(piece)] = piece
            place += len(piece)

    return Values("the evaluation graph", kinds, read_into, pieces)


def _turned_pieces(forward: ForwardGraph, weight: Weight, kind: Kind) -> Iterator[memoryview]:
    """Yield the bytes of a matrix's transpose, some of its rows at a time."""
    (rows, columns), item = kind.shape, np.dtype(kind.dtype).itemsize
    step = max(1, TURNED_BYTES // max(1, columns * item))
    for first in range(0, rows, step):
        count = min(step, rows - first)
        part = np.empty((columns, count), kind.dtype)
        forward.fill_parts(weight, range(first * item, columns * rows * item, rows * item), flat(part))
        yield flat(np.ascontiguousarray(part.T))


def _read(
    given: AnyModel, own: Collection[str], *, outputs: Sequence[str] | None, cut_loss: bool
) -> tuple[Bytes, Path]:
    stored = _stored(given)
    if stored is not None:
        packed = _packed(stored[0])
        return stored if packed is None else (packed, stored[1])
    from poet_onnx.gradients.inference import forward_model
    from poet_onnx.graph.loading import as_model

    return forward_model(as_model(given), own, outputs=outputs, cut_loss=cut_loss)


def _stored(given: AnyModel | None) -> tuple[Bytes, Path] | None:
    """Return the file of an evaluation graph that `rewrite` wrote, and its folder."""
    if not isinstance(given, (str, os.PathLike)) or OUTPUTS_KEY not in read_metadata(given):
        return None
    return opened(given), Path(given).parent


def _packed(file: Bytes) -> bytes | None:
    """Return the forward model within the file of an evaluation graph; None where that is exported itself."""
    return unpack_forward(metadata_of(file))


def _names(text: str) -> list[str]:
    try:
        names = parse_json(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"The evaluation graph's metadata {OUTPUTS_KEY} cannot be read: name what to export in outputs=[...]."
        )
    return names
