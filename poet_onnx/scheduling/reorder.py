"""The order for a budget: the one in which least energy goes into recompute and paging.

The order by rule has the lowest peak, but what lies above a budget is more than the peak. Several orders by rule are
compared by quick plans, and the best ones are changed where the memory is tight: a wait of a value is made shorter by
moving its end up or its start down, at once in all places of a network of repeated blocks that look alike. Work is
counted, so that the answer does not depend on the machine. The order by rule stays unless another one has a plan that
the simulator accepts, that meets the deadline, and that is cheaper than a bound on all plans of the order by rule.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from poet_onnx.plan import Step
from poet_onnx.problem import ScheduleProblem
from poet_onnx.scheduling.eviction import Prices, evict
from poet_onnx.scheduling.instance import build_instance, file_order
from poet_onnx.scheduling.lifetimes import Lifetimes, Profile
from poet_onnx.scheduling.moves import Mover
from poet_onnx.scheduling.order import Dependencies, memory_aware_order
from poet_onnx.scheduling.quick_plan import QuickPlan, quick_plan
from poet_onnx.scheduling.relaxation import least_overhead

MOST_WORK = 5_000_000
"""Waits and nodes that the search may look at: about two seconds, and the same on any machine."""

WORK_PER_TRIAL = 5_000
"""What every trial costs besides, in the same unit."""

STARTS = 2
"""Orders by rule from which the search sets out."""

CHOSEN = 3
"""Orders that are judged by the simulator besides the order by rule."""

KICKS = 3
"""Random moves, at most, that lead out of an order which no move makes better."""

TIGHT_SHARE = 0.95
"""Of the budget: where more is in RAM, a move may help."""

SMALLEST_SHARE = 0.002
"""Of the budget: waits of smaller values are not shortened."""

CLASS_ROUNDS = 3
"""How far around a node its like must look the same."""


@dataclass(frozen=True)
class OrderChoice:
    """An order, and the plan that made it the choice.

    Attributes:
        order: names of the nodes.
        rule: the rule by which the order was made, "+ moves" if it was changed.
        peak_bytes: transient peak with nothing recomputed or paged.
        energy_joules: of the step by the quick plan, infinite if there is none.
        rule_energy_joules: the same of the memory-aware order.
        rule_bound_joules: no plan in the memory-aware order costs less, of any class; 0 where it was not needed.
        steps: of the quick plan; empty if there is none. It keeps to the budget, and to the deadline where a quick plan
            of any order that was judged does.
        rival: the order with the cheapest quick plan where it is not proven to be better than the memory-aware one,
            which is the choice then; empty if there is none. Only solving both can tell.
    """

    order: tuple[str, ...]
    rule: str
    peak_bytes: int
    energy_joules: float
    rule_energy_joules: float
    rule_bound_joules: float
    steps: tuple[Step, ...]
    rival: tuple[str, ...] = ()


def order_for(
    problem: ScheduleProblem,
    budget_bytes: int,
    *,
    seconds: float = 20.0,
    seed: int = 0,
    found: Callable[[tuple[Step, ...]], None] | None = None,
) -> OrderChoice:
    """Return the order in which the cheapest plan within a budget was found if it beats all of the memory-aware order.

    Args:
        problem: its own budget is not looked at.
        budget_bytes: bound on the transient peak.
        seconds: of the processor; a guard against slow machines only, and the answer depends on the rest alone where
            it is not reached.
        seed: of the random moves.
        found: called with the steps of each plan that the simulator accepts, in whatever order.
    """
    search = _Search(problem, budget_bytes, time.thread_time() + seconds, seed)
    rule = _Candidate("memory-aware", search.lives.profile(search.lives.order_of(memory_aware_order(problem))), 0.0)
    base = search.judge(rule.profile)
    if base is not None and found is not None:
        found(base.steps)
    if rule.profile.peak_bytes <= budget_bytes or search.node_bytes > budget_bytes:
        return search.choice(rule, base, base)
    best, plan = rule, base
    for candidate in search.candidates(rule)[:CHOSEN]:
        quick = search.judge(candidate.profile)
        if quick is not None and (plan is None or quick.rank(problem) < plan.rank(problem)):
            best, plan = candidate, quick
    if plan is not None and plan is not base and found is not None:
        found(plan.steps)
    if best is rule or plan is None:
        return search.choice(rule, base, base)
    bound = search.bound(rule.profile)
    late, joules = plan.rank(problem)
    if not late and joules < bound:
        return search.choice(best, plan, base, bound)
    return replace(search.choice(rule, base, base, bound), rival=search.lives.names_of(best.profile.order))


@dataclass(frozen=True)
class _Candidate:
    """An order and what its quick plan costs above the computations."""

    rule: str
    profile: Profile
    joules: float


class _Search:
    def __init__(self, problem: ScheduleProblem, budget_bytes: int, deadline: float, seed: int) -> None:
        self.problem, self.budget_bytes, self.deadline = problem, budget_bytes, deadline
        self.dependencies = Dependencies(problem.graph)
        self.lives = Lifetimes(problem)
        self.prices = Prices.of(self.lives)
        self.mover = Mover(self.lives, self.dependencies.before)
        self.random = random.Random(seed)
        self.kinds = _kinds(self.lives, self.mover)
        self.work = 0

    @property
    def node_bytes(self) -> int:
        """Return what the node that needs most needs by itself."""
        instance = build_instance(self.problem, self.lives.names)
        return max(map(instance.smallest_node_bytes, range(len(instance.nodes))), default=0)

    def judge(self, profile: Profile) -> QuickPlan | None:
        """Return the best quick plan of an order that the simulator accepts."""
        return quick_plan(self.lives, self.prices, profile, self.budget_bytes)

    def bound(self, profile: Profile) -> float:
        """Return joules of the step that no plan of an order costs less than."""
        costs = self.problem.costs
        nodes = (costs.nodes[node.name] for node in self.problem.graph.nodes)
        base = sum(cost.joules + costs.idle_watts * cost.seconds for cost in nodes)
        seconds = max(1.0, self.deadline - time.thread_time())
        prices = Prices.at_least(self.lives)
        return base + least_overhead(self.lives, prices, profile, self.budget_bytes, seconds=seconds)

    def choice(
        self, candidate: _Candidate, plan: QuickPlan | None, base: QuickPlan | None, bound: float = 0.0
    ) -> OrderChoice:
        """Return an order as the answer."""
        return OrderChoice(
            self.lives.names_of(candidate.profile.order),
            candidate.rule,
            candidate.profile.peak_bytes,
            plan.prediction.energy_joules if plan is not None else math.inf,
            base.prediction.energy_joules if base is not None else math.inf,
            bound,
            plan.steps if plan is not None else (),
        )

    def candidates(self, rule: _Candidate) -> list[_Candidate]:
        """Return orders other than the rule's, the most promising first."""
        starts = self._starts(rule)
        found = list(starts)
        for number, start in enumerate(starts[:STARTS], start=1):
            found.append(self._improved(start, MOST_WORK * number // STARTS))
        unique = {candidate.profile.order.tobytes(): candidate for candidate in found}
        unique.pop(rule.profile.order.tobytes(), None)
        return sorted(unique.values(), key=lambda candidate: (candidate.joules, candidate.profile.peak_bytes))

    def _starts(self, rule: _Candidate) -> list[_Candidate]:
        """Return the orders by rule, each as it is and with constants as late as possible, the cheapest first."""
        deps = self.dependencies
        orders = {
            "memory-aware": self.lives.names_of(rule.profile.order),
            "drain": deps.drain_order(),
            "greedy": deps.greedy_order(),
            "file": file_order(self.problem.graph),
        }
        orders |= {f"{name}, constants late": deps.late_order(order) for name, order in orders.items()}
        starts: dict[bytes, _Candidate] = {}
        for name, order in orders.items():
            profile = self.lives.profile(self.lives.order_of(order))
            if profile.order.tobytes() not in starts:
                starts[profile.order.tobytes()] = _Candidate(name, profile, self._joules(profile))
        return sorted(starts.values(), key=lambda start: (start.joules, start.profile.peak_bytes))

    def _joules(self, profile: Profile) -> float:
        """Return what the quick plan of an order costs above the computations, infinite if there is none."""
        self.work += WORK_PER_TRIAL + len(profile.order)
        plan = evict(self.lives, self.prices, profile, self.budget_bytes)
        if plan is None:
            return math.inf
        self.work += plan.visits
        return plan.joules

    def _improved(self, start: _Candidate, most_work: int) -> _Candidate:
        """Shorten waits while that makes the quick plan cheaper; then set out again from a few random moves."""
        best = self._descended(start, most_work)
        while self._goes_on(most_work) and best.joules > 0:
            kicked = self._kicked(best.profile)
            if kicked is None:
                break
            found = self._descended(_Candidate(start.rule, kicked, self._joules(kicked)), most_work)
            if found.joules < best.joules:
                best = found
        return best if best is start else _Candidate(f"{start.rule} + moves", best.profile, best.joules)

    def _goes_on(self, most_work: int) -> bool:
        return self.work < most_work and time.thread_time() < self.deadline

    def _descended(self, best: _Candidate, most_work: int) -> _Candidate:
        better = True
        while better and best.joules > 0:
            better = False
            alike = self._tight_waits(best.profile)
            keys = sorted(alike)
            self.random.shuffle(keys)
            for key in keys:
                for moves_up in (True, False):
                    if not self._goes_on(most_work):
                        return best
                    profile = self._shortened(best.profile, alike[key], moves_up)
                    if profile is None:
                        continue
                    joules = self._joules(profile)
                    if joules < best.joules * (1 - 1e-9):
                        best, better = _Candidate(best.rule, profile, joules), True
        return best

    def _tight_waits(self, profile: Profile) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
        """Return the waits that reach into tight places, as pairs of nodes, by what they look like."""
        waits = profile.waits
        tight = np.concatenate(([0], np.cumsum(profile.levels > TIGHT_SHARE * self.budget_bytes)))
        sizes = self.lives.sizes[waits.value]
        useful = (waits.last > waits.first + 1) & (sizes >= SMALLEST_SHARE * self.budget_bytes)
        useful &= tight[waits.last] > tight[waits.first]
        alike: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for wait in np.nonzero(useful)[0]:
            first, last = int(profile.order[waits.first[wait]]), int(profile.order[waits.last[wait]])
            alike.setdefault((self.kinds[first], self.kinds[last], int(sizes[wait])), []).append((first, last))
        return alike

    def _shortened(self, profile: Profile, waits: Sequence[tuple[int, int]], moves_up: bool) -> Profile | None:
        """Return the order with some waits made as short as possible, None if that changes nothing."""
        order, position = profile.order, profile.position
        for first, last in waits:
            begin, end = int(position[first]), int(position[last])
            if end <= begin + 1:
                continue
            if moves_up:
                moved = self.mover.pull(order, position, [end], begin + 1)
            else:
                moved = self.mover.push(order, position, begin, end)
            if moved is not None:
                order, position = moved, self.lives.position(moved)
        return self.lives.profile(order) if order is not profile.order else None

    def _kicked(self, profile: Profile) -> Profile | None:
        """Return the order after a few random moves."""
        result = None
        for _ in range(self.random.randint(1, KICKS)):
            alike = self._tight_waits(profile)
            if not alike:
                break
            waits = alike[self.random.choice(sorted(alike))]
            moved = self._shortened(profile, [self.random.choice(waits)], self.random.random() < 0.5)
            if moved is not None:
                result = profile = moved
        self.work += WORK_PER_TRIAL
        return result


def _kinds(lives: Lifetimes, mover: Mover) -> list[int]:
    """Return a number for each node, the same for nodes that look alike and have neighbours that look alike."""
    looks: list[tuple[object, ...]] = [
        (node.op_type, tuple(int(lives.sizes[value]) for value in lives.writes[number]), int(lives.workspace[number]))
        for number, node in enumerate(lives.nodes)
    ]
    kinds = _numbered(looks)
    for _ in range(CLASS_ROUNDS):
        looks = [
            (
                kinds[node],
                tuple(sorted(kinds[other] for other in mover.before[node])),
                tuple(sorted(kinds[other] for other in mover.behind[node])),
            )
            for node in range(len(kinds))
        ]
        kinds = _numbered(looks)
    return kinds


def _numbered(looks: Sequence[tuple[object, ...]]) -> list[int]:
    numbers: dict[tuple[object, ...], int] = {}
    return [numbers.setdefault(look, len(numbers)) for look in looks]
