"""SCIP: solves the formulation, reports progress, and stops at a gap, a time limit or Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from pyscipopt import Eventhdlr, Model, Variable, quicksum
from pyscipopt.scip import PY_SCIP_EVENTTYPE, PY_SCIP_PARAMSETTING, Event

from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.scheduling.memory import Row
from poet_onnx.scheduling.outcome import Limits, Outcome

OBJECTIVE_SCALE = 1e4
"""The base energy in the units that SCIP sees, which keeps its tolerances far below what matters."""

POLISH_WORK = 400_000
"""Variables times nodes to go on for when the asked gaps are reached; most models are solved to the end in it."""

PROOF_PARAMETERS: dict[str, int | float] = {
    "heuristics/farkasdiving/freq": -1,
    "heuristics/feaspump/freq": -1,
    "nodeselection/bfs/stdpriority": 500_000,
    "separating/maxroundsroot": 6,
    "separating/maxroundsrootsubrun": 2,
    "branching/relpscost/initcand": 12,
    "branching/relpscost/maxlookahead": 2,
    "branching/relpscost/minreliable": 1.0,
    "branching/relpscost/maxreliable": 3.0,
    "lp/scaling": 2,
}
"""SCIP's settings where local search has found a good plan already: what is left to do is to lift the bound.

The node with the lowest bound comes next, and rounds of cuts and the comparison of branching candidates end while they
still pay. The stronger scaling of the LPs, whose coefficients range from one byte to the budget, keeps the simplex from
starting anew at every node. On MobileNet, batch 8, 25 % on tx2 the gap is 1 % after 26 s of the processor for each of
three seeds, with SCIP's own settings after 30 to 90 s.
"""

ROOT_ROUNDS_IN_TIME = 20
"""Rounds of cuts at the root where a row of time is nearly full: they pay for longer there than elsewhere.

On MobileNet, batch 8, 25 % on m4 within 1.3 times the time of the computations, the gap after 60 s is 4.4 %, with 6
rounds 8.6 %, with as many as SCIP wants 4.8 %.
"""

NEARLY_FULL = 0.9
"""Share of the time that a row allows."""

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
    if start is not None:
        _add_start(scip, variables, start)
        scip.setParams(PROOF_PARAMETERS)
        if _is_short_of_time(model, start):
            scip.setParam("separating/maxroundsroot", ROOT_ROUNDS_IN_TIME)
    watcher = _Watcher(model, variables, scale, incumbent, limits)
    scip.includeEventhdlr(watcher, "watcher", "hands on what is found, and says when it is enough")
    scip.setParam("limits/time", limits.time_limit_seconds)
    scip.optimize()
    status = watcher.ending or str(scip.getStatus())
    return _outcome(scip, variables, scale, status)


def is_infeasible(model: Formulation, *, time_limit_seconds: float) -> bool:
    """Return whether presolving and the relaxation at the root show in some time that no assignment satisfies the rows.

    Raises:
        KeyboardInterrupt: if the solver was interrupted.
    """
    limits = Limits(gap=0.0, overhead_gap=0.0, time_limit_seconds=time_limit_seconds)
    scip, _ = _build(model, [0.0] * len(model.cost), limits)
    scip.setParams({"limits/nodes": 1, "limits/time": time_limit_seconds})
    scip.setHeuristics(PY_SCIP_PARAMSETTING.OFF)
    scip.setSeparating(PY_SCIP_PARAMSETTING.OFF)
    # Cliques of rows of time are no help here, and keeping their table clean may take SCIP half a minute.
    scip.setParam("constraints/linear/extractcliques", False)
    scip.optimize()
    if scip.getStatus() == "userinterrupt":
        raise KeyboardInterrupt
    return bool(scip.getStatus() == "infeasible")


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
    if scip.getStatus() == "userinterrupt":
        raise KeyboardInterrupt
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
    (number, coefficient), *others = row.terms.items() or ((0, 0.0),)
    first = coefficient * factor * variables[number]
    if row.low is not None and row.low == row.high:
        sides = [first == row.low * factor]
    else:
        sides = [first >= row.low * factor] if row.low is not None else []
        sides += [first <= row.high * factor] if row.high is not None else []
    for side in sides:
        # A sum of all terms would take PySCIPOpt several times as long to make.
        row_in_scip = scip.addCons(side)
        for number, coefficient in others:
            scip.addCoefLinear(row_in_scip, variables[number], coefficient * factor)


def _is_short_of_time(model: Formulation, x: Sequence[float]) -> bool:
    """Return whether an assignment nearly fills a row of time."""
    used = (sum(seconds * x[variable] for variable, seconds in row.terms.items()) for row in model.time)
    return any(taken > NEARLY_FULL * (row.high or 0.0) for taken, row in zip(used, model.time, strict=True))


def _add_start(scip: Model, variables: Sequence[Variable], start: Sequence[float]) -> None:
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
    """Hands every better assignment and bound on as SCIP finds them, and stops it a while after the asked gaps.

    SCIP is never stopped at a gap and resumed: doing that lost the optimum of a model, and with it the bound.
    """

    def __init__(
        self,
        formulation: Formulation,
        variables: Sequence[Variable],
        scale: float,
        incumbent: Incumbent,
        limits: Limits,
    ) -> None:
        self.formulation = formulation
        self.variables = variables
        self.scale = scale
        self.incumbent = incumbent
        self.limits = limits
        self.last_node: int | None = None
        self.ending: str | None = None

    def eventinit(self) -> None:
        for event in _EVENTS:
            self.model.catchEvent(event, self)

    def eventexit(self) -> None:
        for event in _EVENTS:
            self.model.dropEvent(event, self)

    def eventexec(self, event: Event) -> None:
        """Look at what SCIP has; an interrupt that Python hears of here would be lost in the solver's code."""
        try:
            self._look(event)
        except KeyboardInterrupt:
            self._stop("userinterrupt")

    def _stop(self, ending: str) -> None:
        self.ending = ending
        self.model.interruptSolve()

    def _look(self, event: Event) -> None:
        primal, dual = self.model.getPrimalbound(), self.model.getDualbound()
        if self.formulation.proves and -self.model.infinity() < dual < self.model.infinity():
            self.incumbent.lift(dual / self.scale)
        if self.incumbent.bound_joules >= self.limits.known_joules:
            self._stop("gaplimit")
        if event.getType() == PY_SCIP_EVENTTYPE.BESTSOLFOUND:
            best = self.model.getBestSol()
            x = [self.model.getSolVal(best, variable) for variable in self.variables]
            self.incumbent.offer(self.formulation, self.formulation.complete(self.formulation.supplies(x)))
        if self._is_close(primal, dual) and self.ending is None:
            nodes = int(self.model.getNTotalNodes())
            if self.last_node is None:
                self.last_node = nodes + POLISH_WORK // len(self.variables)
            if nodes >= self.last_node:
                self._stop("gaplimit")

    def _is_close(self, primal: float, dual: float) -> bool:
        """Return whether the asked gaps are reached."""
        if primal >= self.model.infinity():
            return False
        energy = self.incumbent.base_joules * self.scale + primal
        return bool(primal - dual <= min(self.limits.gap * energy, self.limits.overhead_gap * primal) * (1 + 1e-6))
