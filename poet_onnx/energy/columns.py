"""The columns of an external meter's file: which of them are time and watts, and what stands in a row of them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

_WORD = re.compile(r"[^\W_]+")

_TIMES = {
    *("time", "timestamp", "datetime", "date", "epoch", "unixtime", "second", "seconds"),
    *("zeit", "zeitstempel", "datum"),
}
_WATTS = {"w": 1.0, "watt": 1.0, "watts": 1.0, "mw": 1e-3, "milliwatt": 1e-3, "milliwatts": 1e-3}
_POWERS = {"power", "leistung", "p"}
_PLAIN_POWERS = {*_POWERS, "active", "board", "draw", "input", "measured", "total"}
"""Words of a name that says power and no unit: any other may be a unit."""

_OTHERS = {
    *("s", "sec", "second", "seconds", "h", "hour", "hours", "energy"),
    *("milli", "micro", "kilo", "mega", "factor", "apparent", "reactive", "limit", "max", "peak"),
}
"""Words of a name that has watts and is not the power of the moment, as `W s` and `power limit (W)`."""

_MOST_SHOWN, _MOST_LETTERS = 8, 24


class Columns(NamedTuple):
    """Where time and power stand in a row.

    Attributes:
        time, power: their columns.
        width: columns in each row.
        unit_watts: of one of the numbers in the column of power.
    """

    time: int = 0
    power: int = 1
    width: int = 2
    unit_watts: float = 1.0

    def read(self, row: Sequence[str]) -> tuple[float, float]:
        """Return seconds since 1970, and watts.

        Raises:
            ValueError: if they are none.
        """
        return seconds_of(row[self.time]), _number(row[self.power]) * self.unit_watts


def row_of(line: str) -> list[str]:
    """Return the columns of a line, with points for decimal commas: such stand in quotes, or between semicolons.

    Raises:
        csv.Error: if a column is far too long.
    """
    row = next(csv.reader([line], delimiter=";" if ";" in line else ",", skipinitialspace=True))
    return [column.strip().replace(",", ".") for column in row]


def are_names(row: Sequence[str]) -> bool:
    """Return whether a row has no number and no date."""
    return not any(_is_read(column) for column in row)


def named_columns(names: Sequence[str]) -> Columns:
    """Return where time and power stand by their names.

    Raises:
        ValueError: if these do not say so; it tells why.
    """
    time = _only(names, _is_time, "time", "name one `time`, with seconds since 1970 or dates")
    power = _only(
        names,
        lambda words: _unit_watts(words) is not None,
        "power",
        "name one `watts`, or `mW` with milliwatts; volts times amperes are watts, and so are joules divided by the "
        "seconds in which they came",
    )
    return Columns(time, power, len(names), _unit_watts(_words(names[power])) or 1.0)


def seconds_of(text: str) -> float:
    """Return seconds since 1970 of a number or a date; one without a time zone is local.

    Raises:
        ValueError: if it is neither.
    """
    try:
        return _number(text)
    except ValueError:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _number(text: str) -> float:
    if "_" in text:
        raise ValueError("Python alone writes numbers so")
    return float(text)


def _is_read(text: str) -> bool:
    try:
        seconds_of(text)
    except ValueError:
        return False
    return True


def _only(names: Sequence[str], fits: Callable[[set[str]], bool], what: str, remedy: str) -> int:
    """Return the one column whose name fits.

    Raises:
        ValueError: if there is none, or more than one.
    """
    found = [index for index, name in enumerate(names) if fits(_words(name))]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"names {_shown([names[index] for index in found])}, of which each may be the {what}: leave one"
        )
    raise ValueError(f"names the columns {_shown(names)}, and none of {what}: {remedy}")


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}


def _is_time(words: set[str]) -> bool:
    return bool(words & _TIMES) and not words & _WATTS.keys()


def _unit_watts(words: set[str]) -> float | None:
    """Return the watts of a column's unit; None if it is no power."""
    units = [_WATTS[word] for word in words & _WATTS.keys()]
    if units:
        return units[0] if len(units) == 1 and not words & _OTHERS else None
    return 1.0 if words & _POWERS and words <= _PLAIN_POWERS else None


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:_MOST_LETTERS]) for name in names[:_MOST_SHOWN])
