"""The paper's form solved by SCIP."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from pyscipopt import Eventhdlr, Model
from pyscipopt.scip import PY_SCIP_EVENTTYPE

from benchmark.linear import LinearModel, write_mps
from benchmark.paper_form import estimate_size, paper_form
from benchmark.prices import Prices
from benchmark.result import INFINITY, Effort, Point, Size, Solved
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem

LARGEST_MODEL = 1_500_000
"""Variables above which the program is not built: reading it alone takes longer than a solve may."""


class _Trace(Eventhdlr):
    """Writes incumbent and bound down whenever one of them may have changed."""

    def __init__(self, points: list[Point], unit_joules: float, views_joules: float, begin: float) -> None:
        self.points = points
        self.unit_joules = unit_joules
        self.views_joules = views_joules
        self.begin = begin

    def eventinit(self) -> None:
        for event in (PY_SCIP_EVENTTYPE.BESTSOLFOUND, PY_SCIP_EVENTTYPE.NODESOLVED, PY_SCIP_EVENTTYPE.LPSOLVED):
            self.model.catchEvent(event, self)

    def eventexit(self) -> None:
        for event in (PY_SCIP_EVENTTYPE.BESTSOLFOUND, PY_SCIP_EVENTTYPE.NODESOLVED, PY_SCIP_EVENTTYPE.LPSOLVED):
            self.model.dropEvent(event, self)

    def eventexec(self, event: object) -> None:
        primal, dual, infinity = self.model.getPrimalbound(), self.model.getDualbound(), self.model.infinity()
        objective = self.views_joules + primal * self.unit_joules if primal < infinity else INFINITY
        bound = max(0.0, self.views_joules + dual * self.unit_joules)
        last = self.points[-1] if self.points else None
        if last is None or (last.objective_joules, last.bound_joules) != (objective, bound):
            self.points.append(Point(time.monotonic() - self.begin, objective, bound))


def solve_paper_scip(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort) -> Solved:
    """Build and solve the program."""
    begin = time.monotonic()
    too_large = refuse_size(problem, order)
    if too_large is not None:
        return too_large
    form = paper_form(problem, limits, order)
    scip = Model("paper")
    scip.hideOutput()
    read_mps(scip, form.model)
    size = Size(len(form.model.cost), len(form.model.rows))
    unit, views = scales(problem)
    points: list[Point] = []
    scip.includeEventhdlr(_Trace(points, unit, views, begin), "trace", "writes incumbent and bound down")
    scip.setParam("timing/clocktype", 2)
    scip.setParam("randomization/randomseedshift", effort.seed)
    scip.setParam("limits/time", effort.time_limit_seconds)
    scip.setParam("limits/gap", effort.gap)
    built = time.monotonic()
    scip.optimize()
    names = {"optimal": "optimal", "gaplimit": "optimal", "infeasible": "infeasible"}
    status = names.get(scip.getStatus(), "time_limit")
    steps = None
    if scip.getNSols() > 0:
        values = {variable.name: scip.getVal(variable) for variable in scip.getVars()}
        steps = form.steps(lambda number: values.get(f"x{number}", 0.0))
    bound = max(0.0, views + scip.getDualbound() * unit) if status != "infeasible" else 0.0
    points.append(_last_point(scip, unit, views, begin))
    return Solved(status, steps, bound, size, built - begin, time.monotonic() - built, tuple(points), NOTE)


NOTE = "written out one stage late at the earliest; a value read back is there for the whole stage; no start"


def read_mps(scip: Model, model: LinearModel) -> None:
    """Give a model to SCIP through a file, which is much faster than row by row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "paper.mps")
        write_mps(model, path)
        scip.readProblem(str(path))


def refuse_size(problem: ScheduleProblem, order: tuple[str, ...]) -> Solved | None:
    """Return the result for a problem whose program is too large to build, None if it is not."""
    variables = estimate_size(problem, order)
    if variables <= LARGEST_MODEL:
        return None
    note = f"not built: about {variables:,} variables"
    return Solved("too_large", None, 0.0, Size(variables, 0), 0.0, 0.0, (), note)


def scales(problem: ScheduleProblem) -> tuple[float, float]:
    """Return joules in one unit of the program's objective, and the joules of views, which it leaves out."""
    prices = Prices(problem)
    views = sum(prices.compute(node.name) for node in problem.graph.nodes if node.view)
    return prices.base / 1000.0, views


def _last_point(scip: Model, unit_joules: float, views_joules: float, begin: float) -> Point:
    primal = scip.getPrimalbound()
    objective = views_joules + primal * unit_joules if primal < scip.infinity() else INFINITY
    bound = max(0.0, views_joules + scip.getDualbound() * unit_joules)
    return Point(time.monotonic() - begin, objective, bound)
