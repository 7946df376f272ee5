"""The product's scheduler."""

from __future__ import annotations

import time

from benchmark.result import Effort, Point, Size, Solved
from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import Progress, schedule
from poet_onnx.scheduling.limit_rows import relaxed_timing
from poet_onnx.scheduling.liveness import build_instance
from poet_onnx.scheduling.model import Formulation, formulate


def solve_ours(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort) -> Solved:
    """Schedule the problem; the model is built once more beforehand, for its size and the time that building takes."""
    built = time.monotonic()
    model = build_model(problem, limits, order)
    build_seconds = time.monotonic() - built
    size = Size(len(model.cost), len(model.rows) + len(model.memory.room))
    points: list[Point] = []
    begin = time.monotonic()

    def note_down(progress: Progress) -> None:
        points.append(Point(time.monotonic() - begin, progress.objective_joules, progress.bound_joules))

    try:
        plan = schedule(
            problem,
            limits,
            gap=effort.gap,
            time_limit_seconds=effort.time_limit_seconds,
            seed=effort.seed,
            progress=note_down,
            order=order,
        )
    except (InfeasibleError, LimitReachedError) as error:
        status = "infeasible" if isinstance(error, InfeasibleError) else "time_limit"
        seconds = max(build_seconds, time.monotonic() - begin)
        return Solved(status, None, 0.0, size, build_seconds, seconds - build_seconds, tuple(points), str(error))
    seconds = max(build_seconds, time.monotonic() - begin)
    certificate = plan.certificate
    points.append(Point(seconds, certificate.objective_joules, certificate.bound_joules))
    return Solved(
        certificate.status,
        plan.steps,
        certificate.bound_joules,
        size,
        build_seconds,
        seconds - build_seconds,
        tuple(points),
    )


def build_model(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...]) -> Formulation:
    """Build the product's own model of a problem that has a budget."""
    instance = build_instance(problem, order)
    return formulate(instance, limits, relaxed_timing(instance, limits))
