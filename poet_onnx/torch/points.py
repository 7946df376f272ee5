"""One point of a comparison: torch's step at some parameters, in single and in double precision, and its noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.torch.judging import Judgement, judge, largest_of, noise_of, rounding_of_mean
from poet_onnx.torch.reference import RAISED, Reference, Step

Array = npt.NDArray[Any]

_LAST_BITS, _NOISE_RUNS = 2.0**-22, 2
_FLOOR = 1e-7
"""Single precision cannot tell from zero what is less than this share of the largest number."""


class Point:
    """Torch's step.

    Attributes:
        single: in the module's own precision.
        double: in double precision; None if that is not known.
    """

    def __init__(
        self, single: Reference, double: Reference | None, values: Mapping[str, Array], batch: Mapping[str, Array]
    ) -> None:
        """Run the steps.

        Args:
            single: the module.
            double: it in double precision.
            values: of parameters and buffers.
            batch: by the names of the example inputs.
        """
        self._reference, self._values, self._batch = single, values, batch
        before = single.buffers()
        self._before = before | {name: each for name, each in values.items() if name in before}
        self.single = single.step(values, batch)
        self.double = None if double is None else double.step(values, batch)
        self._exact = self.single if self.double is None else self.double

    def of_loss(self, ours: float, count: int) -> Judgement:
        """Judge a loss, the mean of so many numbers."""
        floor = rounding_of_mean(self.single.loss, count)
        return self._judged(np.array(ours), lambda step: np.array(step.loss), floor)

    def of_gradient(self, name: str, ours: Array, resolution: float) -> Judgement:
        """Judge a gradient, which is told as finely as a resolution says; where torch has none, it must be zero."""
        nothing = np.zeros_like(ours)
        floor = _FLOOR * self._largest_gradient + resolution
        return self._judged(ours, lambda step: step.gradients.get(name, nothing), floor)

    @cached_property
    def _largest_gradient(self) -> float:
        return largest_of(self._exact.gradients)

    @cached_property
    def _largest_buffer(self) -> float:
        return largest_of({name: each for name, each in self._exact.buffers.items() if each.dtype.kind == "f"})

    def of_buffer(self, name: str, ours: Array) -> Judgement:
        """Judge what a buffer is after the step."""
        floor = _FLOOR * self._largest_buffer
        return self._judged(ours.astype(np.float64), lambda step: step.buffers[name].astype(np.float64), floor)

    def moved(self, name: str) -> bool:
        """Return whether torch's step changed a buffer."""
        return not np.array_equal(self._before[name], self.single.buffers[name], equal_nan=True)

    def is_cache(self, name: str) -> bool:
        """Return whether a buffer that torch's step changed stays from then on: at twice the numbers, too."""
        return np.array_equal(self.single.buffers[name], self._further.get(name, np.nan), equal_nan=False)

    @cached_property
    def _further(self) -> Mapping[str, Array]:
        """The buffers after another step, at twice the parameters and inputs; none where torch cannot run it."""
        parameters = {
            name: scaled(each, 2) for name, each in self._values.items() if name in self._reference.parameters
        }
        batch = {name: scaled(each, 2) for name, each in self._batch.items()}
        try:
            return self._reference.step(parameters, batch, keep=False).buffers
        except RAISED:
            return {}

    def change_of(self, name: str) -> str:
        """Return how torch's step changed a buffer: the number that moved the farthest, or how many there are."""
        before, after = (
            self._before[name].astype(np.float64).ravel(),
            self.single.buffers[name].astype(np.float64).ravel(),
        )
        if before.shape != after.shape:
            return f"goes from {before.size} to {after.size} numbers in a step of torch"
        place = int(np.abs(after - before).argmax())
        return f"goes from {before[place]:.6g} to {after[place]:.6g} in a step of torch"

    def is_biased_variance(self, name: str, ours: Array) -> bool:
        """Return whether a running variance is torch's but for the division by n, in place of n - 1."""
        layer, _, kind = name.rpartition(".")
        count, runs = self._reference.samples.get(layer, (0, 0))
        if kind != "running_var" or count < 2:
            return False
        theirs, before = self._exact.buffers[name], self._before[name].astype(np.float64)
        share = (count - 1) / count
        momentum = dict(self._reference.batch_norms())[layer].momentum
        if runs == 1 and momentum is not None:
            kept = (1 - momentum) * before
            return self._judged(ours, lambda _: kept + (theirs - kept) * share, 0.0).verdict != "wrong"
        slack = 1e-4 * np.abs(theirs)
        return bool(np.all((ours >= theirs * share - slack) & (ours <= theirs + slack)))

    def _judged(self, ours: Array, part: Callable[[Step], Array], floor: float) -> Judgement:
        """Judge a tensor; what parameters with other last bits change is measured only where it may decide."""
        single, exact = part(self.single), None if self.double is None else part(self.double)
        if single.shape != ours.shape:
            single = np.broadcast_to(single, ours.shape) if single.size == 1 else single
        noise = 0.0 if exact is None else noise_of(single, exact)
        found = judge(ours, single, exact, noise=noise, floor=floor)
        if found.verdict != "wrong":
            return found
        base, *nudged = self._nudged
        noise = max(noise, *(noise_of(part(step), part(base)) for step in nudged))
        return judge(ours, single, exact, noise=noise, floor=floor)

    @cached_property
    def _nudged(self) -> list[Step]:
        """Torch's steps at the parameters, and at others that differ in their last bits: all from the state of now."""
        found = [self._reference.step(self._values, self._batch, keep=False)]
        for run in range(_NOISE_RUNS):
            generator = np.random.default_rng(run)
            near = {
                name: (each * (1 + _LAST_BITS * generator.choice((-1.0, 1.0), each.shape))).astype(each.dtype)
                for name, each in self._values.items()
                if name in self._reference.parameters
            }
            found.append(self._reference.step({**self._values, **near}, self._batch, keep=False))
        return found


def scaled(array: Array, factor: float) -> Array:
    """Return an array of floats times a factor, and any other one as it is."""
    return (array * factor).astype(array.dtype) if array.dtype.kind == "f" else array
