"""What the step of a rewritten model would take with other budgets: plans that are found quickly, with what is proven.

Nothing but the model is needed. All plans are of its graph, with its costs and its other limits. Their work is counted,
not timed, so the same model always gets the same plans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from poet_onnx.plan import Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.reporting.budget_point import BudgetPoint
from poet_onnx.reporting.rewritten import RewrittenStep
from poet_onnx.scheduling import (
    Progress,
    SimulatedPlan,
    least_overhead_in_order,
    memory_aware_order,
    plan_quickly,
)

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Budgets that are looked at, as shares of what the best order needs; of large graphs every second one."""

LARGE_GRAPH_NODES = 5000
"""Here a plan takes seconds (a decoder of 12,352 nodes: 5 s)."""


@dataclass(frozen=True)
class _Found:
    """A plan, and energy that no other one in its order stays below which keeps to no more memory."""

    plan: SimulatedPlan
    bound_joules: float

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.bound_joules / self.plan.joules) if self.plan.joules else 0.0


def other_budgets(
    step: RewrittenStep, process_bytes: int, progress: Callable[[Progress], None] | None = None
) -> tuple[BudgetPoint, ...]:
    """Return plans for other budgets, smallest first, each with more memory and less energy than the one before.

    The plan of the model itself is among them, unless another one with less memory spends no more.

    Args:
        step: of the model.
        process_bytes: what its process takes.
        progress: told before each search.
    """
    problem, limits, begin = _allowed(step), step.plan.limits, time.monotonic()
    own = SimulatedPlan(step.plan.steps, step.replayed.prediction)
    ordered = SimulatedPlan.in_order(problem, memory_aware_order(problem))
    found = [_Found(own, _own_bound_joules(step.plan, problem)), _Found(ordered, problem.base_joules)]
    orders = tuple(dict.fromkeys((own.order, ordered.order)))
    is_large = len(problem.graph.nodes) > LARGE_GRAPH_NODES
    for share in SHARES[1::2] if is_large else SHARES:
        if progress is not None:
            progress(Progress.looking(f"planning for {share:.0%} of the memory", time.monotonic() - begin))
        best = _best(problem, orders, limits.within(int(share * ordered.prediction.transient_peak_bytes)))
        if best is None:
            break  # with less memory it is only harder
        found.append(best)
    beside_bytes = process_bytes - own.prediction.transient_peak_bytes
    kept = _worth_it(each for each in found if not any(limits.within(None).broken_by(each.plan.prediction)))
    return tuple(_point(each, beside_bytes, is_own=each.plan is own) for each in kept)


def _allowed(step: RewrittenStep) -> ScheduleProblem:
    """Return the problem with the means that the model's plan was allowed, as far as its certificate tells them."""
    covers = step.plan.certificate.covers
    if not covers.in_order:
        return step.problem
    return replace(step.problem, recompute=covers.recompute, paging=covers.paging and step.problem.paging)


def _own_bound_joules(plan: Plan, problem: ScheduleProblem) -> float:
    certificate = plan.certificate
    return problem.base_joules if certificate.status == "other_costs" else certificate.bound_joules


def _best(problem: ScheduleProblem, orders: Sequence[tuple[str, ...]], limits: Limits) -> _Found | None:
    """Return the plan of some orders that takes the least energy within limits, and its bound; None without one."""
    quick = [plan for order in orders if (plan := plan_quickly(problem, order, limits)) is not None]
    best = min(quick, key=lambda plan: plan.rank(limits), default=None)
    if best is None:
        return None
    return _Found(best, problem.base_joules + least_overhead_in_order(problem, limits, best.order))


def _worth_it(found: Iterable[_Found]) -> list[_Found]:
    """Return the plans that spend less than all which need no more memory, those with the least memory first."""
    kept: list[_Found] = []
    for each in sorted(found, key=lambda each: (each.plan.prediction.transient_peak_bytes, each.plan.joules)):
        if not kept or each.plan.joules < kept[-1].plan.joules:
            kept.append(each)
    return kept


def _point(found: _Found, beside_bytes: int, *, is_own: bool) -> BudgetPoint:
    prediction = found.plan.prediction
    return BudgetPoint(
        **BudgetPoint.taken_over(prediction),
        process_bytes=max(0, beside_bytes + prediction.transient_peak_bytes),
        gap=found.gap,
        is_own=is_own,
    )
