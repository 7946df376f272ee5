"""What is wrong with a gradient before any difference is taken: what is no number, and what is another in each run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_ENDLESS = 1e140
"""From here on squares add up to infinity in double precision: a gradient has no length that could be compared."""

_REPEATED = 1e-4
"""Several threads add in any order: two runs may differ by this share of the gradient's length."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a gradient, and the element that shows it."""

    place: tuple[int, ...]
    said: str


def fault_of(made: Array, again: Iterable[Array], faint: float) -> Fault | None:
    """Return what is wrong with a gradient at first sight, or None.

    Args:
        made: the gradient.
        again: what other runs of the same step made of it.
        faint: derivatives up to here may be all rounding.
    """
    if not _bounded(made).all():
        return _endless(made)
    found = (_unsteady(made, each, faint) for each in again)
    return next((each for each in found if each is not None), None)


def _bounded(array: Array) -> npt.NDArray[np.bool_]:
    bounded: npt.NDArray[np.bool_] = np.abs(array) < _ENDLESS  # which NaN is not
    return bounded


def _endless(made: Array) -> Fault:
    wrong = ~_bounded(made)
    place = _place(wrong, made)
    count = int(wrong.sum())
    return Fault(place, f"{count:,} of its {made.size:,} elements {_are(count)} not finite, {_at(place, made)}")


def _unsteady(made: Array, again: Array, faint: float) -> Fault | None:
    known = np.where(_bounded(again), again, 0.0)
    apart = np.where(_bounded(again), np.abs(known - made), np.inf)
    # The smaller of the two: what is far too large in one run must not be what allows it.
    length = min(float(np.linalg.norm(made)), float(np.linalg.norm(known)))
    if float(np.linalg.norm(apart)) <= _REPEATED * length + faint:
        return None
    place = _place(apart, made)
    return Fault(place, f"two runs of the same step differ, {_at(place, made)} and then {again[place]:.6g}")


def _place(rank: Array, array: Array) -> tuple[int, ...]:
    """Return the first place where a rank is highest."""
    return tuple(int(each) for each in np.unravel_index(int(np.argmax(rank)), array.shape))


def _at(place: tuple[int, ...], array: Array) -> str:
    return f"{list(place) if place else 'it'} is {array[place]:.6g}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
