"""A quick plan for an order, judged by the simulator: what the order is worth at a budget, without a solver.

An eviction takes milliseconds, so that many orders can be compared. They go one value after the other, by segments,
and by segments with parts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from poet_onnx.plan import Action, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.eviction import Eviction, evict
from poet_onnx.scheduling.liveness import Integers, Profile
from poet_onnx.scheduling.segments import FEW_SEGMENTS, OTHER_SEGMENTS, evict_in_parts, evict_in_segments
from poet_onnx.scheduling.steps import SimulatedPlan, steps_of_eviction
from poet_onnx.simulate import replay, simulate
from poet_onnx.transfers import overlap, spread_out

MOST_CORRECTIONS = 8
"""Tries of a quick plan, each with room for what the ones before did not count."""

SECOND_TRY_SHARE = 0.99
"""Of the budget, for a way that leads nowhere with all of it: with other choices there may be a way out.

Without, MobileNet's plan on a72 cost 15 % more energy with 1 % more memory.
"""

_Way = Callable[[Profile, Limits], Eviction | None]
_WAYS: tuple[_Way, ...] = (
    evict,
    evict_in_segments,
    partial(evict_in_parts, ways=FEW_SEGMENTS),
    partial(evict_in_parts, ways=OTHER_SEGMENTS),
)


def quick_plan(profile: Profile, limits: Limits, *, end: float = math.inf) -> SimulatedPlan | None:
    """Return the best plan of an order that was found quickly, in time if there is such a one, or None.

    From `end` on, a time of `time.thread_time`, no other way is tried where one has led to a plan: with thousands of
    nodes each takes seconds.
    """
    less = limits.within(int(SECOND_TRY_SHARE * limits.transient_bytes))
    found: list[SimulatedPlan] = []
    for way in _WAYS:
        plan = _corrected(profile, limits, way) or _corrected(profile, less, way)
        found += [] if plan is None else [plan]
        if found and time.thread_time() > end:
            break
    return min(found, key=lambda plan: plan.rank(limits), default=None)


def _corrected(profile: Profile, limits: Limits, way: _Way) -> SimulatedPlan | None:
    """Return what a way leads to, with room for what it does not count: tokens, and what a chain of reruns holds.

    The simulator tells where that exceeds the budget. There, and only there, the next try has as much less.
    """
    problem, budget = profile.liveness.problem, limits.transient_bytes
    uncounted = np.zeros_like(profile.levels)
    for _ in range(MOST_CORRECTIONS):
        eviction = way(replace(profile, levels=profile.levels + uncounted), limits)
        if eviction is None:
            return None
        eviction.improve()
        steps = steps_of_eviction(eviction)
        needed = _bytes_at_places(problem, steps, len(profile.order))
        exceeds = needed > budget
        if not exceeds.any():
            return _placed(problem, limits, steps)
        counted = eviction.excess + budget - uncounted
        uncounted[exceeds] = np.maximum(uncounted, needed - counted)[exceeds]
    return None


def _bytes_at_places(problem: ScheduleProblem, steps: Sequence[Step], count: int) -> Integers:
    """Return the most bytes while each of so many nodes, or what comes back right before it, runs."""
    step_bytes = replay(problem, steps).step_bytes
    runs_first = [step.action is Action.COMPUTE and not step.copy for step in steps]
    place = np.minimum(np.cumsum(runs_first) - runs_first, count - 1)
    needed = np.zeros(count, dtype=np.int64)
    np.maximum.at(needed, place, step_bytes)
    return needed


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
