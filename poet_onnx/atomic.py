"""Files written whole or not at all: after a failure or a crash there is the old file or the new one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from poet_onnx.errors import InputError


def write_file(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Fill a temporary file in the same folder, push it to the disk, and only then give it its name.

    Raises:
        OSError: if it cannot be written.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text file.

    Raises:
        InputError: it cannot be written.
    """
    try:
        write_file(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
