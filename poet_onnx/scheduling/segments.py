"""Evictions by segments: what lies between two checkpoints is made again at once.

Evicting whatever is cheapest ends in long chains of recomputes, which hold too much in RAM at once, or in transfers.
Where the values that cross a few positions stay in RAM, no chain is longer than a segment (Chen et al., Training Deep
Nets with Sublinear Memory Cost, 2016). How many segments are best depends on network and budget; several are tried.

Segments may have parts, with checkpoints of their own, which are made again when the backward pass comes to a segment.
Of 24 layers, 4 segments of 6 keep 3 + 5 inputs of layers in place of 23, and most layers run once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling.eviction import Eviction
from poet_onnx.scheduling.liveness import Integers, Profile

SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Numbers of segments that are tried."""

Parts = tuple[tuple[int, int], ...]

FEW_SEGMENTS: Parts = ((3, 4), (4, 4), (4, 6), (4, 7), (4, 8), (6, 6))
"""Numbers of segments, and of parts of each one: transformers have 12, 16, 24, 28, 32 or 36 layers."""

OTHER_SEGMENTS: Parts = ((2, 6), (3, 8), (4, 3), (5, 5), (6, 2), (8, 3))
"""Further ones, apart from those: the cheapest of all may turn out to hold too much where another one does not."""


def evict_in_segments(profile: Profile, limits: Limits) -> Eviction | None:
    """Return the cheapest quick plan by segments that keeps to the limits but the deadline, or None."""
    return _cheapest(in_segments(profile, limits, count) for count in SEGMENTS)


def evict_in_parts(profile: Profile, limits: Limits, ways: Parts) -> Eviction | None:
    """Return the cheapest one by segments with parts, or None; what runs where a segment begins may need more RAM."""
    return _cheapest(in_segments(profile, limits, segments, parts) for segments, parts in ways)


def _cheapest(plans: Iterable[Eviction]) -> Eviction | None:
    found = []
    for plan in plans:
        if plan.fill():
            plan.prune()
            found.append(plan)
    return min(found, key=lambda plan: plan.joules, default=None)


def in_segments(profile: Profile, limits: Limits, segments: int, parts: int = 1) -> Eviction:
    """Return an eviction with checkpoints: those of segments stay in RAM, those of their parts come back and stay.

    With one segment, whatever is cheapest leaves RAM.
    """
    plan = Eviction(profile, limits)
    value, first, last = (numbers[: plan.count] for numbers in (plan.value, plan.first, plan.last))
    made = profile.position[plan.liveness.maker[value]]
    ends = _ends(plan, made, segments * parts)
    outer = ends[parts - 1 :: parts]
    for end in outer:
        plan.rerun[: plan.count][(made <= end) & (end < first)] = math.inf
    begin = -1
    for number, end in enumerate(outer):  # behind the last one the backward pass begins, and has all at hand
        crosses = np.zeros(len(made), dtype=bool)
        for inner in ends[number * parts : (number + 1) * parts - 1]:
            crosses |= (begin < made) & (made <= inner) & (inner < first)
        intervals = np.nonzero(crosses)[0]
        place = _backward(made, first, last, begin, end) if len(intervals) else None
        if place is not None:
            plan.remake(intervals[np.argsort(made[intervals], kind="stable")], place)
        begin = end
    return plan


def _backward(made: Integers, first: Integers, last: Integers, begin: int, end: int) -> int | None:
    """Return the place at which the backward pass first wants a value from inside a segment, or None.

    It has left the next segment by then: what crosses the end, and was made last, is wanted no more. Of each interval
    there are its first and last place, and that at which its value is made.
    """
    crossing = np.nonzero((begin < made) & (made <= end) & (end < first))[0]
    if not len(crossing):
        return None
    left = int(last[crossing[made[crossing] == made[crossing].max()]].max())
    inside = last[(begin < made) & (made <= end) & (first <= end) & (left <= last)]
    return int(inside.min()) if len(inside) else None


def _ends(plan: Eviction, made: Integers, count: int) -> list[int]:
    """Return the places between so many segments.

    Each has about an equal share of the bytes that could be made again, and ends where the fewest of them cross.

    Args:
        plan: that has not begun.
        made: where the value of each interval is made.
        count: of segments.
    """
    again = np.nonzero(plan.rerun[: plan.count] < math.inf)[0]
    again = again[np.argsort(made[again], kind="stable")]
    if not len(again):
        return []
    sizes = plan.liveness.sizes[plan.value[again]]
    crossing = np.zeros(len(plan.profile.order) + 1, dtype=np.int64)
    np.add.at(crossing, made[again], sizes)
    np.add.at(crossing, plan.first[again], -sizes)
    crossing = np.cumsum(crossing)
    share = np.cumsum(sizes)
    near = made[again[np.searchsorted(share, share[-1] * np.arange(1, 2 * count) / (2 * count))]]
    ends = []
    for low, middle, high in zip(near[:-1:2], near[1::2], near[2::2], strict=True):
        places = np.arange(low, high + 1)
        ends.append(int(places[np.lexsort((abs(places - middle), crossing[places]))[0]]))
    return ends
