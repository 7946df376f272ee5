"""The paper's form solved by HiGHS. Never import this where OR-Tools is imported: both bring the same library."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import highspy

from benchmark.linear import write_mps
from benchmark.paper_form import paper_form
from benchmark.paper_scip import NOTE, refuse_size, scales
from benchmark.result import INFINITY, Effort, Point, Size, Solved
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem

_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
}


def solve_paper_highs(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort) -> Solved:
    """Build and solve the program."""
    begin = time.monotonic()
    too_large = refuse_size(problem, order)
    if too_large is not None:
        return too_large
    form = paper_form(problem, limits, order)
    size = Size(len(form.model.cost), len(form.model.rows))
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "paper.mps")
        write_mps(form.model, path)
        highs.readModel(str(path))
    unit, views = scales(problem)
    highs.setOptionValue("time_limit", effort.time_limit_seconds)
    highs.setOptionValue("mip_rel_gap", effort.gap)
    highs.setOptionValue("threads", effort.threads)
    highs.setOptionValue("random_seed", effort.seed)
    points: list[Point] = []

    def note_down(event: highspy.HighsCallbackEvent) -> None:
        primal, dual = event.data_out.mip_primal_bound, event.data_out.mip_dual_bound
        objective = views + primal * unit if primal < highspy.kHighsInf else INFINITY
        bound = max(0.0, views + dual * unit) if dual > -highspy.kHighsInf else 0.0
        if not points or (points[-1].objective_joules, points[-1].bound_joules) != (objective, bound):
            points.append(Point(time.monotonic() - begin, objective, bound))

    highs.cbMipInterrupt += note_down
    built = time.monotonic()
    highs.run()
    solved = time.monotonic()
    info = highs.getInfo()
    status = _STATUS.get(highs.getModelStatus(), "time_limit")
    steps = None
    objective = INFINITY
    if info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible):
        found = highs.getSolution().col_value
        column = dict(zip(highs.getLp().col_names_, found, strict=True))
        steps = form.steps(lambda number: column.get(f"x{number}", 0.0))
        objective = views + info.objective_function_value * unit
    dual = info.mip_dual_bound
    bound = max(0.0, views + dual * unit) if abs(dual) < highspy.kHighsInf and status != "infeasible" else 0.0
    points.append(Point(solved - begin, objective, bound))
    return Solved(status, steps, bound, size, built - begin, solved - built, tuple(points), NOTE)
