"""Learning rates by the number of updates made: names, arguments and numbers are those of torch.optim.lr_scheduler.

A schedule of torch changes the optimizer's rate after each step; one of these is called with the number of updates made
before, and returns the rate of the next. So it needs no state, and nothing of it is in a checkpoint: for example
`StepLR(0.1, step_size=30)(60)` is 0.1 * 0.1 * 0.1. Torch multiplies up, and differs by what that rounds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poet_onnx.errors import InputError, shown
from poet_onnx.quantities import is_number, is_whole

Schedule = Callable[[int], float]
"""Number of updates made before -> learning rate of the next one."""


@dataclass(frozen=True)
class StepLR:
    """The rate times `gamma` after every `step_size` updates, as torch.optim.lr_scheduler.StepLR.

    Attributes:
        learning_rate: of the first update.
        step_size: updates between two changes.
        gamma: factor of each change.
    """

    learning_rate: float
    step_size: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        _check_rates(self, "learning_rate", "gamma")
        _check_updates(self, "step_size")

    def __call__(self, updates: int) -> float:
        """Return the rate of the next update."""
        return self.learning_rate * self.gamma ** (updates // self.step_size)


@dataclass(frozen=True)
class MultiStepLR:
    """The rate times `gamma` after each number of updates in `milestones`, as torch.optim.lr_scheduler.MultiStepLR.

    Attributes:
        learning_rate: of the first update.
        milestones: numbers of updates, in rising order.
        gamma: factor of each change.
    """

    learning_rate: float
    milestones: Sequence[int]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        _check_rates(self, "learning_rate", "gamma")
        _check_milestones(self)

    def __call__(self, updates: int) -> float:
        """Return the rate of the next update."""
        return self.learning_rate * self.gamma ** bisect_right(self.milestones, updates)


@dataclass(frozen=True)
class ExponentialLR:
    """The rate times `gamma` after each update, as torch.optim.lr_scheduler.ExponentialLR.

    Attributes:
        learning_rate: of the first update.
        gamma: factor of each update.
    """

    learning_rate: float
    gamma: float

    def __post_init__(self) -> None:
        _check_rates(self, "learning_rate", "gamma")

    def __call__(self, updates: int) -> float:
        """Return the rate of the next update."""
        return self.learning_rate * self.gamma**updates


@dataclass(frozen=True)
class LinearLR:
    """A factor that goes in a line from one to another, as torch.optim.lr_scheduler.LinearLR; a warm-up by itself.

    Attributes:
        learning_rate: that the factors multiply.
        start_factor: of the first update.
        end_factor: of all updates after `total_iters`.
        total_iters: updates from one factor to the other.
    """

    learning_rate: float
    start_factor: float = 1 / 3
    end_factor: float = 1.0
    total_iters: int = 5

    def __post_init__(self) -> None:
        _check_rates(self, "learning_rate", "start_factor", "end_factor")
        _check_updates(self, "total_iters")

    def __call__(self, updates: int) -> float:
        """Return the rate of the next update."""
        share = min(updates, self.total_iters) / self.total_iters
        return self.learning_rate * (self.start_factor + (self.end_factor - self.start_factor) * share)


@dataclass(frozen=True)
class CosineAnnealingLR:
    """Half a wave from the rate down to `eta_min`, as torch.optim.lr_scheduler.CosineAnnealingLR.

    After `T_max` updates it rises again, as torch's does.

    Attributes:
        learning_rate: of the first update.
        T_max: updates until the rate is lowest.
        eta_min: the lowest rate.
    """

    learning_rate: float
    T_max: int
    eta_min: float = 0.0

    def __post_init__(self) -> None:
        _check_rates(self, "learning_rate", "eta_min")
        _check_updates(self, "T_max")

    def __call__(self, updates: int) -> float:
        """Return the rate of the next update."""
        wave = (1 + math.cos(math.pi * updates / self.T_max)) / 2
        return self.eta_min + (self.learning_rate - self.eta_min) * wave


@dataclass(frozen=True)
class SequentialLR:
    """Schedules one after the other, each from its own beginning, as torch.optim.lr_scheduler.SequentialLR.

    For example a warm-up of 500 updates: `SequentialLR([LinearLR(1e-3, 0.01, total_iters=500), CosineAnnealingLR(1e-3,
    9500)], milestones=[500])`.

    Attributes:
        schedules: any functions of the number of updates.
        milestones: numbers of updates after which the next schedule begins, in rising order, one fewer than schedules.
    """

    schedules: Sequence[Schedule]
    milestones: Sequence[int]

    def __post_init__(self) -> None:
        _check_milestones(self)
        if len(self.schedules) != len(self.milestones) + 1 or not all(map(callable, self.schedules)):
            raise InputError(
                f"SequentialLR has {len(self.schedules)} schedules and {len(self.milestones)} milestones: give "
                "functions of the number of updates, and a milestone between each two of them."
            )

    def __call__(self, updates: int) -> float:
        """Return the rate of the next update."""
        place = bisect_right(self.milestones, updates)
        return self.schedules[place](updates - (self.milestones[place - 1] if place else 0))


def _check_rates(schedule: object, *names: str) -> None:
    for name in names:
        value = getattr(schedule, name)
        if not is_number(value) or not 0 <= value < math.inf:
            raise InputError(
                f"{type(schedule).__name__}'s {name} is {shown(value)}, but must be a number of 0 or more."
            )


def _check_updates(schedule: object, name: str) -> None:
    value = getattr(schedule, name)
    if not is_whole(value) or value < 1:
        raise InputError(
            f"{type(schedule).__name__}'s {name} is {shown(value)}, but must be a whole number of 1 or more."
        )


def _check_milestones(schedule: MultiStepLR | SequentialLR) -> None:
    given = schedule.milestones
    if not all(is_whole(each) and each >= 0 for each in given) or list(given) != sorted(given):
        raise InputError(
            f"{type(schedule).__name__}'s milestones are {shown(given)}, but must be whole numbers in rising order."
        )
