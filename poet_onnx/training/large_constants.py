"""Large constants of models, such as frozen weights: arrays that sessions borrow, one for training and evaluation.

ONNX Runtime holds a model's file while it copies constants from it, so that loading would take the largest one twice;
and each session would have a copy of its own. What `SessionOptions.add_initializer` is given is neither copied nor
read. So a session gets the model without these bytes: as external data, which are where they were, in the model's file
or beside it. External data that it is not given ONNX Runtime maps, each session for itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.description.names import SHARED_BYTES
from poet_onnx.files.contained import BelowFolder, chunks_of, external_data_of, location_below
from poet_onnx.files.element_types import NAMES
from poet_onnx.files.model_file import opened
from poet_onnx.files.onnx_messages import (
    EXTERNAL_DATA,
    GRAPH,
    INITIALIZER,
    KEY,
    RAW_DATA,
    VALUE,
    TensorHead,
    file_fields,
    head_fields,
    tensor_head,
)
from poet_onnx.files.protobuf import Bytes, Field, FileBytes, content, contents, fields, whole
from poet_onnx.files.tensor_file import flat
from poet_onnx.training.runner import aligned

Array = npt.NDArray[np.generic]


class _Constant(NamedTuple):
    """A constant of a model.

    Attributes:
        kind: element type, as TensorProto.DataType numbers them.
        dims: sizes.
        message: where it is in the model's file.
        elements: where its elements are: in the model's file, or in one beside it.
    """

    kind: int
    dims: tuple[int, ...]
    message: Field
    elements: Field | BelowFolder


class LargeConstants:
    """The large constants of a model's file, as arrays, and which of them another file has, byte for byte."""

    def __init__(self, first: str, second: str | None = None) -> None:
        """Read those of the first file, and compare those of the second with them.

        Raises:
            InputError: if a file cannot be read, or is no model.
        """
        self._arrays: dict[str, Array] = {}
        data = opened(first)
        mine = _large_constants(first, data)
        for name, constant in mine.items():
            self._arrays[name] = aligned(constant.dims, NAMES[constant.kind])
            _copy(data, constant.elements, self._arrays[name])
        self._of = {first: self._arrays}
        if second is not None:
            self._of[second] = self._found_in(second, mine)

    def _found_in(self, path: str, mine: Mapping[str, _Constant]) -> dict[str, Array]:
        data = opened(path)
        found = {}
        for name, its in _large_constants(path, data).items():
            own = mine.get(name)
            if own is not None and (own.kind, own.dims) == (its.kind, its.dims):
                array = self._arrays[name]
                if _has(data, its.elements, array):
                    found[name] = array
        return found

    def of(self, path: str) -> Mapping[str, Array]:
        """Return those that a session of a file takes from arrays, by name."""
        return self._of.get(path, {})

    def references(self, path: str) -> Mapping[int, bytes]:
        """Return messages that say where in a file those of its constants are, by where their own messages begin."""
        names, file = self.of(path), os.fsencode(Path(path).resolve().name)
        return {
            its.message.begin: head_fields(name, its.kind, its.dims)
            + file_fields(file, its.elements.content, _size(its.elements))
            for name, its in _large_constants(path, opened(path)).items()
            if name in names and isinstance(its.elements, Field)
        }


def _large_constants(path: str, data: FileBytes) -> Mapping[str, _Constant]:
    """Return the initializers that are worth an array of their own, by name."""
    found, folder = {}, Path(path).parent.resolve()
    for graph in fields(data, whole(data)):
        for field in fields(data, graph) if graph.number == GRAPH else ():
            if field.number != INITIALIZER:
                continue
            is_beside = field.end - field.content < SHARED_BYTES
            if is_beside and b"location" not in content(data, field):
                continue
            head = tensor_head(data, field)
            inside = head.parts.get(RAW_DATA, ())
            elements = _beside(data, head, folder) if is_beside else inside[0] if len(inside) == 1 else None
            if elements is None or _size(elements) < SHARED_BYTES or head.kind not in NAMES:
                continue
            if np.dtype(NAMES[head.kind]).itemsize * int(np.prod(head.dims, dtype=object)) == _size(elements):
                found[head.name] = _Constant(head.kind, head.dims, field, elements)
    return found


def _beside(data: Bytes, head: TensorHead, folder: Path) -> BelowFolder | None:
    """Return where the elements of a tensor are in another file; None where it does not say so in full."""
    entries = {
        key: value
        for field in head.parts.get(EXTERNAL_DATA, ())
        for key, value in zip(contents(data, field, KEY), contents(data, field, VALUE), strict=False)
    }
    first, size = entries.get(b"offset", b"0"), entries.get(b"length", b"")
    if b"location" not in entries or not (first.isdigit() and size.isdigit()):
        return None
    location = location_below(os.fsdecode(entries[b"location"]), external_data_of(head.name))
    return BelowFolder(head.name, folder, location, int(first), int(size))


def _size(elements: Field | BelowFolder) -> int:
    return elements.nbytes if isinstance(elements, BelowFolder) else elements.end - elements.content


def _chunks(data: FileBytes, elements: Field | BelowFolder) -> Iterator[bytes | memoryview]:
    if isinstance(elements, Field):
        yield from data.chunks(elements.content, elements.end)
        return
    with elements.opened() as descriptor:
        yield from chunks_of(descriptor, elements.first, elements.first + elements.nbytes)


def _copy(data: FileBytes, elements: Field | BelowFolder, array: Array) -> None:
    place, target = 0, flat(array)
    for chunk in _chunks(data, elements):
        target[place : place + len(chunk)] = chunk
        place += len(chunk)


def _has(data: FileBytes, elements: Field | BelowFolder, array: Array) -> bool:
    place, expected = 0, flat(array)
    for chunk in _chunks(data, elements):
        if chunk != expected[place : place + len(chunk)]:
            return False
        place += len(chunk)
    return True
