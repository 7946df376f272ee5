"""Checkpoints: one safetensors file, written whole or not at all, each part with a hash of its bytes.

Format: https://github.com/huggingface/safetensors, "Format". Parameters, parameters that are not trained and running
statistics stand in the file under their own names, so that other programs can read them; what training needs besides
has a prefix. Everything that is no tensor is JSON in the metadata, and so are the tensors' hashes; this text has a hash
of its own beside it.

The hash is BLAKE2b (RFC 7693) of 128 bits: one that misses nothing, where a checksum of 32 bits misses one damage in
four thousand million, and in software faster than SHA-256, for which the processors of small boards have no
instructions.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from poet_onnx.atomic import cannot_write, write_file
from poet_onnx.errors import InputError

Array = npt.NDArray[np.generic]

METADATA_KEY = "poet_onnx"
"""Key of our JSON in the file's metadata."""
HASH_KEY = "poet_onnx.hash"
"""Key of that text's hash."""

_HASHES = "hashes"
_PROGRESS = "progress"

_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def write_checkpoint(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], progress: Mapping[str, object]
) -> None:
    """Write a checkpoint: after a failure or a crash there is the old file or the new one.

    The arrays are written from where they are: the `safetensors` package would copy them all first.

    Args:
        path: of the file.
        tensors: contiguous arrays by name.
        progress: what else is to be kept, as values that JSON knows.

    Raises:
        InputError: if it cannot be written.
    """
    hashes = {name: _hash(array) for name, array in tensors.items()}
    about = json.dumps({_PROGRESS: progress, _HASHES: hashes}, sort_keys=True, allow_nan=False, default=float)
    header: dict[str, object] = {"__metadata__": {METADATA_KEY: about, HASH_KEY: _hash(about.encode())}}
    end = 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes

    def fill(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in tensors.values():
            file.write(_bytes(array))

    try:
        write_file(Path(path), fill)
    except OSError as error:
        raise cannot_write(path, error) from error


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _hash(content: Array | bytes) -> str:
    data = content if isinstance(content, bytes) else _bytes(np.ascontiguousarray(content))
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Checkpoint:
    """An open checkpoint, or any other safetensors file."""

    def __init__(self, path: str | os.PathLike[str], file: Any) -> None:
        """Use `open_checkpoint`.

        Raises:
            InputError: if it is one of ours, and what it says about itself is damaged.
        """
        self._path, self._file = path, file
        self.names: tuple[str, ...] = tuple(file.keys())
        """Names of the tensors."""
        self._about: dict[str, Any] | None = None
        metadata = file.metadata() or {}
        if METADATA_KEY in metadata:
            self._about = self._read_about(metadata[METADATA_KEY], metadata.get(HASH_KEY))

    def _read_about(self, text: str, expected: str | None) -> dict[str, Any]:
        if expected is None:
            raise InputError(f"{self._path} is no checkpoint of this version: save it again with this one.")
        if _hash(text.encode()) != expected:
            raise self._damaged("what it says about itself")
        try:
            about = parse_json(text)
        except ValueError as error:
            raise InputError(f"{self._path} is no checkpoint of poet-onnx: {error}.") from error
        if not isinstance(about, dict) or not all(isinstance(about.get(key), dict) for key in (_PROGRESS, _HASHES)):
            raise InputError(f"{self._path} is no checkpoint of poet-onnx: it does not say how far it is.")
        return about

    def progress(self) -> dict[str, Any]:
        """Return what `write_checkpoint` got as progress.

        Raises:
            InputError: if the file is no checkpoint of ours.
        """
        if self._about is None:
            raise InputError(f"{self._path} is no checkpoint of poet-onnx: it does not say how far it is.")
        progress: dict[str, Any] = self._about[_PROGRESS]
        return progress

    def verified(self, name: str) -> Array:
        """Return a tensor that has the bytes that were written; of a file of another program nothing is known.

        Raises:
            InputError: if it has others, or is not there.
        """
        array = self.read(name)
        if self._about is not None and self._about[_HASHES].get(name) != _hash(array):
            raise self._damaged(f"tensor '{name}'")
        return array

    def _damaged(self, part: str) -> InputError:
        return InputError(
            f"{self._path} is damaged: {part} is not what was written; load an earlier checkpoint, and check the "
            "storage."
        )

    def read(self, name: str) -> Array:
        """Return a tensor; it is read now, not before.

        Raises:
            InputError: if there is none of that name.
        """
        if name not in self.names:
            raise InputError(f"{self._path} holds no tensor '{name}': it was made of another model or optimizer.")
        array: Array = self._file.get_tensor(name)
        return array

    def check(self, name: str, array: Array) -> None:
        """Check that a tensor can fill an array.

        Raises:
            InputError: if it is not there, or of another type or shape.
        """
        if name not in self.names:
            self.read(name)
        stored = self._file.get_slice(name)
        kind, shape = stored.get_dtype(), list(stored.get_shape())
        wanted = (_TYPES[array.dtype.name], list(array.shape))
        if (kind, shape) != wanted:
            raise InputError(
                f"Tensor '{name}' in {self._path} is {kind} {shape}, but must be {wanted[0]} {wanted[1]}: it was made "
                "of another model."
            )


@contextmanager
def open_checkpoint(path: str | os.PathLike[str]) -> Iterator[Checkpoint]:
    """Open a safetensors file for reading.

    Raises:
        InputError: if there is none, or it is damaged.
    """
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            yield Checkpoint(path, file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except SafetensorError as error:
        raise InputError(f"{path} is no whole safetensors file: {error}.") from error


def read_all(path: str | os.PathLike[str], wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Array]:
    """Return tensors of a safetensors file by name.

    Raises:
        InputError: if there is none, or it is damaged.
    """
    with open_checkpoint(path) as file:
        return {name: file.verified(name) for name in file.names if wanted(name)}


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
