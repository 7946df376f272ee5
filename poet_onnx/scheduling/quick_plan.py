"""A quick plan for an order, judged by the simulator: what the order is worth at a budget, without a solver.

An eviction takes milliseconds, so that many orders can be compared. There are three ways: one value after the other, by
segments, and by segments with parts.
"""

from __future__ import annotations

from collections.abc import Callable

from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.eviction import Eviction, evict
from poet_onnx.scheduling.liveness import Profile
from poet_onnx.scheduling.segments import evict_in_parts, evict_in_segments
from poet_onnx.scheduling.steps import SimulatedPlan, steps_of_eviction
from poet_onnx.simulate import simulate
from poet_onnx.transfers import overlap, spread_out

MOST_CORRECTIONS = 6
"""Times that the budget of a quick plan is lowered."""


def quick_plan(profile: Profile, limits: Limits) -> SimulatedPlan | None:
    """Return the best plan of an order that was found quickly, in time if there is such a one, or None."""
    plans = [_corrected(profile, limits, way) for way in (evict, evict_in_segments, evict_in_parts)]
    found = [plan for plan in plans if plan is not None]
    return min(found, key=lambda plan: plan.rank(limits), default=None)


_Way = Callable[[Profile, Limits], Eviction | None]


def _corrected(profile: Profile, limits: Limits, way: _Way) -> SimulatedPlan | None:
    """Return what a way leads to, its budget lowered by what tokens and small copies need, which it does not count."""
    problem, budget = profile.liveness.problem, limits.transient_bytes
    target = budget
    for _ in range(MOST_CORRECTIONS):
        eviction = way(profile, limits.within(target))
        if eviction is None:
            return None
        eviction.improve()
        steps = steps_of_eviction(eviction)
        peak_bytes = simulate(problem, steps, limits.without_deadline().within(None)).transient_peak_bytes
        if peak_bytes <= budget:
            return _placed(problem, limits, steps)
        uncounted = peak_bytes - (target + int(eviction.excess.max(initial=-target)))
        target = min(target - (peak_bytes - budget), budget - uncounted)
    return None


def _placed(problem: ScheduleProblem, limits: Limits, steps: tuple[Step, ...]) -> SimulatedPlan:
    """Place transfers; thoroughly, which takes long, only where that could save energy or make the plan be in time."""
    timeless = limits.without_deadline()
    steps = spread_out(problem, limits, steps) if problem.costs.asynchronous else steps
    plan = SimulatedPlan(steps, simulate(problem, steps, timeless))
    late, _ = plan.rank(limits)
    if not plan.prediction.stall_seconds or not (late or problem.costs.idle_watts):
        return plan
    steps = overlap(problem, limits, steps)
    return SimulatedPlan(steps, simulate(problem, steps, timeless))
