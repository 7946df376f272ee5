"""Files of a model's own folder, and no others: regular ones, without a link on the way."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from poet_onnx.errors import InputError

_CHUNK_BYTES = 2**18
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WAY_OUT = "copy the model and its data into a folder of their own, with what links point to (cp -L)"


def location_below(location: str, subject: str) -> PurePosixPath:
    """Return where a model says that a file is, as a path below the model's folder.

    Args:
        location: as the model says it.
        subject: what to call the file in errors.

    Raises:
        InputError: if it is not below the folder.
    """
    path = PurePosixPath(location)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in location:
        raise InputError(
            f"{subject} is said to be in '{path}', but a model may only refer to files below its own folder: put the "
            "data file there, and export the model again."
        )
    return path


class InFile(Protocol):
    """A tensor whose elements are in a file."""

    @property
    def path(self) -> str | os.PathLike[str]:
        """Path of the file."""

    @property
    def first(self) -> int:
        """Offset of the first byte."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""

    def opened(self) -> AbstractContextManager[int]:
        """Open the file for reading."""


@dataclass(frozen=True)
class BelowFolder:
    """A tensor in a file below a folder.

    Attributes:
        name: of the tensor.
        folder: with all links resolved.
        location: of the file, relative to the folder, without "..".
        first: offset of the first byte.
        nbytes: of the tensor.
    """

    name: str
    folder: Path
    location: PurePosixPath
    first: int
    nbytes: int

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.folder / self.location

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the file for reading.

        Raises:
            InputError: if it may not be read, or ends before the tensor does.
        """
        with open_below(self.folder, self.location, external_data_of(self.name)) as descriptor:
            size_bytes, needed_bytes = os.fstat(descriptor).st_size, self.first + self.nbytes
            if size_bytes < needed_bytes:
                raise InputError(
                    f"{self.path} is truncated: it has {size_bytes} bytes, and tensor '{self.name}' needs "
                    f"{needed_bytes}."
                )
            yield descriptor


def chunks_of(descriptor: int, first: int, last: int) -> Iterator[bytes]:
    """Yield bytes of a data file from one offset to before another one; they are read, not mapped.

    Raises:
        InputError: if the file became shorter.
    """
    for position in range(first, last, _CHUNK_BYTES):
        size_bytes = min(_CHUNK_BYTES, last - position)
        chunk = os.pread(descriptor, size_bytes, position)
        if len(chunk) < size_bytes:
            raise InputError("A data file of the model became shorter while it was read: put it back, and try again.")
        yield chunk


def external_data_of(name: str | None) -> str:
    """Return what to call a tensor's data file in errors."""
    return f"The external data of tensor '{name}'"


@contextmanager
def open_below(folder: Path, location: PurePosixPath, subject: str) -> Iterator[int]:
    """Open a regular file below a folder, without following a link on the way from there.

    Args:
        folder: where to start.
        location: relative to the folder, without "..".
        subject: what to call the file in errors.

    Raises:
        InputError: if there is no such file, or it may not be read.
    """
    path = folder / location
    opened: list[int] = []
    try:
        try:
            opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            for part in location.parts[:-1]:
                _check_kind(os.stat(part, dir_fd=opened[-1], follow_symlinks=False), path, subject)
                opened.append(os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=opened[-1]))
            name = location.parts[-1]
            _check_file(os.stat(name, dir_fd=opened[-1], follow_symlinks=False), path, subject)
            # It may have become something else meanwhile: a pipe must not make this wait.
            opened.append(os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=opened[-1]))
            _check_file(os.fstat(opened[-1]), path, subject)
        except OSError as problem:
            raise InputError(
                f"{subject} cannot be read: {path}: {problem.strerror or problem}; put the data file beside the model."
            ) from problem
        yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _check_kind(status: os.stat_result, path: Path, subject: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise InputError(f"{subject} cannot be read: {path} is a symbolic link or behind one; {_WAY_OUT}.")


def _check_file(status: os.stat_result, path: Path, subject: str) -> None:
    _check_kind(status, path, subject)
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{subject} cannot be read: {path} is no regular file; put the data file beside the model.")
    if status.st_nlink > 1:
        raise InputError(
            f"{subject} cannot be read: {path} is a hard link, one of {status.st_nlink} names of a file that may "
            "belong elsewhere; copy the data file (cp), and put the copy in its place."
        )
