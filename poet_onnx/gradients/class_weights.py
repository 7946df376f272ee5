"""Class weights as users give them: numbers, a text of them, or a file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from poet_onnx.errors import InputError
from poet_onnx.files.regular import open_regular, read_regular
from poet_onnx.quantities import is_number

ClassWeights: TypeAlias = Sequence[float] | str | os.PathLike[str]


def read_weights(given: ClassWeights) -> tuple[float, ...]:
    """Return one weight a class.

    Args:
        given: numbers; text such as "1,2,0.5"; or the name of a file: an array of numpy (.npy), or text with commas or
            white space between the numbers.

    Raises:
        InputError: if they cannot be read, or are no weights: finite, none negative, not all 0.
    """
    if isinstance(given, str) and "," in given:
        weights = _numbers(given, f"'{given}'")
    elif isinstance(given, (str, os.PathLike)):
        weights = _from_file(Path(given))
    else:
        weights = _of_numbers(given)
    if not weights or not all(math.isfinite(each) and each >= 0.0 for each in weights) or not any(weights):
        raise InputError(f"The class weights {weights[:6]} cannot be used: give finite ones, none negative, not all 0.")
    return tuple(weights)


def _of_numbers(given: object) -> list[float]:
    listed = isinstance(given, Iterable) and not isinstance(given, (bytes, Mapping))
    numbers: list[Any] = list(given) if listed else [None]  # type: ignore[call-overload]
    if not all(map(is_number, numbers)):
        raise InputError("The class weights are no list of numbers: give one for each class.")
    return [float(number) for number in numbers]


def _from_file(path: Path) -> list[float]:
    try:
        if path.suffix == ".npy":
            with open_regular(path) as file:
                array = np.load(file, allow_pickle=False)
            return [float(each) for each in np.asarray(array, np.float64).ravel()]
        return _numbers(read_regular(path).decode(), str(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"The class weights {path} cannot be read: {reason}; numbers have commas between.") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"The file {path} holds no class weights: give numbers with commas between.") from error


def _numbers(text: str, source: str) -> list[float]:
    words: Iterable[str] = (word for word in re.split(r"[,\s]+", text) if word)
    try:
        return [float(word) for word in words]
    except ValueError as error:
        raise InputError(f"The class weights {source} are no numbers: {error}.") from error
