"""Regular files: what else has a name, such as a pipe, would make a reader wait, or never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from poet_onnx.errors import InputError, shown

_IRREGULAR = "a device, pipe or socket"


def as_path(path: object, what: str = "path") -> Path:
    """Return a path that was given as text or as a path of any kind.

    Args:
        path: as given.
        what: it is, for errors.

    Raises:
        InputError: if it cannot be one.
    """
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise InputError(f"A {what} cannot be {shown(path)}: give a str or a pathlib.Path.")
    if not name:
        raise InputError(f"The {what} is empty: give the name of a file.")
    if "\0" in name:
        raise InputError(f"The {what} {shown(name)} has a zero byte in it, as no name of a file has: give another.")
    return Path(name)


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return a path without symbolic links; those in a circle stay, and whoever opens it hears of them."""
    return Path(os.path.realpath(path))  # Path.resolve raises RuntimeError before Python 3.13


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: if it cannot be read, or is no regular file.
    """
    try:
        _check(Path(path).stat())  # to open a device may have effects
    except ValueError as error:  # of a zero byte
        raise FileNotFoundError(errno.ENOENT, "no file has such a name") from error
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe that came meanwhile does not wait
    try:
        _check(os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return what is in a regular file.

    Raises:
        OSError: if it cannot be read, or is no regular file.
    """
    with open_regular(path) as file:
        return file.read()


def irregular_kind(path: Path) -> str:
    """Return what a path leads to that is no regular file, as "a folder"; "" where it is one, or nothing is there.

    Raises:
        OSError: if that cannot be told.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISDIR(mode):
        return "a folder"
    return "" if stat.S_ISREG(mode) else _IRREGULAR


def identity_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what tells a file from any other one, and from what it was before somebody wrote to it."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def unchanged(descriptor: int, path: Path, first_look: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the identity of an open file of weights, which is that of a first look, if there was one.

    Raises:
        InputError: if somebody has written to the file since then.
    """
    seen = identity_of(os.fstat(descriptor))
    if first_look not in (None, seen):
        raise InputError(
            f"{path} was changed while its weights were in use: load the model again, and write others to a file of "
            "their own."
        )
    return seen


def _check(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {_IRREGULAR}")
