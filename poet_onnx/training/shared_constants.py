"""Large constants that two models have, such as frozen weights: one array serves the sessions of both.

ONNX Runtime shares what `SessionOptions.add_initializer` is given, but it reads the model's own copy first. So a
session gets the model without these bytes: as external data, which are where they were, in the model's file. They are
not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.description.metadata import SHARED_BYTES
from poet_onnx.files.element_types import NAMES
from poet_onnx.files.model_file import opened
from poet_onnx.files.onnx_messages import GRAPH, INITIALIZER, RAW_DATA, file_fields, head_fields, tensor_head
from poet_onnx.files.protobuf import Field, FileBytes, Piece, copied, fields, message_field, whole, written
from poet_onnx.files.tensor_file import flat
from poet_onnx.training.runner import aligned

Array = npt.NDArray[np.generic]


class _Constant(NamedTuple):
    """A constant in a file.

    Attributes:
        kind: element type, as TensorProto.DataType numbers them.
        dims: sizes.
        message: where it is.
        elements: where its elements are.
    """

    kind: int
    dims: tuple[int, ...]
    message: Field
    elements: Field


class SharedConstants:
    """The constants that two model files have in common, byte for byte."""

    def __init__(self, first: str, second: str) -> None:
        """Read those of the first file into arrays, and compare those of the second with them.

        Raises:
            InputError: if a file cannot be read, or is no model.
        """
        self.arrays: dict[str, Array] = {}
        """The shared constants by name."""
        data, other = opened(first), opened(second)
        others = _large_constants(other)
        mine = _large_constants(data) if others else {}
        for name in mine.keys() & others.keys():
            own, its = mine[name], others[name]
            if (own.kind, own.dims) == (its.kind, its.dims):
                array = aligned(own.dims, NAMES[own.kind])
                _copy(data, own.elements, array)
                if _has(other, its.elements, array):
                    self.arrays[name] = array

    def model_without(self, path: str) -> bytes:
        """Return a model in which these constants are external data."""
        data = opened(path)
        file = Path(path).resolve().name
        pieces: list[Piece] = []
        for field in fields(data, whole(data)):
            if field.number == GRAPH:
                pieces += message_field(GRAPH, list(self._graph(data, field, file)))
            else:
                pieces.append(copied(data, field.begin, field.end))
        return b"".join(chunk for piece in pieces for chunk in map(bytes, piece.chunks()))

    def _graph(self, data: FileBytes, graph: Field, file: str) -> Iterator[Piece]:
        shared = {found.message.begin: (name, found) for name, found in _large_constants(data).items()}
        begin = end = graph.content
        for field in fields(data, graph):
            name, found = shared.get(field.begin, ("", None))
            if found is not None and name in self.arrays:
                yield copied(data, begin, end)
                place = file_fields(os.fsencode(file), found.elements.content, _size(found.elements))
                yield from message_field(INITIALIZER, [written(head_fields(name, found.kind, found.dims) + place)])
                begin = field.end
            end = field.end
        yield copied(data, begin, end)


def _large_constants(data: FileBytes) -> Mapping[str, _Constant]:
    """Return the initializers that are worth sharing, by name."""
    found = {}
    for graph in fields(data, whole(data)):
        for field in fields(data, graph) if graph.number == GRAPH else ():
            if field.number != INITIALIZER or field.end - field.content < SHARED_BYTES:
                continue
            name, kind, dims, parts = tensor_head(data, field)
            elements = parts.get(RAW_DATA, ())
            if len(elements) != 1 or _size(elements[0]) < SHARED_BYTES or kind not in NAMES:
                continue
            if np.dtype(NAMES[kind]).itemsize * int(np.prod(dims, dtype=object)) == _size(elements[0]):
                found[name] = _Constant(kind, dims, field, elements[0])
    return found


def _size(field: Field) -> int:
    return field.end - field.content


def _copy(data: FileBytes, elements: Field, array: Array) -> None:
    place, target = 0, flat(array)
    for chunk in data.chunks(elements.content, elements.end):
        target[place : place + len(chunk)] = chunk
        place += len(chunk)


def _has(data: FileBytes, elements: Field, array: Array) -> bool:
    place, expected = 0, flat(array)
    for chunk in data.chunks(elements.content, elements.end):
        if chunk != expected[place : place + len(chunk)]:
            return False
        place += len(chunk)
    return True
