"""This product's scheduler, and the paper's ablations of it (Patil et al. 2022, section 6.4)."""

from __future__ import annotations

import time
from dataclasses import replace

from poet_onnx.choices import POET_PAGING, POET_RECOMPUTE
from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.scheduling.baselines.outcome import Outcome, Task
from poet_onnx.scheduling.planner import schedule
from poet_onnx.scheduling.steps import SimulatedPlan


def planned(task: Task, method: str, *, order: tuple[str, ...] | None) -> Outcome:
    """Return what the scheduler makes of a task.

    Args:
        task: its order is the baseline order; the search for a better one begins there.
        method: the whole of it, or without paging or recompute.
        order: that the plan must have; None for the best that is found.
    """
    problem = task.problem
    recompute, paging = method != POET_PAGING, method != POET_RECOMPUTE
    problem = replace(problem, recompute=problem.recompute and recompute, paging=problem.paging and paging)
    try:
        plan = schedule(
            problem,
            task.limits,
            gap=task.gap,
            time_limit_seconds=max(1.0, task.end - time.monotonic()),
            seed=task.seed,
            progress=task.progress,
            order=order,
            baseline=None if order is not None else SimulatedPlan.in_order(problem, task.order),
            explains=False,
        )
    except (InfeasibleError, LimitReachedError) as error:
        is_proven = isinstance(error, InfeasibleError)
        reason = (
            "No plan that it looks for keeps the limits."
            if is_proven
            else "It found no plan, and no proof that there is none."
        )
        return Outcome(method, None, reason, is_proven=is_proven, solve_seconds=time.monotonic() - task.begin)
    bound = plan.certificate.bound_joules
    proves = f"none of {plan.certificate.covers} spends less than {bound:.6g} J"
    return Outcome(method, plan, proves=proves, bound_joules=bound, solve_seconds=time.monotonic() - task.begin)
