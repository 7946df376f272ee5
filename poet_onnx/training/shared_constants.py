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
from poet_onnx.errors import InputError
from poet_onnx.files.element_types import NAMES
from poet_onnx.files.protobuf import (
    Field,
    FileBytes,
    Piece,
    copied,
    fields,
    last_number,
    message_field,
    number_field,
    numbers,
    text,
    text_field,
    whole,
    written,
)
from poet_onnx.files.tensor_file import flat
from poet_onnx.training import forward_graph as onnx
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
        """By name."""
        data, other = _opened(first), _opened(second)
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
        data = _opened(path)
        file = Path(path).resolve().name
        pieces: list[Piece] = []
        for field in fields(data, whole(data)):
            if field.number == onnx.GRAPH:
                pieces += message_field(onnx.GRAPH, list(self._graph(data, field, file)))
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
                yield from message_field(onnx.INITIALIZER, [written(_placeholder(name, found, file))])
                begin = field.end
            end = field.end
        yield copied(data, begin, end)


def _opened(path: str) -> FileBytes:
    try:
        return FileBytes(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error


def _large_constants(data: FileBytes) -> Mapping[str, _Constant]:
    """Return the initializers that are worth sharing, by name."""
    found = {}
    for graph in fields(data, whole(data)):
        for field in fields(data, graph) if graph.number == onnx.GRAPH else ():
            if field.number != onnx.INITIALIZER or field.end - field.content < SHARED_BYTES:
                continue
            parts: dict[int, list[Field]] = {}
            for part in fields(data, field):
                parts.setdefault(part.number, []).append(part)
            kind = last_number(data, parts.get(onnx.TYPE, ()))
            elements = parts.get(onnx.RAW_DATA, [])
            if len(elements) == 1 and elements[0].end - elements[0].content >= SHARED_BYTES and kind in NAMES:
                dims = tuple(size for part in parts.get(onnx.DIMS, ()) for size in numbers(data, part))
                name = text(data, parts[onnx.NAME][-1]) if onnx.NAME in parts else ""
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


def _placeholder(name: str, found: _Constant, file: str) -> bytes:
    message = b"".join(number_field(onnx.DIMS, size) for size in found.dims)
    message += number_field(onnx.TYPE, found.kind) + text_field(onnx.NAME, name)
    place = {"location": os.fsencode(file), "offset": found.elements.content, "length": _size(found.elements)}
    for key, value in place.items():
        said = value if isinstance(value, bytes) else str(value)
        message += text_field(onnx.EXTERNAL_DATA, text_field(onnx.KEY, key) + text_field(onnx.VALUE, said))
    return message + number_field(onnx.LOCATION, 1)
