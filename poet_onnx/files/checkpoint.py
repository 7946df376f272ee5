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

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from poet_onnx.description.names import METADATA
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.files.atomic import Written, cannot_write, write_file
from poet_onnx.files.hashes import hash_of, new_hash
from poet_onnx.files.tensor_file import TYPES, TensorFile, flat, parse_json
from poet_onnx.files.values import Kind, kind_of, pieces_of

Array = npt.NDArray[np.generic]

METADATA_KEY = "poet_onnx"
"""Key of our JSON in the file's metadata."""
HASH_KEY = "poet_onnx.hash"
"""Key of that text's hash."""

_HASHES = "hashes"
_PROGRESS = "progress"

_DTYPES = {kind: dtype for dtype, kind in TYPES.items()}


def write_checkpoint(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Array],
    progress: Mapping[str, object],
    *,
    replace: bool = True,
    written: Written | None = None,
) -> None:
    """Write a checkpoint: after a failure or a crash there is the old file or the new one.

    Each array is written from where it is, and one that is read when it is asked for is in memory only while it is
    written. The `safetensors` package needs all of them at once, and before version 0.8 it copies them. An array that
    is not contiguous is copied while it is written.

    Args:
        path: of the file.
        tensors: arrays by name, each of which is asked for twice.
        progress: what else is to be kept, as values that JSON knows.
        replace: whether a file of that name may be replaced.
        written: gets to know the file.

    Raises:
        InputError: if it cannot be written, or is there and must stay, or a tensor has a name that none can have.
    """
    if METADATA in tensors:
        raise InputError(f"{path} cannot hold a tensor of the name '{METADATA}', which the format needs: rename it.")
    hashes, kinds = dict[str, str](), dict[str, Kind]()
    for name in tensors:
        hashes[name], kinds[name] = hash_of(pieces_of(tensors, name)), kind_of(tensors, name)
    about = json.dumps({_PROGRESS: progress, _HASHES: hashes}, sort_keys=True, allow_nan=False, default=float)
    header: dict[str, object] = {METADATA: {METADATA_KEY: about, HASH_KEY: hash_of([about.encode()])}}
    end = 0
    for name, kind in kinds.items():
        start, end = end, end + math.prod(kind.shape) * np.dtype(kind.dtype).itemsize
        header[name] = {"dtype": TYPES[kind.dtype], "shape": list(kind.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes

    def fill(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in tensors:
            for piece in pieces_of(tensors, name):
                file.write(piece)

    try:
        write_file(Path(path), fill, replace=replace, written=written)
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def loading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of a file that was checked, and cannot be read again, that a part of it is loaded.

    Raises:
        CheckFailedError: in the place of an InputError.
    """
    try:
        yield
    except InputError as error:
        raise CheckFailedError(
            f"{path} changed while it was loaded, so that the session holds a part of it: load a checkpoint that "
            f"nobody writes to before the next step ({str(error).rstrip('.')})."
        ) from error


class Checkpoint:
    """A checkpoint, or any other safetensors file."""

    def __init__(self, file: TensorFile) -> None:
        """Read what it says about itself.

        Raises:
            InputError: if it is one of ours, and what it says about itself is damaged.
        """
        self._file, self._path = file, file.path
        self.names: tuple[str, ...] = tuple(file.places)
        """Names of the tensors."""
        self._about: dict[str, Any] | None = None
        if METADATA_KEY in file.metadata:
            self._about = self._read_about(file.metadata[METADATA_KEY], file.metadata.get(HASH_KEY))

    def _read_about(self, text: str, expected: str | None) -> dict[str, Any]:
        if expected is None:
            raise InputError(f"{self._path} is no checkpoint of this version: save it again with this one.")
        if hash_of([text.encode()]) != expected:
            raise self._damaged("what it says about itself")
        try:
            about = parse_json(text)
        except ValueError as error:
            raise InputError(f"{self._path} is no checkpoint of poet-onnx: {error}.") from error
        if not isinstance(about, dict) or not all(isinstance(about.get(key), dict) for key in (_PROGRESS, _HASHES)):
            raise InputError(f"{self._path} is no checkpoint of poet-onnx: it does not say how far it is.")
        if set(self.names) != set(about[_HASHES]):
            raise self._damaged("what it says of its tensors")
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

    def check(self, name: str, array: Array) -> None:
        """Check that a tensor can fill an array, and has the bytes that were written; nothing is kept of them.

        Raises:
            InputError: if it is not there, of another type or shape, or damaged.
        """
        self._file.check(name, array)
        self.check_bytes(name)

    def check_bytes(self, name: str) -> None:
        """Check that a tensor has the bytes that were written.

        Raises:
            InputError: if it has not, or cannot be read.
        """
        self._verify(name, self._file.chunks(name))

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Read tensors that were checked into contiguous arrays of their names, in which they are checked again.

        So memory never holds a tensor twice, and what is used is what was hashed, even if the file changes meanwhile.

        Raises:
            CheckFailedError: if the file changed since it was checked; the arrays hold a part of it then.
        """
        with loading(self._path):
            for name, array in arrays.items():
                self.read_into(name, array)

    def read_into(self, name: str, array: Array) -> None:
        """Read a tensor into an array, and hold what stands there against the hash of what was written.

        Args:
            name: of the tensor.
            array: contiguous, of the tensor's type and shape.

        Raises:
            InputError: if it does not fit, cannot be read, or is damaged; of a file of another program, which has no
                hashes, damage is not known.
        """
        self._file.read_into(name, array)
        self._verify(name, [flat(array)])

    def pieces(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes of a tensor in pieces, each of which is gone when the next one comes.

        Raises:
            InputError: if it is not there, cannot be read, or, after the last piece, is damaged.
        """
        digest = new_hash()
        for piece in self._file.chunks(name):
            digest.update(piece)
            yield piece
        if self._about is not None and self._about[_HASHES].get(name) != digest.hexdigest():
            raise self._damaged(f"tensor '{name}'")

    def kinds(self) -> dict[str, Kind]:
        """Return what the tensors are, by name."""
        return {
            name: Kind(_DTYPES.get(place.kind, place.kind), place.shape) for name, place in self._file.places.items()
        }

    def _verify(self, name: str, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._about is not None and self._about[_HASHES].get(name) != hash_of(pieces):
            raise self._damaged(f"tensor '{name}'")

    def _damaged(self, part: str) -> InputError:
        return InputError(
            f"{self._path} is damaged: {part} is not what was written; load an earlier checkpoint, and check the "
            "storage."
        )


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a safetensors file for reading; it is closed when nobody holds it any more.

    Raises:
        InputError: if there is none, or it is damaged.
    """
    return Checkpoint(TensorFile(path))
