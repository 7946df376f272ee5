"""The greedy start alone: what the product has before any solver runs."""

from __future__ import annotations

import time

from benchmark.ours import build_model
from benchmark.result import Limits, Size, Solved
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.lowering import to_steps
from poet_onnx.scheduling.starts import greedy_start


def solve_greedy(problem: ScheduleProblem, order: tuple[str, ...], limits: Limits) -> Solved:
    """Build the product's model and take the greedy start for its answer."""
    begin = time.monotonic()
    model = build_model(problem, order)
    size = Size(len(model.cost), len(model.rows) + len(model.memory.room))
    built = time.monotonic()
    if problem.budget_bytes is not None and model.memory.fixed_bytes > problem.budget_bytes:
        return Solved("infeasible", None, 0.0, size, built - begin, 0.0, (), "what must stay in RAM exceeds the budget")
    start = greedy_start(model)
    steps = to_steps(model, model.complete(model.supplies(start))) if start is not None else None
    return Solved("heuristic", steps, 0.0, size, built - begin, time.monotonic() - built, (), "no bound")
