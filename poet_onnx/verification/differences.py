"""Derivatives of the loss in double precision along directions, and what a wrong gradient they could miss.

A direction mixes the gradient's own with a random one, so that a wrong length and a wrong part both show. Central
differences of two step sizes, and those to either side, tell how far a difference is to be trusted. No kink (of Relu,
of a maximum) lies between, for the loss is held to the piece that the point is on; where the point is at a kink, both
pieces are tried and disagree. Kinks that are not known make differences disagree, too, and smaller steps are tried.

What a gradient may be off by is bounded by what is known without it: else memory that nobody wrote, of any size and
another in each run, would pass for the rounding of single precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.verification.double import DoubleForward

Array = npt.NDArray[Any]

_STEPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""Lengths of a step, as shares of the tensor's own. Long steps round little: they decide where a loss hardly moves."""

_LONGEST_AGAINST = 1e-5
"""Longer steps may only say that a gradient is right: many steps of a staircase nobody knows of look like a slope."""

_RELATIVE_ERROR = 1e-4
"""A derivative may be off by this share of the gradient along the direction, and by what rounding makes."""

_NOISE_MARGIN = 4.0
_ROUNDING = 1e-14
"""What rounding adds to a loss in double precision, as a share of the loss."""

_NEGLIGIBLE = 2.0**-24
"""Single precision does not show a derivative below this share of the loss over the tensor's own length."""

_FAINT = 2.0**-12
"""A derivative up to this share of the loss over the tensor's own length may be all rounding, as of a bias whose right
gradient is 0: the sums that cancel in it are that large."""

_CANCELLED = 2.0**-18
"""Up to this share of the loss over the tensor's own length a derivative is what is left of sums that cancel."""

_ROUNDED_SHARE = 1 / 8
"""Where rounding may make a larger share of a gradient's length, and that is not faint, nothing is decided by it."""

_BLOCKS_PER_DIRECTION = 2
_OPPOSITE = 1e-6


@dataclass(frozen=True)
class Probe:
    """A derivative along a direction.

    Attributes:
        along: the direction, of length 1.
        expected: by differences of the loss.
        found: by the gradient.
        error_bar: by how much the differences disagree.
        allowed: error of a right gradient.
        negligible: derivatives up to here are none.
        blind: rounding seems to make too much of the gradient for it to be right.
    """

    along: Array
    expected: float
    found: float
    error_bar: float
    allowed: float
    negligible: float
    blind: bool = False

    @property
    def undecided(self) -> bool:
        """Tell whether the differences disagree by more than a right gradient may be off, or rounding hides it."""
        none = max(abs(self.expected) + self.error_bar, abs(self.found)) <= self.negligible
        return (not none and not self.error_bar <= self.allowed) or (self.blind and self.apart <= 1.0)

    @property
    def apart(self) -> float:
        """Return how far the two derivatives are apart, in what they may be."""
        return abs(self.expected - self.found) / (self.allowed + self.error_bar or 1.0)

    @property
    def wrong(self) -> bool:
        """Tell whether the gradient is wrong along the direction."""
        return not self.undecided and not self.apart <= 1.0

    @property
    def hidden(self) -> float:
        """Return the largest further error of the derivative that this probe could miss."""
        return max(abs(self.expected - self.found) + self.allowed + self.error_bar, self.negligible)

    @classmethod
    def tried(cls, forward: DoubleForward, tensor: str, along: Array, gradient: Array, noise: Array) -> Probe:
        """Take differences of ever smaller steps, until they agree with the gradient, or there are none left.

        A gradient is wrong by the last that agree among themselves: a kink farther away is then out of reach. The noise
        is what single precision adds to each element of it, as far as is known.
        """
        found = float(np.vdot(gradient, along))
        moved = along != 0
        own = float(np.linalg.norm(gradient[moved]))
        # The noise of few elements is known too badly: none is held to be below the largest of all.
        most = float(noise.max(initial=0.0))
        rounding = _NOISE_MARGIN * min(float(np.linalg.norm(noise)), math.sqrt(np.count_nonzero(moved)) * most)
        length = _length(forward.values[tensor])
        slope = abs(forward.loss) / length
        share = _ROUNDED_SHARE * float(np.linalg.norm(gradient))
        last: Probe | None = None
        for fraction in _STEPS:
            expected, error_bar = _derivative(forward, tensor, along, fraction * length)
            allowed = _RELATIVE_ERROR * max(own, abs(expected))
            allowed += min(_most_rounding(share, slope, expected), rounding)
            cancels = abs(expected) <= error_bar + _CANCELLED * slope
            blind = not rounding <= (max(share, _FAINT * slope) if cancels else share)  # which NaN is not
            each = cls(along, expected, found, error_bar, allowed, _NEGLIGIBLE * slope, blind)
            if not each.undecided and not each.wrong:
                return each
            if fraction <= _LONGEST_AGAINST and (last is None or not each.undecided):
                last = each
        assert last is not None
        return last


