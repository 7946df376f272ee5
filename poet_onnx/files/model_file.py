"""What a session reads in a model file without a parser of ONNX: metadata, the size of constants, and its data files.

Numbers of fields are those of onnx/onnx.proto in github.com/onnx/onnx.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from poet_onnx.errors import InputError
from poet_onnx.files.contained import location_below, open_below
from poet_onnx.files.element_types import BITS
from poet_onnx.files.protobuf import (
    MESSAGE,
    Bytes,
    Field,
    FileBytes,
    contents,
    fields,
    no_model,
    numbers,
    texts,
    whole,
)

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


def read_metadata(path: str | os.PathLike[str]) -> Mapping[str, str]:
    """Return the metadata of a model file; none where there is no such file, or it is no model."""
    try:
        return metadata_of(FileBytes(path))
    except (OSError, InputError):
        return {}


def metadata_of(model: Bytes) -> Mapping[str, str]:
    """Return the metadata of a model.

    Raises:
        InputError: if it is no model.
    """
    found: dict[str, str] = {}
    for field in fields(model, whole(model)):
        if field.number == _METADATA:
            found |= zip(texts(model, field, _KEY), texts(model, field, _VALUE), strict=False)
    return found


def constant_bytes(model: Bytes) -> int:
    """Return the bytes of a model's initializers.

    Raises:
        InputError: if it is no model.
    """
    return sum(BITS.get(tensor.kind, 0) * math.prod(tensor.dims) // 8 for tensor in _tensors(model))


def check_external_data(path: str | os.PathLike[str]) -> None:
    """Check what files a model's file refers to, before a runtime opens them: regular ones in its own folder.

    Raises:
        InputError: if it refers to others, or it is no model, or it cannot be read.
    """
    try:
        data = FileBytes(path)
    except OSError as error:
        raise InputError(f"{os.fspath(path)} cannot be read: {error.strerror or error}.") from error
    if not _mentions(data, b"location"):  # as in most models, and much quicker to see
        return
    found = set(_external_data(data, whole(data), "model"))
    for name, location in sorted(found):
        subject = f"The external data of tensor '{name}'"
        with open_below(Path(path).parent.resolve(), location_below(location, subject), subject):
            pass


class _Tensor(NamedTuple):
    dims: tuple[int, ...]
    kind: int


def _tensors(model: Bytes) -> Iterator[_Tensor]:
    for graph in fields(model, whole(model)):
        for initializer in fields(model, graph) if graph.number == _GRAPH else ():
            if initializer.number == _INITIALIZER:
                found: dict[int, list[int]] = {_DIMS: [], _TYPE: [0]}
                for field in fields(model, initializer):
                    if field.number in found:
                        found[field.number] += numbers(model, field)
                yield _Tensor(tuple(found[_DIMS]), found[_TYPE][-1])


def _external_data(model: Bytes, message: Field, kind: str, level: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor that is said to be in a file, and which file."""
    if level > _MOST_LEVELS:
        raise no_model()
    for field in fields(model, message):
        if field.form != MESSAGE:
            continue
        if field.number in _INNER[kind]:
            yield from _external_data(model, field, _INNER[kind][field.number], level + 1)
        elif kind == "tensor" and field.number == _DATA and "location" in texts(model, field, _KEY):
            name = "".join(texts(model, message, _TENSOR_NAME)[-1:])
            yield from ((name, os.fsdecode(location)) for location in contents(model, field, _VALUE))


def _mentions(model: FileBytes, word: bytes) -> bool:
    """Return whether a word is anywhere in a file."""
    tail = b""
    for chunk in model.chunks(0, len(model)):
        part = tail + bytes(chunk)
        if word in part:
            return True
        tail = part[1 - len(word) :]
    return False
