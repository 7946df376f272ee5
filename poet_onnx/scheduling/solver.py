"""SCIP: solves the formulation, reports progress, and stops at a gap, a time limit or Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import metadata

from pyscipopt import Eventhdlr, Model, Variable, quicksum
from pyscipopt.scip import PY_SCIP_EVENTTYPE

from poet_onnx.scheduling.formulation import Formulation, Row
from poet_onnx.scheduling.outcome import Limits, Outcome, Progress

OBJECTIVE_SCALE = 1e4
"""The base energy in the units that SCIP sees, which keeps its tolerances far below what matters."""


def solver_name() -> str:
    """Return the solver's name and version."""
    return f"SCIP {Model().version()} (PySCIPOpt {metadata.version('pyscipopt')})"


def solve(
    model: Formulation,
    base_joules: float,
    limits: Limits,
    *,
    start: Sequence[float] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Minimise the overhead energy.

    Returns:
        The outcome; its status is "optimal", "time_limit", "interrupted" or "infeasible".
    """
    scale = OBJECTIVE_SCALE / base_joules
    scip, variables = _build(model, [cost * scale for cost in model.cost], limits)
    _add_start(scip, variables, start)
    _Reporter.attach(scip, base_joules, scale, progress)
    begin = time.monotonic()
    overhead_gap = limits.overhead_gap
    while True:
        scip.setParam("limits/gap", overhead_gap)
        scip.setParam("limits/time", max(0.1, limits.time_limit_seconds - (time.monotonic() - begin)))
        scip.optimize()
        status = scip.getStatus()
        if status != "gaplimit":
            break
        objective, bound = scip.getPrimalbound() / scale, scip.getDualbound() / scale
        allowed = limits.gap * (base_joules + objective)
        wanted = min(allowed, limits.overhead_gap * objective)
        if objective - bound <= wanted * (1 + 1e-6):
            break
        overhead_gap = min(overhead_gap / 2, max(wanted / max(bound, 1e-12), 1e-9))
    return _outcome(scip, variables, scale, status)


def least_budget(model: Formulation, *, time_limit_seconds: float) -> tuple[float, float, tuple[float, ...] | None]:
    """Find the smallest budget with which the formulation is feasible, its memory rows' right-hand sides moving along.

    Returns:
        (smallest budget found or infinity, proven lower bound, the assignment), in bytes.
    """
    limits = Limits(gap=0.001, overhead_gap=0.001, time_limit_seconds=time_limit_seconds)
    scip, variables = _build(model, [0.0] * len(model.cost), limits, memory=False)
    unit = max(1.0, model.budget_bytes / 1000.0)
    budget = scip.addVar("budget", vtype="C", lb=model.fixed_bytes / unit, obj=1.0)
    for row in model.memory:
        fixed = model.budget_bytes - (row.high or 0.0)
        terms = quicksum(size / unit * variables[variable] for variable, size in row.terms.items())
        scip.addCons(terms + fixed / unit <= budget)
    scip.setParam("limits/gap", 0.001)
    scip.setParam("limits/time", time_limit_seconds)
    scip.optimize()
    found = scip.getNSols() > 0
    x = tuple(float(round(scip.getVal(variable))) for variable in variables) if found else None
    return (scip.getPrimalbound() * unit if found else float("inf")), scip.getDualbound() * unit, x


def _build(
    model: Formulation, objective: Sequence[float], limits: Limits, *, memory: bool = True
) -> tuple[Model, list[Variable]]:
    scip = Model("schedule")
    scip.hideOutput()
    scip.setParam("timing/clocktype", 2)
    scip.setParam("randomization/randomseedshift", limits.seed)
    variables = [
        scip.addVar(f"x{number}", vtype="B" if binary else "C", lb=0.0, ub=1.0, obj=objective[number])
        for number, binary in enumerate(model.binary)
    ]
    for row in model.rows:
        _add_row(scip, variables, row, 1.0)
    for row in model.memory if memory else ():
        _add_row(scip, variables, row, 1000.0 / max(model.budget_bytes, 1))
    return scip, variables


def _add_row(scip: Model, variables: Sequence[Variable], row: Row, factor: float) -> None:
    terms = quicksum(coefficient * factor * variables[number] for number, coefficient in row.terms.items())
    if not row.terms:
        terms = 0.0 * variables[0]
    if row.low is not None and row.low == row.high:
        scip.addCons(terms == row.low * factor)
        return
    if row.low is not None:
        scip.addCons(terms >= row.low * factor)
    if row.high is not None:
        scip.addCons(terms <= row.high * factor)


def _add_start(scip: Model, variables: Sequence[Variable], start: Sequence[float] | None) -> None:
    if start is None:
        return
    solution = scip.createSol()
    for variable, level in zip(variables, start, strict=True):
        scip.setSolVal(solution, variable, level)
    scip.addSol(solution)


def _outcome(scip: Model, variables: Sequence[Variable], scale: float, status: str) -> Outcome:
    names = {"optimal": "optimal", "gaplimit": "optimal", "userinterrupt": "interrupted", "infeasible": "infeasible"}
    x = None
    if scip.getNSols() > 0:
        best = scip.getBestSol()
        x = tuple(scip.getSolVal(best, variable) for variable in variables)
    bound = max(0.0, scip.getDualbound() / scale)
    return Outcome(names.get(status, "time_limit"), x, bound, scip.getNTotalNodes())


class _Reporter(Eventhdlr):
    """Calls back with incumbent and bound, at most four times a second."""

    def __init__(self, base_joules: float, scale: float, progress: Callable[[Progress], None]) -> None:
        self.base_joules = base_joules
        self.scale = scale
        self.progress = progress
        self.begin = self.reported = time.monotonic()

    @classmethod
    def attach(cls, scip: Model, base_joules: float, scale: float, progress: Callable[[Progress], None] | None) -> None:
        """Report a model's progress, if anybody wants to know."""
        if progress is not None:
            scip.includeEventhdlr(cls(base_joules, scale, progress), "progress", "reports incumbent and bound")

    def eventinit(self) -> None:
        for event in (PY_SCIP_EVENTTYPE.BESTSOLFOUND, PY_SCIP_EVENTTYPE.NODESOLVED, PY_SCIP_EVENTTYPE.LPSOLVED):
            self.model.catchEvent(event, self)

    def eventexit(self) -> None:
        for event in (PY_SCIP_EVENTTYPE.BESTSOLFOUND, PY_SCIP_EVENTTYPE.NODESOLVED, PY_SCIP_EVENTTYPE.LPSOLVED):
            self.model.dropEvent(event, self)

    def eventexec(self, event: object) -> None:
        now = time.monotonic()
        if now - self.reported < 0.25:
            return
        self.reported = now
        infinity = self.model.infinity()
        primal, dual = self.model.getPrimalbound(), self.model.getDualbound()
        objective = self.base_joules + primal / self.scale if primal < infinity else float("inf")
        bound = self.base_joules + max(0.0, dual / self.scale) if dual > -infinity else self.base_joules
        gap = (objective - bound) / objective if objective < float("inf") else float("inf")
        self.progress(Progress(objective, bound, gap, now - self.begin))
