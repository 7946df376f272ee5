"""A quick plan by segments: what lies between two checkpoints is made again at once, and only as far as memory asks.

Sending away what is cheapest, one wait after the other, ends in long chains of recomputes that hold too much in RAM at
once, or in transfers. Where the values that cross a few places stay in RAM, no chain is longer than a segment (Chen et
al., Training Deep Nets with Sublinear Memory Cost, 2016). How many segments are best depends on network and budget, so
several numbers are tried.
"""

from __future__ import annotations

import math

import numpy as np

from poet_onnx.scheduling.eviction import Eviction, Prices
from poet_onnx.scheduling.lifetimes import Lifetimes, Profile

SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Numbers of segments that are tried."""


def evict_in_segments(lives: Lifetimes, prices: Prices, profile: Profile, budget_bytes: int) -> Eviction | None:
    """Return the cheapest quick plan by segments that keeps to a budget, or None if there is none."""
    found = []
    for count in SEGMENTS:
        plan = Eviction(lives, prices, profile, budget_bytes)
        _keep_checkpoints(plan, count)
        if plan.fill(at_peak=True):
            plan.prune()
            found.append(plan)
    best = min(found, key=lambda plan: plan.joules, default=None)
    if best is not None:
        best.improve(at_peak=True)
    return best


def _keep_checkpoints(plan: Eviction, segments: int) -> None:
    """Forbid to make again what is made before the end of a segment and read behind it before its wait begins.

    The segments have equal shares of the bytes that could be made again.
    """
    value, first = plan.value[: plan.count], plan.first[: plan.count]
    made = plan.profile.position[plan.lives.maker[value]]
    again = np.nonzero(plan.rerun[: plan.count] < math.inf)[0]
    again = again[np.argsort(made[again], kind="stable")]
    if not len(again):
        return
    share = np.cumsum(plan.lives.sizes[value[again]])
    ends = made[again[np.searchsorted(share, share[-1] * np.arange(1, segments) / segments)]]
    for end in ends:
        plan.rerun[: plan.count][(made <= end) & (end < first)] = math.inf
