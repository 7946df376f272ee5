"""Evictions for falling budgets: the search for a budget goes on from what was evicted for the one above.

So one sweep, which takes about as long as one quick plan, tells what can be reached at all budgets. Its plans are
judged by what they need, not by their energy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from poet_onnx.plan import Step
from poet_onnx.plan.limits import UNLIMITED
from poet_onnx.scheduling.eviction import RAM, STORAGE, Eviction
from poet_onnx.scheduling.liveness import Profile
from poet_onnx.scheduling.segments import FEW_SEGMENTS, SEGMENTS, in_segments
from poet_onnx.scheduling.steps import steps_of_eviction

WAYS = (*((count, 1) for count in (1, *SEGMENTS)), *FEW_SEGMENTS)
"""Numbers of segments of the sweeps, and of their parts: with one, whatever is cheapest leaves RAM."""

STRIDE = 0.93
"""A sweep goes on with this share of the budget before, and halves the way where that cannot be reached."""

CLOSE = 0.002
"""It ends where the budget that is reached exceeds one that is not by no more than this share."""

LEAST_PAGED_BYTES = 33
"""Smaller values stay in RAM where all others are paged: their tokens need as much, four times `TOKEN_BYTES`."""


class _Sweep:
    """One way down.

    Attributes:
        eviction: that keeps to the budget.
        budget_bytes: the lowest one that was reached.
    """

    def __init__(self, profile: Profile, low_bytes: int, segments: tuple[int, int]) -> None:
        self.eviction = in_segments(profile, UNLIMITED.within(low_bytes), *segments)
        self.budget_bytes = low_bytes
        self.reaches(profile.peak_bytes)

    def reaches(self, budget_bytes: int) -> bool:
        """Return whether a budget below can be kept to; where it cannot, nothing has changed."""
        saved = self.eviction.saved()
        self.eviction.excess += self.budget_bytes - budget_bytes
        if self.eviction.fill():
            self.budget_bytes = budget_bytes
            return True
        vars(self.eviction).update(saved)
        return False

    def descend(self, low_bytes: int) -> None:
        """Go down as far as possible, but not below some bytes."""
        fails = 0
        while self.budget_bytes > low_bytes and self.budget_bytes - fails > max(1, CLOSE * self.budget_bytes):
            stride = int(STRIDE * self.budget_bytes)
            below = max(low_bytes, (fails + self.budget_bytes) // 2 if fails else stride, stride)
            if not self.reaches(below):
                fails = below

    @property
    def restores(self) -> int:
        """Return how often a value is away."""
        return int(np.count_nonzero(self.eviction.placement[: self.eviction.count] != RAM))

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps, with all in RAM that there is room for."""
        saved = self.eviction.saved()
        self.eviction.prune()
        steps = steps_of_eviction(self.eviction)
        vars(self.eviction).update(saved)
        return steps


def lowest(profile: Profile, low_bytes: int) -> tuple[Step, ...]:
    """Return the steps of the lowest peak that a sweep reaches in an order, above some bytes that every plan needs."""
    sweeps = [_Sweep(profile, low_bytes, segments) for segments in WAYS]
    for sweep in sweeps:
        sweep.descend(low_bytes)
    return min(sweeps, key=lambda sweep: sweep.budget_bytes).steps


def fewest_restores(profile: Profile, budgets: Sequence[int]) -> Iterator[tuple[Step, ...]]:
    """Yield for each budget that a sweep reaches the steps with the fewest runs and transfers that were found."""
    falling = sorted(budgets, reverse=True)
    profile = _equally_priced(profile)
    best: dict[int, tuple[int, tuple[int, int]]] = {}
    for segments in WAYS:
        sweep = _Sweep(profile, falling[-1], segments)
        for budget in falling:
            if not sweep.reaches(budget):
                break
            best[budget] = min(best.get(budget, (sweep.restores, segments)), (sweep.restores, segments))
    for segments in WAYS:
        chosen = [budget for budget in falling if best.get(budget, (0, (0, 0)))[1] == segments]
        sweep = _Sweep(profile, falling[-1], segments)
        for budget in falling if chosen else ():
            if budget < chosen[-1]:
                break
            sweep.reaches(budget)
            if budget in chosen:
                yield sweep.steps


def all_paged(profile: Profile, low_bytes: int) -> Iterator[tuple[Step, ...]]:
    """Yield steps that keep in RAM what they must alone and, before, those that keep what there is room for besides.

    Nothing is looked at that is not in the way of a budget which every plan needs.
    """
    eviction = Eviction(profile, UNLIMITED.within(low_bytes), least_bytes=LEAST_PAGED_BYTES)
    eviction.rerun[:] = math.inf
    for interval in range(eviction.count):
        if profile.liveness.page_in[eviction.value[interval]] < math.inf:
            eviction.send(interval, STORAGE)
    steps = steps_of_eviction(eviction)
    eviction.prune()
    yield steps_of_eviction(eviction)
    yield steps


def _equally_priced(profile: Profile) -> Profile:
    """Return the profile with each run and each transfer at one joule: the cheapest plan has the fewest."""
    liveness = copy.copy(profile.liveness)
    for name in ("rerun", "page_out", "page_in"):
        setattr(liveness, name, np.where(np.isfinite(getattr(liveness, name)), 1.0, math.inf))
    return replace(profile, liveness=liveness)
