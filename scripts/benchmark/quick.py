"""The quick plan alone: what the product has before any solver runs."""

from __future__ import annotations

import time

from benchmark.result import Effort, Size, Solved
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.liveness import Liveness
from poet_onnx.scheduling.quick_plan import quick_plan


def solve_quick(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort) -> Solved:
    """Take the quick plan of an order for the answer."""
    begin = time.monotonic()
    liveness = Liveness(problem)
    plan = quick_plan(liveness.in_order(order), limits)
    steps = None if plan is None else plan.steps
    return Solved("heuristic", steps, 0.0, Size(0, 0), 0.0, time.monotonic() - begin, (), "no bound")
