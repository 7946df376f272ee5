"""More budget or a later deadline never costs more energy, and every plan keeps both: grids of limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from random_graphs import random_dag

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.errors import CheckFailedError, InfeasibleError, LimitReachedError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.plan import Plan, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.simulate import simulate
from proofs.finding import FAILED, Finding

PLACES = (0.0, 0.3, 0.6, 0.95)
"""Budgets, between the smallest that works and the ordered peak."""

SLACKS = (None, 1.05, 1.3)
"""Deadlines, as multiples of the computations' time."""


@dataclass(frozen=True, slots=True)
class _Point:
    """What was found for a budget and a deadline."""

    limits: Limits
    plan: Plan | None


def check_monotone(seed: int) -> list[Finding]:
    """Check the grid of a random graph."""
    graph, costs = random_dag(seed, 8 + seed * 5 % 33)
    return check_grid(ScheduleProblem(graph, costs), "random graph", f"seed {seed}", time_limit_seconds=2.0)


def check_model(path: Path, device: str, *, time_limit_seconds: float = 4.0) -> list[Finding]:
    """Check the grid of a training model on a device."""
    model = load_model(path)
    normalize()(model)
    graph = extract(model)
    group = f"{path.parent.name} on {device}"
    problem = ScheduleProblem(graph, cost_table(graph, load_device(device)))
    return check_grid(problem, group, group, time_limit_seconds=time_limit_seconds)


def check_grid(
    problem: ScheduleProblem, group: str, case: str, *, time_limit_seconds: float, places: Sequence[float] = PLACES
) -> list[Finding]:
    """Plan a grid of budgets and deadlines; return what is wrong with each point and each pair of points."""
    order = memory_aware_order(problem)
    alone = simulate(problem, ordered_steps(order))
    smallest = smallest_budget(problem, order).budget_bytes
    budgets = sorted({smallest + int((alone.transient_peak_bytes - smallest) * place) for place in places})
    limits = [
        Limits(budget, slack and slack * alone.seconds) for budget in budgets for slack in sorted(SLACKS, key=_rank)
    ]
    points = list(_points(problem, order, limits, time_limit_seconds))
    found = [
        Finding("monotone", group, _about_point(problem, point), 0.0, f"{case}: {_name(point)}") for point in points
    ]
    for one, other in combinations(points, 2):
        outcome, rise = _about_pair(one, other)
        if outcome:
            found.append(Finding("monotone", group, outcome, rise, f"{case}: {_name(one)} and {_name(other)}"))
    return found


def _rank(slack: float | None) -> float:
    return float("inf") if slack is None else slack


def _points(
    problem: ScheduleProblem,
    order: tuple[str, ...],
    all_limits: Sequence[Limits],
    time_limit_seconds: float,
) -> Iterator[_Point]:
    """Plan for many limits, from the tightest on, each with the plans found before at hand."""
    known: list[tuple[Step, ...]] = []
    for limits in all_limits:
        try:
            plan = schedule(problem, limits, time_limit_seconds=time_limit_seconds, order=order, known=known)
        except (InfeasibleError, LimitReachedError):
            yield _Point(limits, None)
            continue
        known.append(plan.steps)
        yield _Point(limits, plan)


def _name(point: _Point) -> str:
    return f"{point.limits.budget_bytes} bytes in {point.limits.deadline_seconds} s"


def _about_point(problem: ScheduleProblem, point: _Point) -> str:
    if point.plan is None:
        return "no plan" if point.limits.deadline_seconds is not None else f"{FAILED}: no plan, and no deadline"
    try:
        prediction = simulate(problem, point.plan.steps, point.limits)
    except CheckFailedError as error:
        return f"{FAILED}: {error}"
    return "a plan" if prediction == point.plan.prediction else f"{FAILED}: other figures than the simulator's"


def _about_pair(one: _Point, other: _Point) -> tuple[str, float]:
    """Return what is wrong, if anything, where one of two points has the tighter limits."""
    for tight, wide in ((one, other), (other, one)):
        later = tight.limits.latest_seconds <= wide.limits.latest_seconds
        if tight.limits.transient_bytes > wide.limits.transient_bytes or not later or tight.plan is None:
            continue
        if wide.plan is None:
            return f"{FAILED}: wider limits, and no plan", 0.0
        rise = wide.plan.prediction.energy_joules - tight.plan.prediction.energy_joules
        if rise > 0:
            return f"{FAILED}: wider limits, and more energy", rise / tight.plan.prediction.energy_joules
    return "", 0.0
