"""Folders that are made where they are not there."""

from __future__ import annotations

from pathlib import Path

from poet_onnx.errors import InputError


def make_folder(folder: Path, what: str = "folder") -> None:
    """Make a folder, and those above it, where they are not there.

    Args:
        folder: to make.
        what: it is, for the error.

    Raises:
        InputError: if it cannot be made, or a file has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "a file has that name" if isinstance(error, FileExistsError) else error.strerror or error
        raise InputError(f"The {what} {folder} cannot be made: {why}.") from error
