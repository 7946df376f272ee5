"""The order for a budget: the one in which least energy goes into recompute and paging.

A local search compares baseline orders by what their quick plans cost, and changes the best ones. A move makes a
retention interval shorter where the memory is tight: the node at its end runs earlier, or the node at its start runs
later. In a network of repeated blocks, one move shortens all intervals that look alike. The search counts its work, so
that its answer does not depend on the machine.

Example: a makes k, b makes a large value, c reads k. Where b exceeds the budget, the search tries a c b and b a c.

The memory-aware order stays unless another one has a plan that the simulator accepts, that meets the deadline, and that
is cheaper than a bound on all plans of the memory-aware order.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.bound import least_overhead
from poet_onnx.scheduling.eviction import evict_and_count
from poet_onnx.scheduling.liveness import Liveness, Profile, build_instance
from poet_onnx.scheduling.order import Dependencies, memory_aware_order
from poet_onnx.scheduling.quick_plan import quick_plan
from poet_onnx.scheduling.steps import SimulatedPlan

MOST_WORK = 5_000_000
"""Intervals and nodes that a search may look at: one or two seconds, and the same on any machine."""

WORK_PER_TRIAL = 5_000
"""What every trial costs besides, in the same unit."""

STARTS = 2
"""Baseline orders from which the search sets out."""

TIGHT_SHARE = 0.95
"""A move may help where more than this share of the budget is in RAM."""

SMALLEST_SHARE = 0.002
"""Intervals of values below this share of the budget are not shortened."""

CLASS_ROUNDS = 3
"""How far around a node its like must look the same."""

CHOSEN = 3
"""Orders that are judged by the simulator besides the baseline order."""


@dataclass(frozen=True)
class Candidate:
    """An order and what its quick plan costs above the computations, in joules; infinite if there is none."""

    profile: Profile
    joules: float


def _ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return each order once, the most promising first."""
    unique = {candidate.profile.order.tobytes(): candidate for candidate in candidates}
    return sorted(unique.values(), key=lambda candidate: (candidate.joules, candidate.profile.peak_bytes))


