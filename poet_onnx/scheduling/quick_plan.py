"""A quick plan in steps, judged by the simulator: what an order is worth at a budget, without a solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from poet_onnx.plan import Action, Prediction, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.eviction import RAM, STORAGE, Eviction, Prices, evict
from poet_onnx.scheduling.lifetimes import Lifetimes, Profile
from poet_onnx.scheduling.segments import evict_in_segments
from poet_onnx.scheduling.transfers import overlap, spread_out
from poet_onnx.simulate import simulate

MOST_CORRECTIONS = 6
"""Times that the budget is lowered by what tokens and small copies need, which the quick plan does not count."""


@dataclass(frozen=True)
class QuickPlan:
    """Steps that keep to the budget, and the simulator's figures for them; they may miss the deadline."""

    steps: tuple[Step, ...]
    prediction: Prediction

    def rank(self, problem: ScheduleProblem) -> tuple[bool, float]:
        """Return what is better when it is less: whether the plan is late, then its energy."""
        deadline = problem.deadline_seconds
        return deadline is not None and self.prediction.seconds > deadline * (1 + 1e-9), self.prediction.energy_joules


def quick_plan(lives: Lifetimes, prices: Prices, profile: Profile, budget_bytes: int) -> QuickPlan | None:
    """Return the best plan of an order that was found quickly, in time if there is such a one, or None."""
    ways = (_evict_at_peak, _evict_by_area, evict_in_segments)
    plans = [_corrected(lives, prices, profile, budget_bytes, way) for way in ways]
    found = [plan for plan in plans if plan is not None]
    return min(found, key=lambda plan: plan.rank(lives.problem), default=None)


_Way = Callable[[Lifetimes, Prices, Profile, int], Eviction | None]


def _evict_at_peak(lives: Lifetimes, prices: Prices, profile: Profile, budget_bytes: int) -> Eviction | None:
    return _evict(lives, prices, profile, budget_bytes, at_peak=True)


def _evict_by_area(lives: Lifetimes, prices: Prices, profile: Profile, budget_bytes: int) -> Eviction | None:
    return _evict(lives, prices, profile, budget_bytes, at_peak=False)


def _evict(lives: Lifetimes, prices: Prices, profile: Profile, budget_bytes: int, *, at_peak: bool) -> Eviction | None:
    eviction = evict(lives, prices, profile, budget_bytes, at_peak=at_peak)
    if eviction is not None:
        eviction.improve(at_peak=at_peak)
    return eviction


def _corrected(lives: Lifetimes, prices: Prices, profile: Profile, budget_bytes: int, way: _Way) -> QuickPlan | None:
    problem = replace(lives.problem, budget_bytes=budget_bytes, deadline_seconds=None)
    target = budget_bytes
    for _ in range(MOST_CORRECTIONS):
        eviction = way(lives, prices, profile, target)
        if eviction is None:
            return None
        steps = to_steps(eviction)
        peak_bytes = simulate(replace(problem, budget_bytes=None), steps).transient_peak_bytes
        if peak_bytes <= budget_bytes:
            return _placed(lives.problem, problem, steps)
        uncounted = peak_bytes - (target + int(eviction.excess.max(initial=-target)))
        target = min(target - (peak_bytes - budget_bytes), budget_bytes - uncounted)
    return None


def _placed(problem: ScheduleProblem, timeless: ScheduleProblem, steps: tuple[Step, ...]) -> QuickPlan:
    """Place transfers; thoroughly, which takes long, only where that could save energy or make the plan be in time."""
    steps = spread_out(timeless, steps) if problem.costs.asynchronous else steps
    plan = QuickPlan(steps, simulate(timeless, steps))
    late, _ = plan.rank(problem)
    if not plan.prediction.stall_seconds or not (late or problem.costs.idle_watts):
        return plan
    steps = overlap(timeless, steps)
    return QuickPlan(steps, simulate(timeless, steps))


def to_steps(eviction: Eviction) -> tuple[Step, ...]:
    """Return the steps of a quick plan, each transfer's halves side by side."""
    return tuple(_Writer(eviction).steps())


class _Writer:
    def __init__(self, eviction: Eviction) -> None:
        self.lives = eviction.lives
        self.last_use = eviction.profile.last_use
        self.order = eviction.profile.order
        self.leaving: set[int] = set()
        self.arriving: dict[int, dict[int, int]] = {}
        for wait in range(eviction.count):
            home = int(eviction.home[wait])
            value = int(eviction.value[wait])
            if home != RAM:
                self.arriving.setdefault(int(eviction.last[wait]), {})[value] = home
            if home == STORAGE:
                self.leaving.add(value)
        self.copies = [0] * len(self.order)

    def steps(self) -> Iterator[Step]:
        for place, node in enumerate(self.order.tolist()):
            pending = self.arriving.get(place, {})
            there: set[int] = set()
            for value in sorted(pending):
                yield from self._supply(value, place, pending, there)
            yield Step(Action.COMPUTE, self.lives.names[node])
            for value in self.lives.writes[node]:
                if value in self.leaving:
                    name = self.lives.values[value]
                    yield Step(Action.PAGE_OUT_START, name)
                    yield Step(Action.PAGE_OUT_END, name)

    def _supply(self, value: int, place: int, pending: dict[int, int], there: set[int]) -> Iterator[Step]:
        """Bring a value back before a place, behind all that its node reads if it is made again."""
        if value in there:
            return
        there.add(value)
        if pending.get(value) == STORAGE:
            yield Step(Action.PAGE_IN_START, self.lives.values[value])
            yield Step(Action.PAGE_IN_END, self.lives.values[value])
            return
        maker = int(self.lives.maker[value])
        for read in self.lives.reads[maker]:
            if read in pending or self.last_use[read] < place:
                yield from self._supply(read, place, pending, there)
        there.update(self.lives.writes[maker])
        self.copies[maker] += 1
        yield Step(Action.COMPUTE, self.lives.names[maker], self.copies[maker])
