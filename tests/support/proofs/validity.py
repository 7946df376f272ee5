"""Every plan is valid, and so is every plan that was ever offered on the way to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from random_graphs import random_dag

from poet_onnx.errors import CheckFailedError, InfeasibleError, LimitReachedError
from poet_onnx.plan import Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.simulate import simulate
from proofs.finding import FAILED, Finding, replaced

METHODS = {"both": (True, True), "recompute": (True, False), "paging": (False, True)}
DEADLINES = (None, 1.0, 1.1, 1.3)
PLACES = (0.0, 0.2, 0.5, 0.8)


@contextmanager
def watched_incumbents() -> Iterator[list[Incumbent]]:
    """Yield a list that every incumbent of every solve joins."""
    found: list[Incumbent] = []

    class Watched(Incumbent):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            found.append(self)

    with (
        replaced("poet_onnx.scheduling.search", "Incumbent", Watched),
    ):
        yield found


def random_problem(seed: int, most_nodes: int) -> tuple[ScheduleProblem, Limits, tuple[str, ...], str]:
    """Return a random graph with method and kind of storage, budget and deadline, its order, and what it is like."""
    rng = random.Random(seed)
    graph, costs = random_dag(seed, 4 + seed * 7 % (most_nodes - 3))
    method, deadline = list(METHODS)[seed % 3], DEADLINES[seed // 3 % 4]
    asynchronous = seed // 12 % 2 == 0
    recompute, paging = METHODS[method]
    costs = replace(costs, asynchronous=asynchronous)
    problem = ScheduleProblem(graph, costs, recompute=recompute, paging=paging)
    order = memory_aware_order(problem)
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    budget = smallest + int((peak - smallest) * rng.choice(PLACES))
    seconds = None if deadline is None else deadline * sum(cost.seconds for cost in costs.nodes.values())
    kind = "asynchronous" if asynchronous else "synchronous"
    group = f"{method}, {kind}, deadline {'none' if deadline is None else f'{deadline}x'}"
    return problem, Limits(budget, seconds), order, group


def check_validity(seed: int, *, most_nodes: int = 60, time_limit_seconds: float = 3.0) -> list[Finding]:
    """Schedule a random problem; return whether what came of it may be."""
    problem, limits, order, group = random_problem(seed, most_nodes)
    case = f"seed {seed}, {len(order)} nodes, budget {limits.budget_bytes}, deadline {limits.deadline_seconds}"
    with watched_incumbents() as incumbents:
        try:
            plan = schedule(problem, limits, order=order, time_limit_seconds=time_limit_seconds)
        except (InfeasibleError, LimitReachedError) as error:
            outcome = "nothing found in time"
            if isinstance(error, InfeasibleError):
                limited = limits.deadline_seconds is not None
                outcome = "proven infeasible" if limited else f"{FAILED}: infeasible without a deadline"
            found = [Finding("validity", group, outcome, 0.0, case)]
        else:
            outcome, gap = _judge(problem, limits, plan)
            found = [Finding("validity", group, outcome, gap, case)]
    for refused in (reason for incumbent in incumbents for reason in incumbent.refused):
        found.append(Finding("validity", group, f"{FAILED}: refused", 0.0, f"{case}: {refused}"))
    return found


def _judge(problem: ScheduleProblem, limits: Limits, plan: Plan) -> tuple[str, float]:
    """Return the outcome and the gap of a plan."""
    certificate = plan.certificate
    try:
        prediction = simulate(problem, plan.steps, limits)
    except CheckFailedError as error:
        return f"{FAILED}: {error}", 0.0
    if prediction != plan.prediction or certificate.objective_joules != prediction.energy_joules:
        return f"{FAILED}: the plan's figures are not the simulator's", 0.0
    if certificate.bound_joules > certificate.objective_joules:
        return f"{FAILED}: the bound is above the energy", certificate.gap
    if certificate.status == "optimal" and certificate.gap > 0.01 + 1e-9:
        return f"{FAILED}: optimal with a gap", certificate.gap
    return f"valid, {certificate.status}", certificate.gap
