"""A quick plan in steps, judged by the simulator: what an order is worth at a budget, without a solver.

Besides evictions one by one there are plans by segments: what lies between two checkpoints is made again at once.
Evicting whatever is cheapest ends in long chains of recomputes, which hold too much in RAM at once, or in transfers.
Where the values that cross a few positions stay in RAM, no chain is longer than a segment (Chen et al., Training Deep
Nets with Sublinear Memory Cost, 2016). How many segments are best depends on network and budget; several are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.eviction import Eviction, evict
from poet_onnx.scheduling.liveness import Profile
from poet_onnx.scheduling.steps import PlacedPlan, steps_of_eviction
from poet_onnx.simulate import simulate
from poet_onnx.transfers import overlap, spread_out

SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Numbers of segments that are tried."""

MOST_CORRECTIONS = 6
"""Times that the budget of a quick plan is lowered."""


def evict_in_segments(profile: Profile, limits: Limits) -> Eviction | None:
    """Return the cheapest quick plan by segments that keeps to the limits but the deadline, or None."""
    found = []
    for count in SEGMENTS:
        plan = Eviction(profile, limits)
        _keep_checkpoints(plan, count)
        if plan.fill():
            plan.prune()
            found.append(plan)
    return min(found, key=lambda plan: plan.joules, default=None)


def _keep_checkpoints(plan: Eviction, segments: int) -> None:
    """Forbid to make again what is made before the end of a segment and read behind it before its interval begins.

    The segments have equal shares of the bytes that could be made again.
    """
    value, first = plan.value[: plan.count], plan.first[: plan.count]
    made = plan.profile.position[plan.liveness.maker[value]]
    again = np.nonzero(plan.rerun[: plan.count] < math.inf)[0]
    again = again[np.argsort(made[again], kind="stable")]
    if not len(again):
        return
    share = np.cumsum(plan.liveness.sizes[value[again]])
    ends = made[again[np.searchsorted(share, share[-1] * np.arange(1, segments) / segments)]]
    for end in ends:
        plan.rerun[: plan.count][(made <= end) & (end < first)] = math.inf


def quick_plan(profile: Profile, limits: Limits) -> PlacedPlan | None:
    """Return the best plan of an order that was found quickly, in time if there is such a one, or None."""
    plans = [_corrected(profile, limits, way) for way in (evict, evict_in_segments)]
    found = [plan for plan in plans if plan is not None]
    return min(found, key=lambda plan: plan.rank(limits), default=None)


_Way = Callable[[Profile, Limits], Eviction | None]


def _corrected(profile: Profile, limits: Limits, way: _Way) -> PlacedPlan | None:
    """Return what a way leads to, its budget lowered by what tokens and small copies need, which it does not count."""
    problem, budget = profile.liveness.problem, limits.transient_bytes
    target = budget
    for _ in range(MOST_CORRECTIONS):
        eviction = way(profile, limits.within(target))
        if eviction is None:
            return None
        eviction.improve()
        steps = steps_of_eviction(eviction)
        peak_bytes = simulate(
            profile.liveness.problem, steps, limits.without_deadline().within(None)
        ).transient_peak_bytes
        if peak_bytes <= budget:
            return _placed(problem, limits, steps)
        uncounted = peak_bytes - (target + int(eviction.excess.max(initial=-target)))
        target = min(target - (peak_bytes - budget), budget - uncounted)
    return None


def _placed(problem: ScheduleProblem, limits: Limits, steps: tuple[Step, ...]) -> PlacedPlan:
    """Place transfers; thoroughly, which takes long, only where that could save energy or make the plan be in time."""
    timeless = limits.without_deadline()
    steps = spread_out(problem, limits, steps) if problem.costs.asynchronous else steps
    plan = PlacedPlan(steps, simulate(problem, steps, timeless))
    late, _ = plan.rank(limits)
    if not plan.prediction.stall_seconds or not (late or problem.costs.idle_watts):
        return plan
    steps = overlap(problem, limits, steps)
    return PlacedPlan(steps, simulate(problem, steps, timeless))