class OrderSearch:
    """One search, for one budget.

    Args:
        baseline: the memory-aware order.
        limits: what quick plans keep to; a deadline is not looked at.
        end: time of the processor, in seconds, at which the search gives up; a guard.
        seed: of the order in which moves are tried.
    """

    def __init__(self, baseline: Profile, limits: Limits, *, end: float, seed: int) -> None:
        self.liveness, self.baseline, self.limits, self.end = baseline.liveness, baseline, limits, end
        self.budget_bytes = limits.transient_bytes
        self.deps = Dependencies(self.liveness)
        self.kinds = _kinds(self.deps)
        self.random = random.Random(seed)
        self.work = 0

    def candidates(self) -> list[Candidate]:
        """Return orders that moves lead to, and baseline orders, the most promising first."""
        starts = self._starts()
        found = [
            self._descended(start, MOST_WORK * number // STARTS) for number, start in enumerate(starts[:STARTS], 1)
        ]
        return _ranked([*starts, *found])

    def _starts(self) -> list[Candidate]:
        """Return the baseline orders, each as it is and with constants as late as possible, the cheapest first."""
        deps, count = self.deps, len(self.baseline.order)
        orders = [self.baseline.order, deps.drain_order(), deps.greedy_order(), np.arange(count)]
        orders += [deps.late_order(order) for order in orders]
        unique = {order.tobytes(): order for order in orders}
        profiles = map(self.liveness.profile, unique.values())
        return _ranked(Candidate(profile, self._joules(profile)) for profile in profiles)

    def _joules(self, profile: Profile) -> float:
        """Return what the quick plan of an order costs above the computations, infinite if there is none."""
        plan, visits = evict_and_count(profile, self.limits)
        self.work += WORK_PER_TRIAL + len(profile.order) + visits
        return math.inf if plan is None else plan.joules

    def _descended(self, best: Candidate, most_work: int) -> Candidate:
        """Shorten intervals while that makes the quick plan cheaper."""
        better = True
        while better and best.joules > 0:
            better = False
            alike = self._tight_intervals(best.profile)
            keys = sorted(alike)
            self.random.shuffle(keys)
            for key in keys:
                for moves_up in (True, False):
                    if self.work >= most_work or time.thread_time() >= self.end:
                        return best
                    profile = self._shortened(best.profile, alike[key], moves_up)
                    if profile is None:
                        continue
                    joules = self._joules(profile)
                    if joules < best.joules * (1 - 1e-9):
                        best, better = Candidate(profile, joules), True
        return best

    def _tight_intervals(self, profile: Profile) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
        """Return the intervals that reach into tight places, as pairs of nodes, by what they look like."""
        intervals = profile.intervals
        tight = np.concatenate(([0], np.cumsum(profile.levels > TIGHT_SHARE * self.budget_bytes)))
        sizes = self.liveness.sizes[intervals.value]
        useful = (intervals.last > intervals.first + 1) & (sizes >= SMALLEST_SHARE * self.budget_bytes)
        useful &= tight[intervals.last] > tight[intervals.first]
        alike: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for interval in np.nonzero(useful)[0]:
            first, last = int(profile.order[intervals.first[interval]]), int(profile.order[intervals.last[interval]])
            alike.setdefault((self.kinds[first], self.kinds[last], int(sizes[interval])), []).append((first, last))
        return alike

    def _shortened(self, profile: Profile, intervals: Sequence[tuple[int, int]], moves_up: bool) -> Profile | None:
        """Return the order with some intervals made as short as possible, None if that changes nothing."""
        order, position = profile.order, profile.position
        for first, last in intervals:
            begin, end = int(position[first]), int(position[last])
            if end <= begin + 1:
                continue
            if moves_up:
                moved = self.deps.pull(order, position, [end], begin + 1)
            else:
                moved = self.deps.push(order, position, begin, end)
            if moved is not None:
                order, position = moved, self.liveness.position(moved)
        return self.liveness.profile(order) if order is not profile.order else None


def _kinds(deps: Dependencies) -> list[int]:
    """Return a number for each node, the same for nodes that look alike and have neighbours that look alike."""
    liveness = deps.liveness
    looks: list[tuple[object, ...]] = [
        (
            node.op_type,
            tuple(int(liveness.sizes[value]) for value in liveness.writes[number]),
            int(liveness.workspace[number]),
        )
        for number, node in enumerate(liveness.nodes)
    ]
    kinds = _numbered(looks)
    for _ in range(CLASS_ROUNDS):
        looks = [
            (
                kinds[node],
                tuple(sorted(kinds[other] for other in deps.before[node])),
                tuple(sorted(kinds[other] for other in deps.behind[node])),
            )
            for node in range(len(kinds))
        ]
        kinds = _numbered(looks)
    return kinds


def _numbered(looks: Sequence[tuple[object, ...]]) -> list[int]:
    numbers: dict[tuple[object, ...], int] = {}
    return [numbers.setdefault(look, len(numbers)) for look in looks]


@dataclass(frozen=True)
class OrderChoice:
    """An order, and the plan that made it the choice.

    Attributes:
        order: names of the nodes.
        plan: the quick plan, or None. It keeps to the budget, and to the deadline where a quick plan of any order that
            was judged does.
        baseline_plan: the same of the memory-aware order.
        baseline_bound_joules: no plan in the memory-aware order costs less, of any class; 0 where it was not needed.
        rival: the order with the cheapest quick plan where it is not proven to be better than the memory-aware one,
            which is the choice then; empty if there is none. Only solving both can tell.
    """

    order: tuple[str, ...]
    plan: SimulatedPlan | None
    baseline_plan: SimulatedPlan | None
    baseline_bound_joules: float = 0.0
    rival: tuple[str, ...] = ()


def order_for(
    problem: ScheduleProblem,
    limits: Limits,
    *,
    seconds: float = 20.0,
    seed: int = 0,
    baseline: Sequence[str] | None = None,
    found: Callable[[tuple[Step, ...]], None] = lambda _: None,
) -> OrderChoice:
    """Return the order in which the cheapest plan within limits was found if it beats all of the memory-aware order.

    Args:
        problem: to plan.
        limits: what the plan must keep to.
        seconds: of the processor, half of them for the search; a guard against large graphs on slow machines only, and
            the answer depends on the rest alone where it is not reached.
        seed: of the order in which moves are tried.
        baseline: the memory-aware order, if it is known.
        found: called with the steps of each plan that the simulator accepts, in whatever order.
    """
    begin = time.thread_time()
    order = tuple(baseline or memory_aware_order(problem))
    liveness = Liveness(problem)
    ordered = liveness.in_order(order)
    plan = base = quick_plan(ordered, limits, end=begin + seconds)
    if base is not None:
        found(base.steps)
    largest = build_instance(problem, liveness.names).largest_node_bytes
    if ordered.peak_bytes <= limits.transient_bytes or largest > limits.transient_bytes:
        return OrderChoice(order, base, base)
    candidates = OrderSearch(ordered, limits, end=begin + seconds / 2, seed=seed).candidates()
    others = [one.profile for one in candidates if one.profile.order.tobytes() != ordered.order.tobytes()]
    best = ordered
    for profile in others[:CHOSEN]:
        if time.thread_time() > begin + seconds:
            break
        quick = quick_plan(profile, limits, end=begin + seconds)
        if quick is not None and (plan is None or quick.rank(limits) < plan.rank(limits)):
            best, plan = profile, quick
    if best is ordered or plan is None:
        return OrderChoice(order, base, base)
    found(plan.steps)
    bound = problem.base_joules + least_overhead(ordered, limits)
    late, joules = plan.rank(limits)
    if late or joules >= bound:
        return OrderChoice(order, base, base, bound, rival=liveness.names_of(best.order))
    return OrderChoice(liveness.names_of(best.order), plan, base, bound)
