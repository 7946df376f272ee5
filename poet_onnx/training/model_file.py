"""What a session reads in a model file without a parser of ONNX: metadata, the size of constants, and its data files.

A model is a protobuf message: fields one after the other, each a key (number of the field times 8, plus how it is
written) and its content; a message within it is its length in bytes and then its fields (https://protobuf.dev,
"Encoding"). Numbers of fields are those of onnx/onnx.proto in github.com/onnx/onnx.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from poet_onnx.errors import InputError
from poet_onnx.files.contained import location_below, open_below
from poet_onnx.files.regular import open_regular

Bytes = bytes | mmap.mmap

_VARINT, _EIGHT_BYTES, _MESSAGE, _FOUR_BYTES = 0, 1, 2, 5
_FIXED_BYTES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_MOST_VARINT_BYTES = 10

_GRAPH, _METADATA = 7, 14  # of ModelProto
_KEY, _VALUE = 1, 2  # of StringStringEntryProto
_INITIALIZER = 5  # of GraphProto
_DIMS, _TYPE, _TENSOR_NAME, _DATA = 1, 2, 8, 13  # of TensorProto
_INNER: Mapping[str, Mapping[int, str]] = {
    "model": {_GRAPH: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", _INITIALIZER: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""Messages within messages, as far as tensors are in them: numbers of their fields."""
_MOST_LEVELS = 200

_ELEMENT_BYTES = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20), 1),
    **dict.fromkeys((4, 5, 10, 16), 2),
    **dict.fromkeys((1, 6, 12), 4),
    **dict.fromkeys((7, 11, 13, 14), 8),
    15: 16,
}
"""Bytes of an element, by TensorProto.DataType; smaller ones and strings count as nothing."""


class _Field(NamedTuple):
    """A field of a message: its number and form, where it begins, and where its content begins and ends."""

    number: int
    form: int
    begin: int
    content: int
    end: int


def read_metadata(path: str | os.PathLike[str]) -> Mapping[str, str]:
    """Return the metadata of a model file; none where there is no such file, or it is no model."""
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return dict(_metadata(data))
    except (OSError, ValueError, InputError):
        return {}


def constant_bytes(model: Bytes) -> int:
    """Return the bytes of a model's initializers.

    Raises:
        InputError: if it is no model.
    """
    return sum(_ELEMENT_BYTES.get(tensor.kind, 0) * math.prod(tensor.dims) for tensor in _tensors(model))


def check_external_data(path: str | os.PathLike[str]) -> None:
    """Check what files a model's file refers to, before a runtime opens them: regular ones in its own folder.

    Raises:
        InputError: if it refers to others, or it is no model, or it cannot be read.
    """
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(b"location") < 0:  # as in most models, and much quicker to see
                return
            found = set(_external_data(data, _whole(data), "model"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else ""
        raise InputError(f"{os.fspath(path)} cannot be read: {reason or error}.") from error
    for name, location in sorted(found):
        subject = f"The external data of tensor '{name}'"
        with open_below(Path(path).parent.resolve(), location_below(location, subject), subject):
            pass


class _Tensor(NamedTuple):
    dims: tuple[int, ...]
    kind: int


def _tensors(model: Bytes) -> Iterator[_Tensor]:
    for graph in _fields(model, _whole(model)):
        for initializer in _fields(model, graph) if graph.number == _GRAPH else ():
            if initializer.number == _INITIALIZER:
                numbers: dict[int, list[int]] = {_DIMS: [], _TYPE: [0]}
                for field in _fields(model, initializer):
                    if field.number in numbers:
                        numbers[field.number] += _numbers(model, field)
                yield _Tensor(tuple(numbers[_DIMS]), numbers[_TYPE][-1])


def _external_data(model: Bytes, message: _Field, kind: str, level: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor that is said to be in a file, and which file."""
    if level > _MOST_LEVELS:
        raise _no_model()
    for field in _fields(model, message):
        if field.form != _MESSAGE:
            continue
        if field.number in _INNER[kind]:
            yield from _external_data(model, field, _INNER[kind][field.number], level + 1)
        elif kind == "tensor" and field.number == _DATA and "location" in _texts(model, field, _KEY):
            name = "".join(_texts(model, message, _TENSOR_NAME)[-1:])
            yield from ((name, os.fsdecode(location)) for location in _contents(model, field, _VALUE))


def _metadata(model: Bytes) -> Iterator[tuple[str, str]]:
    for field in _fields(model, _whole(model)):
        if field.number == _METADATA:
            yield from zip(_texts(model, field, _KEY), _texts(model, field, _VALUE), strict=False)


def _whole(model: Bytes) -> _Field:
    return _Field(0, _MESSAGE, 0, 0, len(model))


def _fields(model: Bytes, message: _Field) -> Iterator[_Field]:
    """Yield the fields of a message."""
    place = message.content
    while place < message.end:
        begin = place
        key, place = _varint(model, place, message.end)
        key %= 2**32  # parsers of protobuf drop what is beyond
        form, content = key & 7, place
        if form == _VARINT:
            _, place = _varint(model, place, message.end)
        elif form == _MESSAGE:
            size, content = _varint(model, place, message.end)
            place = content + size
        elif form in _FIXED_BYTES:
            place += _FIXED_BYTES[form]
        else:
            raise _no_model()
        if place > message.end:
            raise _no_model()
        yield _Field(key >> 3, form, begin, content, place)


def _texts(model: Bytes, message: _Field, number: int) -> list[str]:
    """Return the fields of a number in a message, as text."""
    return [text.decode("utf-8", errors="replace") for text in _contents(model, message, number)]


def _contents(model: Bytes, message: _Field, number: int) -> list[bytes]:
    return [bytes(model[field.content : field.end]) for field in _fields(model, message) if field.number == number]


def _numbers(model: Bytes, field: _Field) -> list[int]:
    """Return a number, or several that are packed into one field."""
    found, place = [], field.content
    while place < field.end:
        number, place = _varint(model, place, field.end)
        found.append(number)
    return found


def _varint(model: Bytes, place: int, end: int) -> tuple[int, int]:
    """Return a number written seven bits a byte, lowest first, and where it ends."""
    number = 0
    for index in range(min(_MOST_VARINT_BYTES, end - place)):
        byte = model[place + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, place + index + 1
    raise _no_model()


def _no_model() -> InputError:
    return InputError("The model is damaged: it is no protobuf message; write it again.")
