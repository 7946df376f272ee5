"""What a session reads in a model file without a parser of ONNX: metadata, the size of constants, its data files.

And where the files are that go with it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from poet_onnx.errors import InputError
from poet_onnx.files.contained import location_below, open_below
from poet_onnx.files.element_types import BITS
from poet_onnx.files.onnx_messages import (
    EXTERNAL_DATA,
    GRAPH,
    INITIALIZER,
    KEY,
    MODEL_METADATA,
    MOST_LEVELS,
    NAME,
    VALUE,
    TensorHead,
    tensor_head,
)
from poet_onnx.files.protobuf import (
    MESSAGE,
    Bytes,
    Field,
    FileBytes,
    contents,
    fields,
    no_model,
    texts,
    whole,
)

_INNER: Mapping[str, Mapping[int, str]] = {
    "model": {GRAPH: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", INITIALIZER: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""Messages within messages, as far as tensors are in them: numbers of their fields."""


def files_beside(path: Path) -> tuple[Path, Path]:
    """Return where the parameters and the evaluation graph go beside a rewritten training graph."""
    stem = path.name.removesuffix(".onnx")
    return path.with_name(f"{stem}.safetensors"), path.with_name(f"{stem}.eval.onnx")


def opened(path: str | os.PathLike[str]) -> FileBytes:
    """Open a model file.

    Raises:
        InputError: if it cannot be read.
    """
    try:
        return FileBytes(path)
    except OSError as error:
        raise InputError(f"{os.fspath(path)} cannot be read: {error.strerror or error}.") from error


def read_metadata(path: str | os.PathLike[str]) -> Mapping[str, str]:
    """Return the metadata of a model file; none where there is no such file, or it is no model."""
    try:
        return metadata_of(opened(path))
    except InputError:
        return {}


def metadata_of(model: Bytes) -> Mapping[str, str]:
    """Return the metadata of a model.

    Raises:
        InputError: if it is no model.
    """
    found: dict[str, str] = {}
    for field in fields(model, whole(model)):
        if field.number == MODEL_METADATA:
            found |= zip(texts(model, field, KEY), texts(model, field, VALUE), strict=False)
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
    data = opened(path)
    if not _mentions(data, b"location"):  # as in most models, and much quicker to see
        return
    found = set(_external_data(data, whole(data), "model"))
    for name, location in sorted(found):
        subject = f"The external data of tensor '{name}'"
        with open_below(Path(path).parent.resolve(), location_below(location, subject), subject):
            pass


def data_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files in the folder of a model's file that have its weights; none if it is no model."""
    try:
        data = opened(path)
        if not _mentions(data, b"location"):
            return []
        found = {location for _, location in _external_data(data, whole(data), "model")}
        return [Path(path).parent / location_below(each, "The external data of a tensor") for each in sorted(found)]
    except InputError:
        return []


def _tensors(model: Bytes) -> Iterator[TensorHead]:
    for graph in fields(model, whole(model)):
        for initializer in fields(model, graph) if graph.number == GRAPH else ():
            if initializer.number == INITIALIZER:
                yield tensor_head(model, initializer)


def _external_data(model: Bytes, message: Field, kind: str, level: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor that is said to be in a file, and which file."""
    if level > MOST_LEVELS:
        raise no_model()
    for field in fields(model, message):
        if field.form != MESSAGE:
            continue
        if field.number in _INNER[kind]:
            yield from _external_data(model, field, _INNER[kind][field.number], level + 1)
        elif kind == "tensor" and field.number == EXTERNAL_DATA and "location" in texts(model, field, KEY):
            name = "".join(texts(model, message, NAME)[-1:])
            yield from ((name, os.fsdecode(location)) for location in contents(model, field, VALUE))


def _mentions(model: FileBytes, word: bytes) -> bool:
    """Return whether a word is anywhere in a file."""
    tail = b""
    for chunk in model.chunks(0, len(model)):
        part = tail + bytes(chunk)
        if word in part:
            return True
        tail = part[1 - len(word) :]
    return False
