"""Files that a command writes: all of them or none, whole or not at all, never over an existing one by accident."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from poet_onnx.errors import InputError
from poet_onnx.files.atomic import check_writable_folder
from poet_onnx.files.regular import irregular_kind, resolved
from poet_onnx.files.sources import files_read

_MODELS = ("MODEL", "FORWARD")
"""Inputs that may have their weights in other files."""


def check_writable(paths: Iterable[tuple[str, Path]], *, inputs: dict[str, Path], force: bool) -> None:
    """Refuse paths that could not be written at the end, before any work is done.

    Args:
        paths: what will be written, each behind the option or argument that named it.
        inputs: what is read, by the same; never written over, with or without `force`.
        force: existing files may be replaced.

    Raises:
        InputError: a path is an input, is given twice, exists, is no regular file, or is in a folder that is not there
            or not writable.
    """
    seen = {resolved(path): option for option, path in inputs.items()}
    for option, path in inputs.items():
        for each in files_read(path) if option in _MODELS else ():
            seen.setdefault(each, f"the weights of {option}")
    for option, path in paths:
        other = seen.setdefault(resolved(path), option)
        if other != option:
            raise InputError(f"{option} and {other} are the same file, {path}; give another {option}.")
        kind = irregular_kind(path)
        if kind:
            raise InputError(f"{option} {path} is {kind}; name a file.")
        if path.exists() and not force:
            raise InputError(f"{option} {path} exists; give --force to replace it, or another name.")
        folder = path.parent
        if not folder.is_dir():
            raise InputError(f"{option} {path} cannot be written: there is no folder {folder}.")
        try:
            check_writable_folder(folder)
        except OSError as error:
            raise InputError(f"{option} {path} cannot be written: {error.strerror}.") from error
