"""Plans for many budgets and deadlines at once, so that more of either never costs more energy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import Plan, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.planner import schedule


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """What was found for one pair of limits.

    Attributes:
        budget_bytes: bound on the transient peak.
        deadline_seconds: bound on the step time, or None.
        plan: the plan, or None if there is none or none was found.
        reason: why there is no plan; empty if there is one.
    """

    budget_bytes: int
    deadline_seconds: float | None
    plan: Plan | None
    reason: str = ""


def frontier(
    problem: ScheduleProblem,
    limits: Iterable[tuple[int, float | None]],
    *,
    gap: float = 0.01,
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    order: Sequence[str] | None = None,
) -> tuple[FrontierPoint, ...]:
    """Schedule a problem for many limits, from the tightest on, each with the plans found before at hand.

    A plan that keeps tighter limits keeps wider ones too, so the energy never rises with the budget or the deadline,
    whatever gap the single solves leave.

    Args:
        problem: what to plan; its own budget and deadline are not looked at.
        limits: pairs of a budget in bytes and a deadline in seconds (None for none).
        gap: see `schedule`.
        time_limit_seconds: for each pair.
        seed: see `schedule`.
        order: see `schedule`.

    Returns:
        One point for each pair, by budget and then by deadline.
    """
    order = tuple(order) if order is not None else memory_aware_order(problem)
    known: list[tuple[Step, ...]] = []
    points = []
    for budget, deadline in sorted(limits, key=lambda pair: (pair[0], float("inf") if pair[1] is None else pair[1])):
        limited = replace(problem, budget_bytes=budget, deadline_seconds=deadline)
        try:
            plan = schedule(
                limited, gap=gap, time_limit_seconds=time_limit_seconds, seed=seed, order=order, known=known
            )
        except (InfeasibleError, LimitReachedError) as error:
            points.append(FrontierPoint(budget, deadline, None, str(error)))
            continue
        known.append(plan.steps)
        points.append(FrontierPoint(budget, deadline, plan))
    return tuple(points)
