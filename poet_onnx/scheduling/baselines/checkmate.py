"""Optimal recompute: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization" (2020).

Least time within a memory budget, recompute alone, in the order that is given, by a mixed-integer program. Theirs has
n x n variables, and SCIP finds nothing for minutes on graphs of a hundred nodes. So this product's compact model of the
same decisions is solved, with time in the place of energy and without paging. It leaves out some plans of theirs; where
theirs is small, it is solved too, as it was written. What is proven is proven of the program that was solved last.
"""

from __future__ import annotations

import time
from dataclasses import replace

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.baselines.linear import solve
from poet_onnx.scheduling.baselines.outcome import Task
from poet_onnx.scheduling.baselines.paper_form import SCALE, estimate_size, paper_form
from poet_onnx.scheduling.liveness import Instance, build_instance
from poet_onnx.scheduling.planner import schedule

AS_WRITTEN = 3_000
"""Variables up to which the program is solved as it was written, too: seconds of SCIP, mostly."""


def offer(task: Task) -> str:
    """Offer the plan of least time."""
    problem, limits = in_seconds(task.problem), Limits(task.limits.budget_bytes)
    _solve_compact(task, problem, limits)
    instance = build_instance(problem, task.order)
    if estimate_size(instance) <= AS_WRITTEN:
        _solve_as_written(task, instance, limits)
    if task.is_proven:
        return "Its program has no solution."
    if task.closest is not None and task.proves:
        return "The plan that it found keeps the budget, but not the other limits, which its program does not know."
    return "It found no solution of its program in time."


def in_seconds(problem: ScheduleProblem) -> ScheduleProblem:
    """Return the problem with recompute alone, where a joule is a second."""
    costs = problem.costs
    nodes = {name: replace(cost, joules=cost.seconds) for name, cost in costs.nodes.items()}
    return replace(problem, costs=replace(costs, nodes=nodes, idle_watts=0.0), paging=False)


def _solve_compact(task: Task, problem: ScheduleProblem, limits: Limits) -> None:
    try:
        plan = schedule(
            problem,
            limits,
            gap=task.gap,
            time_limit_seconds=max(1.0, task.end - time.monotonic()),
            seed=task.seed,
            order=task.order,
            explains=False,
        )
    except InfeasibleError:
        task.is_proven = True
    except LimitReachedError:
        return
    else:
        _take(task, plan.certificate.bound_joules)
        task.offer(plan.steps)


def _solve_as_written(task: Task, instance: Instance, limits: Limits) -> None:
    form = paper_form(instance, limits)
    solution = solve(form.model, gap=task.gap, end=task.end, seed=task.seed)
    task.is_proven = solution.is_infeasible
    if solution.values is not None:
        _take(task, form.views_joules + solution.bound * instance.problem.base_joules / SCALE)
        task.offer(form.steps(solution.values))


def _take(task: Task, seconds: float) -> None:
    task.proves = f"none of its program's plans takes less than {seconds:.6g} s"
