"""The paper's own program, as the product has it."""

from __future__ import annotations

from benchmark.result import Effort, Point, Size, Solved
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import plan_with

PAPER = "poet-paper"
"""Its name."""


def solve_paper(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort) -> Solved:
    """Take what the program makes of an order for the answer."""
    outcome = plan_with(
        PAPER,
        problem,
        limits,
        time_limit_seconds=effort.time_limit_seconds,
        gap=effort.gap,
        seed=effort.seed,
        order=order,
    )
    bound = outcome.bound_joules or 0.0
    if outcome.plan is None:
        status = "infeasible" if outcome.is_proven else "no plan"
        return Solved(status, None, 0.0, Size(0, 0), 0.0, outcome.solve_seconds, (), outcome.reason)
    energy = outcome.plan.prediction.energy_joules
    is_optimal = bound > 0 and energy - bound <= effort.gap * energy * (1 + 1e-6) + 1e-9 * energy
    status = "optimal" if is_optimal else "time_limit" if bound > 0 else "heuristic"
    seconds = outcome.solve_seconds
    trace = (Point(seconds, energy, bound),)
    return Solved(status, outcome.plan.steps, bound, Size(0, 0), 0.0, seconds, trace, outcome.proves)
