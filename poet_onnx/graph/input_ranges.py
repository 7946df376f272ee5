"""What the integers of an input may be, as a value that is written into a model and read at run time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poet_onnx.errors import InputError

RANGES_KEY = "poet.input_ranges"
"""Key of the metadata that hold the ranges of a model's inputs."""

_BOUNDS, _ROW = 3, 4
"""Numbers of a range, and of an axis with its positions, in the text."""

_TOO_LARGE = 2**63
END = _TOO_LARGE - 1
"""Where positions end along an axis whose size is not known."""

Part = tuple[tuple[int, range], ...]
"""A part of a tensor: axes, and the positions along each, rising; of axes that are not in it, all."""


@dataclass(frozen=True)
class Range:
    """What an integer may be.

    Attributes:
        lowest, highest: bounds, both allowed.
        ignored: another number that is allowed.
        part: of the input that it holds for; all of it if it is empty.
    """

    lowest: int
    highest: int
    ignored: int | None = None
    part: Part = ()

    def index(self, rank: int) -> tuple[slice, ...]:
        """Return what indexes the part in an array of so many axes; axes that it does not have count for nothing."""
        chosen = dict(self.part)
        rows = (chosen.get(axis) for axis in range(rank))
        return tuple(slice(None) if row is None else slice(row.start, row.stop, row.step) for row in rows)


Ranges = Mapping[str, tuple[Range, ...]]
"""What the numbers of an input must keep to, each range in its part, by the input's name; an input without any is not
in it."""


def ranges_to_json(ranges: Ranges) -> str:
    """Return ranges as text."""
    return json.dumps({name: [_to_list(each) for each in several] for name, several in ranges.items()})


def _to_list(known: Range) -> list[object]:
    """Return a range as a list, which has the part only if it is not all."""
    part = [[axis, row.start, row.stop, row.step] for axis, row in known.part]
    return [known.lowest, known.highest, known.ignored, *([part] if part else [])]


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
    return {name: tuple(map(_from_list, several)) for name, several in read.items()}


def _from_list(each: list[Any]) -> Range:
    lowest, highest, ignored, *parts = each
    return Range(lowest, highest, ignored, tuple((axis, range(*row)) for part in parts for axis, *row in part))


def _is_list_of_ranges(several: object) -> bool:
    return isinstance(several, list) and all(map(_is_range, several))


def _is_range(each: object) -> bool:
    if not isinstance(each, list) or len(each) not in (_BOUNDS, _BOUNDS + 1):
        return False
    bounds, part = each[:_BOUNDS], each[_BOUNDS:]
    return _are_numbers(bounds if bounds[-1] is not None else bounds[:-1]) and all(map(_is_part, part))


def _is_part(part: object) -> bool:
    return isinstance(part, list) and all(
        isinstance(each, list) and len(each) == _ROW and _are_numbers(each) and min(each) >= 0 and each[-1] > 0
        for each in part
    )


def _are_numbers(several: list[object]) -> bool:
    return all(type(number) is int and abs(number) < _TOO_LARGE for number in several)