def faint_derivative(forward: DoubleForward, tensor: str) -> float:
    """Return up to where a derivative by a tensor may be all rounding."""
    return _FAINT * abs(forward.loss) / _length(forward.values[tensor])


def whole_directions(
    gradient: Array, generator: np.random.Generator, number: int, moving: Array | bool = True
) -> list[Array]:
    """Return directions of length 1: of the gradient and of chance in equal parts, along what may move."""
    length = float(np.linalg.norm(gradient))
    directions = []
    for _ in range(number):
        chance = generator.standard_normal(gradient.shape) * moving
        chance /= np.linalg.norm(chance)
        along = chance + (gradient / length if length else 0.0)
        size = float(np.linalg.norm(along))
        directions.append(along / size if size > _OPPOSITE else chance)  # they may cancel out, as of one element
    return directions


def block_directions(gradient: Array, generator: np.random.Generator, number: int) -> list[Array]:
    """Return a direction in each of random blocks that hold all elements together, so that each counts for more."""
    order = generator.permutation(gradient.size)
    directions = []
    for places in np.array_split(order, min(_BLOCKS_PER_DIRECTION * number, gradient.size)):
        # Signs by chance and equal lengths: no element hides behind a small factor.
        block = np.zeros(gradient.size)
        block[places] = generator.choice((-1.0, 1.0), len(places)) / math.sqrt(len(places))
        directions.append(block.reshape(gradient.shape))
    return directions if len(directions) > 1 else []


def single_directions(gradient: Array, generator: np.random.Generator, number: int) -> list[Array]:
    """Return directions that move one element each, by chance: the others find those of large gradients."""
    places = generator.choice(gradient.size, min(number, gradient.size), replace=False)
    return [single_direction(gradient.shape, np.unravel_index(place, gradient.shape)) for place in places]


def single_direction(shape: tuple[int, ...], place: tuple[Any, ...]) -> Array:
    """Return the direction that moves one element."""
    single = np.zeros(shape)
    single[place] = 1.0
    return single


def visible_errors(probes: Sequence[Probe], shape: tuple[int, ...]) -> Array:
    """Return the smallest error of each element alone that one of the probes would show; infinite where none would."""
    visible = np.full(shape, np.inf)
    for probe in probes:
        if not probe.undecided:
            with np.errstate(divide="ignore"):
                np.minimum(visible, probe.hidden / np.abs(probe.along), out=visible)
    return visible


def visible_share(visible: Array, gradient: Array) -> float:
    """Return the share of elements in which an error as large as the gradient's root mean square would show."""
    size = float(np.linalg.norm(gradient)) / math.sqrt(gradient.size) if gradient.any() else math.inf
    return float(np.mean(np.isfinite(visible) & (visible <= size)))


def length_share(visible: Array, gradient: Array, faint: float) -> float:
    """Return the share of elements in which an error as large as the whole gradient's length would show."""
    size = max(float(np.linalg.norm(gradient)), faint * math.sqrt(gradient.size))
    return float(np.mean(np.isfinite(visible) & (visible <= size)))


def _most_rounding(share: float, slope: float, expected: float) -> float:
    """Return what rounding may add to a derivative at most, whatever the runs say.

    Args:
        share: of the gradient's length, up to which it may be rounding.
        slope: of a loss that goes down by all of itself over the tensor's own length.
        expected: the derivative.
    """
    # Where all cancels out, the sums that round may be far larger than what is left of them.
    return max(share, slope) if abs(expected) <= _FAINT * slope else share


def _length(start: Array) -> float:
    return float(np.linalg.norm(start)) or float(np.sqrt(start.size)) or 1.0


def _derivative(forward: DoubleForward, tensor: str, along: Array, step: float) -> tuple[float, float]:
    """Return the loss's derivative along a direction, and how far it is to be trusted."""
    start, middle = forward.values[tensor], forward.loss
    central, bends = [], []
    for size, side in ((step, 1.0), (step / 4, 1.0), (step / 4, -1.0)):
        if side > 0 or forward.tied:
            after = forward.loss_with(tensor, start + size * along, side)
            before = forward.loss_with(tensor, start - size * along, side)
            central.append((after - before) / (2 * size))
            bends.append(abs(after - 2 * middle + before) / size)
    rounding = _ROUNDING * abs(middle) / step
    # A smooth loss bends a quarter as much over a quarter of the way, a kink at the point itself just as much.
    kink = max(0.0, bends[1] - bends[0] / 2)
    return central[1], max(abs(each - central[1]) for each in central) + kink + rounding
