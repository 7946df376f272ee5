"""What the integers of an input may be, as a value that is written into a model and read at run time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from poet_onnx.errors import InputError

RANGES_KEY = "poet.input_ranges"
"""Key of the metadata that hold the ranges of a model's inputs."""

_TOO_LARGE = 2**63


@dataclass(frozen=True)
class Range:
    """What an integer may be.

    Attributes:
        lowest, highest: bounds, both allowed.
        ignored: another number that is allowed.
    """

    lowest: int
    highest: int
    ignored: int | None = None


Ranges = Mapping[str, tuple[Range, ...]]
"""What the numbers of an input must keep to, all of them, by the input's name; an input without any is not in it."""


def ranges_to_json(ranges: Ranges) -> str:
    """Return ranges as text."""
    return json.dumps({name: [astuple(each) for each in several] for name, several in ranges.items()})


def ranges_from_json(text: str) -> Ranges:
    """Return the ranges that `ranges_to_json` wrote.

    Raises:
        InputError: if the text says none.
    """
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or not all(map(_is_list_of_ranges, read.values())):
        raise InputError("What the model's metadata says of its inputs cannot be read: rewrite the original again.")
    return {name: tuple(Range(*each) for each in several) for name, several in read.items()}


def _is_list_of_ranges(several: object) -> bool:
    return isinstance(several, list) and all(
        isinstance(each, list)
        and len(each) == len(Range.__annotations__)
        and all(
            type(number) is int and abs(number) < _TOO_LARGE for number in (each if each[2] is not None else each[:2])
        )
        for each in several
    )
