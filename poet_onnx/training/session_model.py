"""A model as a session loads it: the same nodes, without what only people and planners read.

What is left out, and what a session's short names mean, is said in ops/session_model/session_model.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from poet_onnx.errors import InputError
from poet_onnx.files.regular import open_regular
from poet_onnx.runtime.library import operator_library

_SHORT = re.compile(r"[#%][0-9]+")
_MOST_BYTES = 4096


def write_session_model(
    path: str,
    references: Mapping[int, bytes],
    *,
    readable: bool = False,
    with_files: bool = True,
    named: bool = False,
) -> IO[bytes] | None:
    """Write a model as a session loads it to a file that has no name, and is gone when it is closed.

    Args:
        path: of the model.
        references: messages that stand in the place of constants, by where the messages of these begin.
        readable: whether nodes and values keep their names, for who looks at what the runtime says of them.
        with_files: whether constants may lie in files by names that are relative to the model's: the runtime is told
            the model's folder.
        named: whether the file gets a name beside the model; `loaded_from` takes it away.

    Returns:
        The open file; None where they do and may not, or where it cannot have a name.

    Raises:
        InputError: if the model cannot be read, or is none, or there is no room for the other file.
    """
    folder, why = Path(path).resolve().parent, ctypes.create_string_buffer(_MOST_BYTES)
    count = len(references)
    begins = (ctypes.c_uint64 * count)(*references)
    messages = (ctypes.c_char_p * count)(*references.values())
    sizes = (ctypes.c_uint64 * count)(*map(len, references.values()))
    try:
        with open_regular(path) as model:
            file = _named(folder) if named else _unnamed(folder)
            if file is None:
                return None
            done = operator_library().poet_write_session_model(
                *(model.fileno(), file.fileno(), count, begins, messages, sizes, readable, with_files, why, _MOST_BYTES)
            )
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    if done == 0:
        return file
    file.close()
    if done < 0:
        raise InputError(
            f"{path} cannot be loaded: {why.value.decode(errors='replace')}; there must be a few MB of room in "
            f"{folder}, or where temporary files go."
        )
    return None


@contextlib.contextmanager
def loaded_from(file: IO[bytes]) -> Iterator[str]:
    """Yield a path at which a runtime can load an open file of `write_session_model`, and let go of the file."""
    path = None if isinstance(file.name, int) else Path(file.name)
    with file:
        try:
            yield str(path or f"/proc/self/fd/{file.fileno()}")
        finally:
            if path is not None:
                path.unlink(missing_ok=True)


def _named(folder: Path) -> IO[bytes] | None:
    """Return a new file beside the model; None where none can be made."""
    try:
        return Path(folder, f".session-{os.getpid()}-{time.monotonic_ns()}.onnx").open("x+b")
    except OSError:
        return None


def _unnamed(folder: Path) -> IO[bytes]:
    """Return a file without a name: on the model's storage, else among temporary files.

    Raises:
        InputError: if none can be made in either place.
    """
    with contextlib.suppress(OSError):
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), "w+b")
    import tempfile  # what it imports takes RAM of a process that trains

    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise InputError(f"No file can be made in {folder}, nor where temporary files go: {error.strerror}.") from error


class LongNames:
    """Puts the names that a model's file has into what a runtime says of its session."""

    def __init__(self, path: str) -> None:
        """Keep where the file is; a session's names are not kept."""
        self._path = path
        self._written_at = Path(path).stat().st_mtime_ns

    def __call__(self, message: str) -> str:
        """Return a message with them, or as it is where the file was replaced."""
        try:
            if Path(self._path).stat().st_mtime_ns != self._written_at:
                return message
            with open_regular(self._path) as model:
                return _SHORT.sub(lambda match: _long_name(model.fileno(), match[0]), message)
        except OSError:  # the file is gone
            return message


def _long_name(descriptor: int, short: str) -> str:
    name = ctypes.create_string_buffer(_MOST_BYTES)
    found = operator_library().poet_long_name(descriptor, short.encode(), name, _MOST_BYTES)
    return name.value.decode(errors="replace") if found == 0 else short
