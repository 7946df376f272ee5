"""ONNX's messages: numbers of their fields, and the heads of tensors, read and written without a parser of ONNX.

Numbers are those of onnx/onnx.proto in github.com/onnx/onnx.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from poet_onnx.files.protobuf import Bytes, Field, fields, last_number, number_field, numbers, text, text_field

GRAPH, OPSET, MODEL_METADATA, FUNCTION = 7, 8, 14, 25
"""Fields of ModelProto."""
NODE, INITIALIZER, INPUT, OUTPUT, VALUE_INFO = 1, 5, 11, 12, 13
"""Fields of GraphProto."""
DIMS, TYPE, NAME, RAW_DATA, EXTERNAL_DATA, LOCATION = 1, 2, 8, 9, 13, 14
"""Fields of TensorProto."""
KEY, VALUE = 1, 2
"""Fields of StringStringEntryProto."""

IN_A_FILE = 1
"""A value of TensorProto.DataLocation."""

MOST_LEVELS = 200
"""Graphs may be nested this deep."""


class TensorHead(NamedTuple):
    """What a tensor says of itself.

    Attributes:
        name: of it.
        kind: element type, as TensorProto.DataType numbers them.
        dims: sizes.
        parts: its fields by their numbers.
    """

    name: str
    kind: int
    dims: tuple[int, ...]
    parts: Mapping[int, Sequence[Field]]


def tensor_head(data: Bytes, tensor: Field) -> TensorHead:
    """Read what a tensor says of itself.

    Raises:
        InputError: if it is no message.
    """
    parts: dict[int, list[Field]] = {}
    for field in fields(data, tensor):
        parts.setdefault(field.number, []).append(field)
    name = text(data, parts[NAME][-1]) if NAME in parts else ""
    dims = tuple(size for field in parts.get(DIMS, ()) for size in numbers(data, field))
    return TensorHead(name, last_number(data, parts.get(TYPE, ())), dims, parts)


def head_fields(name: str, kind: int, dims: Sequence[int]) -> bytes:
    """Return the fields in which a tensor says its name, element type and sizes."""
    return b"".join(number_field(DIMS, size) for size in dims) + number_field(TYPE, kind) + text_field(NAME, name)


def file_fields(location: bytes, first: int, size_bytes: int) -> bytes:
    """Return the fields in which a tensor says where in a file its elements are."""
    said = (("location", location), ("offset", str(first).encode()), ("length", str(size_bytes).encode()))
    entries = (text_field(KEY, key) + text_field(VALUE, value) for key, value in said)
    return b"".join(text_field(EXTERNAL_DATA, entry) for entry in entries) + number_field(LOCATION, IN_A_FILE)


def tensor_type(kind: int, sizes: Sequence[int]) -> bytes:
    """Return the field in which a value says that it is an array of elements of a type, and of these sizes."""
    shape = b"".join(text_field(1, number_field(1, size)) for size in sizes)
    return text_field(2, text_field(1, number_field(1, kind) + text_field(2, shape)))
