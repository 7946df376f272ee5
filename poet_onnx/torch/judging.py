"""When two tensors differ by more than rounding.

An element of ours is right if it is as near to torch's in double precision as single precision can tell: within 1e-4 of
itself, 2e-5 of the tensor's largest element, and four times the noise, which is how far torch's own single precision is
off, or moves where parameters differ in their last bits. A gradient is wrong that is so at two points or more and right
at none, since where a rectifier opens in one precision and not in the other, gradients jump at that point alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_OWN, _LARGEST, _NOISE = 1e-4, 2e-5, 4.0

_SUMMED = 1.5e-9
"""Share of a mean by which each of its numbers may put it off where a runtime adds them one by one: with 524,288 of
them onnxruntime-training 1.19.2 is off by 4e-4, and onnxruntime 1.31.1 by 1.1e-5."""


@dataclass(frozen=True)
class Judgement:
    """How one tensor of ours stands to torch's.

    Attributes:
        verdict: "undecided" where both are zero but for noise.
        where: index of the element that is off the farthest, beside what is allowed.
        ours: it in the training graph.
        single: it in torch.
        exact: it in double precision; None if that is not known.
        error: of that element, relative to the largest element of torch's.
    """

    verdict: Literal["right", "wrong", "undecided"]
    where: tuple[int, ...]
    ours: float
    single: float
    exact: float | None
    error: float

    def __str__(self) -> str:
        """Return the numbers in words."""
        exact = "" if self.exact is None else f" ({self.exact:.6g} in double precision)"
        return f"{self.ours:.6g} in the training graph and {self.single:.6g} in torch{exact}"

    def named(self, name: str) -> str:
        """Return a tensor's name with the place of the element."""
        return f"'{name}{list(self.where) if self.where else ''}'"


def judge(ours: Array, single: Array, exact: Array | None, *, noise: float, floor: float) -> Judgement:
    """Compare a tensor with torch's.

    Args:
        ours: of the training graph.
        single: of torch.
        exact: of torch in double precision, if it is known.
        noise: how far an element of single precision may be off.
        floor: what is too small to be told from zero.
    """
    if exact is not None:  # it may have no number where single has one: 0 times a mask of double's own lowest number
        exact = np.where(np.isfinite(exact), exact, single)
    right = single if exact is None else exact
    largest = float(np.abs(right).max(initial=0.0))
    slack = _NOISE * noise + floor
    allowed = _OWN * np.abs(right) + _LARGEST * largest + slack
    error = np.abs(ours - right)
    # What is no number on both sides is equal; on one side it is infinitely wrong.
    error = np.where(np.isnan(ours) & np.isnan(right) | (ours == right), 0.0, error)
    excess = np.where(np.isfinite(error), error / np.maximum(allowed, np.finfo(np.float64).tiny), np.inf)
    place = np.unravel_index(int(excess.argmax()), excess.shape) if excess.size else ()
    worst = float(excess[place]) if excess.size else 0.0
    wrong = not worst <= 1.0
    none = not wrong and largest <= slack
    at = tuple(int(index) for index in place)
    if not excess.size:
        return Judgement("undecided", (), 0.0, 0.0, None, 0.0)
    return Judgement(
        verdict="wrong" if wrong else "undecided" if none else "right",
        where=at,
        ours=float(ours[place]),
        single=float(single[place]),
        exact=None if exact is None else float(exact[place]),
        error=0.0 if none or not largest else float(error.max() / largest),
    )


def noise_of(first: Array, second: Array) -> float:
    """Return how far two tensors that would be equal without rounding are apart at most."""
    apart = np.abs(first - second)
    return float(apart[np.isfinite(apart)].max(initial=0.0))


def largest_of(tensors: Mapping[str, Array]) -> float:
    """Return the largest number of all tensors."""
    return max((float(np.abs(each[np.isfinite(each)]).max(initial=0.0)) for each in tensors.values()), default=0.0)


def rounding_of_mean(mean: float, count: int) -> float:
    """Return how far a mean of so many numbers may be off."""
    return _SUMMED * count * abs(mean)
