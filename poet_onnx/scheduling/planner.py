"""The scheduler's front door: a problem in, a checked plan with its certificate out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from poet_onnx.plan import Plan, Step
from poet_onnx.plan.limits import UNLIMITED, Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.incumbent import Bound, Effort, Progress, overhead_gap_of
from poet_onnx.scheduling.liveness import Liveness
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.quick_plan import quick_plan
from poet_onnx.scheduling.refusals import NoneExistsError, NothingFoundError, Terms
from poet_onnx.scheduling.search import Search
from poet_onnx.scheduling.smallest import smallest_budget
from poet_onnx.scheduling.steps import SimulatedPlan


def schedule(
    problem: ScheduleProblem,
    limits: Limits = UNLIMITED,
    *,
    gap: float = 0.01,
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    order: Sequence[str] | None = None,
    baseline: SimulatedPlan | None = None,
    known: Sequence[tuple[Step, ...]] = (),
    worth_joules: float = math.inf,
    baseline_bound_joules: float = 0.0,
    explains: bool = True,
) -> Plan:
    """Find the plan of least energy within limits.

    Args:
        problem: what to plan.
        limits: what the plan must keep to.
        gap: stop when (energy - bound) / energy is at most this.
        time_limit_seconds: of the solver; the best plan found by then is returned.
        seed: of the solver.
        progress: called with a `Progress` while the solver works.
        order: of the nodes; if not given, the best one found for the budget.
        baseline: the nodes in the memory-aware order, if it was made and simulated before.
        known: steps of plans found before, for other limits; no plan is returned that spends more than one of them
            which keeps these limits. With an order given, plans in other orders are not looked at.
        worth_joules: the search ends where no plan spends less; what it has found by then, if anything, is the answer.
        baseline_bound_joules: what no plan in the memory-aware order spends less than, if that was worked out before.
        explains: where no plan is found, look for the smallest budget, which takes a while: its plan is the answer
            where it keeps the limits, and what would do otherwise. Without that, `NoneExistsError` or
            `NothingFoundError` is raised, and can be asked.

    Raises:
        InfeasibleError: if no plan keeps to the limits; it says what would do.
        LimitReachedError: if the time limit came before any plan was found.
    """
    effort = Effort(gap, overhead_gap_of(gap), time_limit_seconds, seed, known_joules=worth_joules)
    if order is None:
        baseline = baseline or SimulatedPlan.in_order(problem, memory_aware_order(problem))
    search = Search.beginning(problem, limits, effort, progress, baseline).knowing(known)
    search = replace(search, least=baseline_bound_joules)
    in_order = None if order is None else tuple(order)
    try:
        relaxed = search.with_any_transfers(known, in_order)
        if relaxed is not None and not any(limits.broken_by(relaxed.prediction)):
            return replace(relaxed, limits=limits)
        if relaxed is not None and relaxed.certificate.status == "interrupted":
            return search.interrupted()
        return replace(search, relaxed=relaxed).best(in_order)
    except (NoneExistsError, NothingFoundError) as failure:
        if isinstance(failure, NothingFoundError):
            failure.seconds = time.monotonic() - search.begin
        if not explains:
            raise
        first = in_order or search.baseline_order
        smallest = smallest_budget(problem, first, limits=limits, in_order=in_order is not None)
        if smallest.plan is not None and not any(limits.broken_by(smallest.plan.prediction)):
            return known_plan(problem, limits, smallest.plan, gap=gap, seed=seed)
        terms = Terms(
            "transient budget", limits.transient_bytes, None if smallest.plan is None else smallest.budget_bytes
        )
        raise failure.explained(terms) from None


def known_plan(problem: ScheduleProblem, limits: Limits, known: SimulatedPlan, *, gap: float, seed: int) -> Plan:
    """Return the plan of steps that keep limits; its bound is the energy of computing once."""
    search = Search.beginning(problem, limits, Effort(gap, overhead_gap_of(gap), 0.0, seed))
    return search.plan(known, Bound.base(problem.base_joules))


def plan_quickly(problem: ScheduleProblem, order: Sequence[str], limits: Limits) -> SimulatedPlan | None:
    """Return the best plan of an order of nodes that was found quickly, of which nothing is proven; None for none."""
    return quick_plan(Liveness(problem).in_order(order), limits)
