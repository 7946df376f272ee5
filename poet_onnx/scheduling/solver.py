"""SCIP: solves the formulation, reports progress, and stops at a gap, a time limit or Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import metadata

from pyscipopt import Eventhdlr, Model, Variable, quicksum
from pyscipopt.scip import PY_SCIP_EVENTTYPE, Event

from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.scheduling.memory import Row
from poet_onnx.scheduling.outcome import Limits, Outcome

OBJECTIVE_SCALE = 1e4
"""The base energy in the units that SCIP sees, which keeps its tolerances far below what matters."""

POLISH_WORK = 400_000
"""Variables times nodes that the solver goes on for when the asked gap is reached."""

_EVENTS = (PY_SCIP_EVENTTYPE.BESTSOLFOUND, PY_SCIP_EVENTTYPE.NODESOLVED, PY_SCIP_EVENTTYPE.LPSOLVED)


def solver_name() -> str:
    """Return the solver's name and version."""
    return f"SCIP {Model().version()} (PySCIPOpt {metadata.version('pyscipopt')})"


def solve(model: Formulation, incumbent: Incumbent, limits: Limits, *, start: Sequence[float] | None = None) -> Outcome:
    """Minimise the overhead energy, telling the incumbent of every assignment and bound on the way.

    Returns:
        The outcome; its status is "optimal", "time_limit", "interrupted" or "infeasible".
    """
    base_joules = incumbent.base_joules
    scale = OBJECTIVE_SCALE / base_joules
    scip, variables = _build(model, [cost * scale for cost in model.cost], limits)
    _add_start(scip, variables, start)
    scip.includeEventhdlr(_Watcher(model, variables, scale, incumbent), "watcher", "hands on what is found")
    begin = time.monotonic()
    overhead_gap = limits.overhead_gap
    while True:
        scip.setParam("limits/gap", overhead_gap)
        scip.setParam("limits/time", max(0.1, limits.time_limit_seconds - (time.monotonic() - begin)))
        scip.optimize()
        status: str = scip.getStatus()
        if status != "gaplimit":
            break
        objective, bound = scip.getPrimalbound() / scale, scip.getDualbound() / scale
        allowed = limits.gap * (base_joules + objective)
        wanted = min(allowed, limits.overhead_gap * objective)
        if objective - bound <= wanted * (1 + 1e-6):
            status = _polish(scip, limits.time_limit_seconds - (time.monotonic() - begin))
            break
        overhead_gap = min(overhead_gap / 2, max(wanted / max(bound, 1e-12), 1e-9))
    return _outcome(scip, variables, scale, status)


def _polish(scip: Model, seconds: float) -> str:
    """Go on for a little, counted in nodes so that it is the same everywhere; most models are solved to the end."""
    if seconds > 1:
        scip.setParam("limits/gap", 0.0)
        scip.setParam("limits/time", seconds)
        scip.setParam("limits/totalnodes", scip.getNTotalNodes() + POLISH_WORK // max(1, scip.getNVars()))
        scip.optimize()
        if scip.getStatus() == "userinterrupt":
            return "userinterrupt"
    return "optimal"


def least_budget(model: Formulation, *, time_limit_seconds: float) -> tuple[float, float, tuple[float, ...] | None]:
    """Find the smallest budget with which the formulation is feasible, its memory rows' right-hand sides moving along.

    Returns:
        (smallest budget found or infinity, proven lower bound, the assignment), in bytes.
    """
    limits = Limits(gap=0.001, overhead_gap=0.001, time_limit_seconds=time_limit_seconds)
    scip, variables = _build(model, [0.0] * len(model.cost), limits, memory=False)
    unit = max(1.0, model.budget_bytes / 1000.0)
    budget = scip.addVar("budget", vtype="C", lb=model.memory.fixed_bytes / unit, obj=1.0)
    for row in model.memory.rows():
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
    for row in (*model.rows, *model.time):
        _add_row(scip, variables, row, 1.0)
    for row in model.memory.rows() if memory else ():
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


class _Watcher(Eventhdlr):
    """Hands every better assignment and every better bound on as SCIP finds them."""

    def __init__(self, formulation: Formulation, variables: Sequence[Variable], scale: float, incumbent: Incumbent):
        self.formulation = formulation
        self.variables = variables
        self.scale = scale
        self.incumbent = incumbent

    def eventinit(self) -> None:
        for event in _EVENTS:
            self.model.catchEvent(event, self)

    def eventexit(self) -> None:
        for event in _EVENTS:
            self.model.dropEvent(event, self)

    def eventexec(self, event: Event) -> None:
        dual = self.model.getDualbound()
        if self.formulation.proves and -self.model.infinity() < dual < self.model.infinity():
            self.incumbent.lift(dual / self.scale)
        if event.getType() == PY_SCIP_EVENTTYPE.BESTSOLFOUND:
            best = self.model.getBestSol()
            x = [self.model.getSolVal(best, variable) for variable in self.variables]
            self.incumbent.offer(self.formulation, self.formulation.complete(self.formulation.supplies(x)))
