"""The files that a model is read from, which nothing that is made of it may replace."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from poet_onnx.errors import InputError
from poet_onnx.files.model_file import data_files
from poet_onnx.files.regular import resolved


def files_read(model: object) -> frozenset[Path]:
    """Return the file of a model and those of its weights, all links resolved; none if it is in memory."""
    if not isinstance(model, (str, os.PathLike)):
        return frozenset()
    path = Path(model)
    return frozenset(resolved(each) for each in (path, *data_files(path)))


def check_apart(paths: Iterable[Path], sources: Collection[Path]) -> None:
    """Refuse to write over what was read.

    Raises:
        InputError: if a path is of a file that was read.
    """
    for path in paths:
        if resolved(path) in sources:
            raise InputError(f"{path} is a file that the model was read from, and stays: write to another place.")
