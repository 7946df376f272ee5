"""Checkpoints: one safetensors file, written whole or not at all.

Format: https://github.com/huggingface/safetensors, "Format". Parameters, parameters that are not trained and running
statistics stand in the file under their own names, so that other programs can read them; what training needs besides
has a prefix. Everything that is no tensor is JSON in the metadata.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from poet_onnx.atomic import write_file
from poet_onnx.errors import InputError

Array = npt.NDArray[np.generic]

METADATA_KEY = "poet_onnx"
"""Key of our JSON in the file's metadata."""

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
    header: dict[str, object] = {"__metadata__": {METADATA_KEY: json.dumps(progress, sort_keys=True)}}
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
            file.write(array.reshape(-1).view(np.uint8).data)

    target = Path(path)
    try:
        # What a killed writer left would fill the disk in time: two processes never write one checkpoint.
        for left in target.parent.glob(f".{glob.escape(target.name)}.*"):
            left.unlink(missing_ok=True)
        write_file(target, fill)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error


class Checkpoint:
    """An open checkpoint, or any other safetensors file."""

    def __init__(self, path: str | os.PathLike[str], file: Any) -> None:
        """Use `open_checkpoint`."""
        self._path, self._file = path, file
        self.names: tuple[str, ...] = tuple(file.keys())
        """Names of the tensors."""

    def progress(self) -> dict[str, Any]:
        """Return what `write_checkpoint` got as progress.

        Raises:
            InputError: if the file is no checkpoint of ours.
        """
        try:
            found = json.loads((self._file.metadata() or {})[METADATA_KEY])
        except (KeyError, json.JSONDecodeError) as error:
            raise InputError(f"{self._path} is no checkpoint of poet-onnx: it does not say how far it is.") from error
        if not isinstance(found, dict):
            raise InputError(f"{self._path} is no checkpoint of poet-onnx: it does not say how far it is.")
        return found

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
        return {name: file.read(name) for name in file.names if wanted(name)}
