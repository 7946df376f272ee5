"""Tensors in a safetensors file, read one at a time into arrays that are there already.

The `safetensors` package checks the file's header. It would map the whole file into memory and copy each tensor out of
there, so that what has been read counts twice.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from poet_onnx.description.names import METADATA
from poet_onnx.errors import InputError
from poet_onnx.files.held_file import HeldFile
from poet_onnx.files.regular import open_regular

Array = npt.NDArray[np.generic]

TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""What the format calls element types, by what numpy calls them."""

_LENGTH_BYTES = 8  # of the number before the header
_MOST_HEADER_BYTES = 100_000_000
"""The limit is MAX_HEADER_SIZE of safetensors/src/tensor.rs of github.com/huggingface/safetensors, v0.8."""


def is_tensor_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a safetensors file does: with the size of its header, which is JSON.

    Raises:
        OSError: if it cannot be read.
    """
    with open_regular(path) as file:
        start = file.read(_LENGTH_BYTES + 1)
    return start[_LENGTH_BYTES:] == b"{" and int.from_bytes(start[:_LENGTH_BYTES], "little") <= _MOST_HEADER_BYTES


class TensorInfo(NamedTuple):
    """What a file says of a tensor.

    Attributes:
        kind: element type, as the format calls it.
        shape: sizes.
        start, size_bytes: where in the file it is.
    """

    kind: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int


class TensorFile:
    """An open safetensors file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open it, and read what it says of its tensors.

        Raises:
            InputError: if there is none, or it is damaged.
        """
        self.path = path
        try:
            self.file = HeldFile(path)
            header = _read_header(self.file)
            self.metadata: Mapping[str, str] = _checked_metadata(header, os.fstat(self.file.descriptor).st_size)
            """Texts beside the tensors."""
            self.places: Mapping[str, TensorInfo] = _places(header)
            """The tensors by name."""
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
        except (SafetensorError, ValueError) as error:
            raise InputError(f"{path} is no whole safetensors file: {error}.") from error

    def place(self, name: str) -> TensorInfo:
        """Return where a tensor is.

        Raises:
            InputError: if there is none of that name.
        """
        if name not in self.places:
            raise InputError(f"{self.path} holds no tensor '{name}': it was made of another model or optimizer.")
        return self.places[name]

    def check(self, name: str, array: Array) -> None:
        """Check that a tensor can fill an array.

        Raises:
            InputError: if it is not there, or of another type or shape.
        """
        place = self.place(name)
        wanted = (TYPES[array.dtype.name], array.shape)
        if (place.kind, place.shape) != wanted:
            raise InputError(
                f"Tensor '{name}' in {self.path} is {place.kind} {list(place.shape)}, but must be {wanted[0]} "
                f"{list(wanted[1])}: it was made of another model."
            )

    def read_into(self, name: str, array: Array) -> None:
        """Read a tensor into an array.

        Args:
            name: of the tensor.
            array: contiguous, of the tensor's type and shape.

        Raises:
            InputError: if it does not fit, or cannot be read.
        """
        self.check(name, array)
        self.file.fill(flat(array), self.places[name].start)

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes of a tensor in pieces, each of which is gone when the next one comes.

        Raises:
            InputError: if it is not there, or cannot be read.
        """
        place = self.place(name)
        return self.file.chunks(place.start, place.size_bytes)


def _read_header(file: HeldFile) -> bytes:
    """Return the header of a safetensors file, with the number before it.

    Raises:
        ValueError: if it cannot be one.
        InputError: if it cannot be read.
    """
    size = os.fstat(file.descriptor).st_size
    length = bytearray(_LENGTH_BYTES)
    if size < len(length):
        raise ValueError(f"it has {size} bytes")
    file.fill(memoryview(length), 0)
    (text_bytes,) = struct.unpack("<Q", length)
    if text_bytes > min(size - len(length), _MOST_HEADER_BYTES):
        raise ValueError(f"its header is said to have {text_bytes} bytes")
    header = bytearray(len(length) + text_bytes)
    file.fill(memoryview(header), 0)
    if header[: len(length)] != length:
        raise ValueError("it changed while it was read")
    return bytes(header)


def _checked_metadata(header: bytes, size_bytes: int) -> dict[str, str]:
    """Return the texts in a header that was read, if the `safetensors` package takes it for a file of that size.

    The package opens files by name. It gets one with this header and without data: the file itself may change.

    Raises:
        OSError: if there is no memory for it.
        SafetensorError: if it does not take it.
    """
    with os.fdopen(os.memfd_create("header"), "wb") as file:
        file.write(header)
        file.truncate(size_bytes)
        with safe_open(f"/proc/self/fd/{file.fileno()}", framework="numpy") as checked:
            return checked.metadata() or {}


def _places(header: bytes) -> dict[str, TensorInfo]:
    """Return where the tensors of a file with a checked header are.

    Raises:
        ValueError: if readers of JSON may not agree on the header.
    """
    places = {}
    for name, about in parse_json(header[_LENGTH_BYTES:].decode()).items():
        if name != METADATA:
            start, end = about["data_offsets"]
            places[name] = TensorInfo(about["dtype"], tuple(about["shape"]), len(header) + start, end - start)
    return places


def flat(array: Array) -> memoryview:
    """Return the bytes of a contiguous array, where they are."""
    return array.reshape(-1).view(np.uint8).data


def parse_json(text: str) -> Any:
    """Return what a JSON text says, if every reader of JSON agrees on that.

    Raises:
        ValueError: if it is no JSON, too deep, or has a key twice or numbers that JSON does not have.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("its JSON has a key twice")
        return found

    def refuse(number: str) -> NoReturn:
        raise ValueError(f"its JSON has {number}, which is no number")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("its JSON is too deep") from error
