"""Budgets, deadlines and lifetimes as people write them: "256MiB", "75%", "250ms", "1.3x", "100000steps"."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import SupportsIndex

from poet_onnx.errors import InputError, shown

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*)\s*")
_BYTE_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{unit}": base**power
    for unit, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt", start=1)
}
_TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
MOST_THREADS = 1024
"""Inside an operator; more would not start in any reasonable time."""

_MOST_BYTES = 2**50
_SMALL_BYTES = 2**20
"""A budget of fewer bytes may have been meant in another unit."""

_MOST_SECONDS = 1e7
_MOST_SHARE = 10.0
_MOST_FACTOR = 1e6
_MOST_STEPS = 1e12


def is_number(value: object) -> bool:
    """Return whether a value is a real number that a float can hold, of Python or numpy; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:  # of a whole number
        return False
    return True


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number, of Python or numpy; true and false are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_whole(value: object, name: str, least: int) -> None:
    """Check that a value is a whole number of at least so much.

    Raises:
        InputError: if it is not.
    """
    if not is_whole(value) or value < least:  # type: ignore[operator]
        raise InputError(f"A {name} cannot be {shown(value)}: give a whole number of {least} or more.")


@dataclass(frozen=True, slots=True)
class Budget:
    """A bound on memory: so many bytes, or a share of a peak that is known later; one of the two is None.

    Attributes:
        doubt: what a small number without a unit was read as and may have meant; empty where there is no doubt.
    """

    size_bytes: int | None = None
    share: float | None = None
    doubt: str = field(default="", compare=False)

    def in_bytes(self, whole_bytes: int) -> int:
        """Return the bound in bytes, where `whole_bytes` is what a share is a share of."""
        return int(self.share * whole_bytes) if self.share is not None else self.size_bytes or 0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A bound on the time of a step: seconds, or a factor of a time that is known later; one of the two is None."""

    seconds: float | None = None
    factor: float | None = None

    def in_seconds(self, compute_seconds: float) -> float:
        """Return the bound in seconds, where `compute_seconds` is what a factor is a factor of."""
        return self.factor * compute_seconds if self.factor is not None else self.seconds or 0.0


def parse_budget(value: SupportsIndex | str, *, name: str, share_of: str | None = None) -> Budget:
    """Read a number of bytes: an int, or text with a unit of 1000 (kB, MB, GB, TB) or 1024 (KiB, MiB, GiB, TiB).

    Args:
        value: what was given.
        name: of the option or argument, for error messages.
        share_of: what a percentage would be a share of; None where percentages make no sense.

    Raises:
        InputError: if it is no such number, not positive, or beyond all machines.
    """
    if not isinstance(value, str):
        size_bytes = _whole_bytes(value, name)
        return Budget(size_bytes, doubt=_doubt(size_bytes, name, share_of))
    number, unit = _split(value, name, "bytes such as 256MiB" + (" or a percentage such as 75%" if share_of else ""))
    if unit == "%":
        if share_of is None:
            raise InputError(f"{name} {shown(value)} cannot be a percentage; give bytes, such as 256MiB.")
        _check_range(number / 100, _MOST_SHARE, f"{name} {shown(value)}", f"above 0% and at most {_MOST_SHARE:.0%}")
        return Budget(share=number / 100)
    factor = _BYTE_UNITS.get(unit.lower())
    if factor is None:
        raise InputError(f"{name} {shown(value)} has the unknown unit {unit!r}; use B, kB, MB, GB, KiB, MiB or GiB.")
    wanted = "at least 1 byte and at most 1 PiB" + (", or a percentage such as 75%" if share_of else "")
    _check_range(number * factor, _MOST_BYTES, f"{name} {shown(value)}", wanted, least=1)
    return Budget(int(number * factor), doubt="" if unit else _doubt(int(number), name, share_of))


def budget_text(size_bytes: int) -> str:
    """Name a budget in bytes, and behind that in the unit that people type, rounded up: whoever gives either has it."""
    for unit, unit_bytes in (("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= unit_bytes:
            return f"{size_bytes:,} bytes ({-(-10 * size_bytes // unit_bytes) / 10:.1f}{unit})"
    return f"{size_bytes:,} bytes"


def _doubt(number: int, name: str, share_of: str | None) -> str:
    """Say what a number without a unit may have meant, if it is too small to mean bytes."""
    if number >= _SMALL_BYTES:
        return ""
    meant = f"{number}% or {number}MiB" if share_of is not None and number <= 100 else f"{number}MiB"
    return f"{name} {number} without a unit means bytes, not {meant}"


def parse_deadline(value: float | str, *, name: str) -> Deadline:
    """Read a time: seconds as a number, or text with a unit (us, ms, s, min) or a factor of the compute time (1.3x).

    Raises:
        InputError: if it is no such number, not positive, or absurdly long.
    """
    if isinstance(value, str):
        number, unit = _split(value, name, "a time such as 250ms or 0.25s, or a factor such as 1.3x")
    elif not is_number(value):
        raise InputError(f"{name} {shown(value)} is no time; give seconds, or text such as 250ms or 1.3x.")
    else:
        number, unit = float(value), "s"
    if unit.lower() == "x":
        _check_range(number, _MOST_FACTOR, f"{name} {shown(value)}", f"above 0x and at most {_MOST_FACTOR:.0f}x")
        return Deadline(factor=number)
    factor = _TIME_UNITS.get(unit.lower())
    if factor is None:
        raise InputError(f"{name} {shown(value)} has the unknown unit {unit!r}; use us, ms, s, min or x.")
    _check_range(
        number * factor, _MOST_SECONDS, f"{name} {shown(value)}", f"above 0 s and at most {_MOST_SECONDS:.0f} s"
    )
    return Deadline(seconds=number * factor)


def parse_lifetime(value: SupportsIndex | str, *, name: str) -> int:
    """Read a number of steps: an int, or text such as "100000steps".

    Raises:
        InputError: if it is no such number, not positive, or absurdly large.
    """
    wanted = "a whole number of steps, such as 100000steps"
    if isinstance(value, str):
        number, unit = _split(value, name, wanted)
    elif is_number(value):
        number, unit = float(value), ""
    else:
        raise InputError(f"{name} {shown(value)} is not understood; give {wanted}.")
    if unit.lower() not in ("", "step", "steps") or not number.is_integer():
        raise InputError(f"{name} {shown(value)} is not understood; give {wanted}.")
    _check_range(
        number, _MOST_STEPS, f"{name} {shown(value)}", f"at least 1 step and at most {_MOST_STEPS:.0e}", least=1
    )
    return int(number)


def _split(text: str, name: str, wanted: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InputError(f"{name} {shown(text)} is not understood; give {wanted}.")
    return float(match[1]), match[2]


def _whole_bytes(value: SupportsIndex, name: str) -> int:
    if isinstance(value, bool):
        raise InputError(f"{name} {shown(value)} is no number of bytes; give one, or text such as 256MiB.")
    try:
        size_bytes = operator.index(value)
    except TypeError as error:
        raise InputError(
            f"{name} {shown(value)} is no whole number of bytes; give one, or text such as 256MiB."
        ) from error
    _check_range(size_bytes, _MOST_BYTES, f"{name} {shown(value)}", "at least 1 byte and at most 1 PiB", least=1)
    return size_bytes


def _check_range(number: float, most: float, what: str, wanted: str, least: float | None = None) -> None:
    is_enough = number > 0 if least is None else number >= least
    if not (is_enough and number <= most):  # as where it is not a number
        raise InputError(f"{what} is out of range: it must be {wanted}.")
