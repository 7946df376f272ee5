"""SCIP: solves the model, hands on what it finds and proves, and stops at a gap, a time limit or Ctrl-C.

Signals are noted at once while SCIP works, and acted on where neither SCIP nor its wrapper can lose them. SCIP's own
handler forgets an interrupt where the search ends before SCIP looks; an exception that Python's handler raises in a
callback is dropped by the wrapper.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from types import FrameType

from pyscipopt import Eventhdlr, Model, Sepa, Variable, quicksum
from pyscipopt.scip import PY_SCIP_EVENTTYPE, PY_SCIP_RESULT, PY_SCIP_STAGE, Event

from poet_onnx.interrupts import noted_by
from poet_onnx.scheduling.ancestry import Ancestry
from poet_onnx.scheduling.choices import solver_class
from poet_onnx.scheduling.incumbent import Effort, Incumbent
from poet_onnx.scheduling.memory_rows import Row
from poet_onnx.scheduling.model import Formulation

POLISH_WORK = 400_000
"""Variables times nodes to go on for when the asked gaps are reached; most models are solved to the end in it."""

OBJECTIVE_SCALE = 1e4
"""The base energy in the units that SCIP sees, which keeps its tolerances far below what matters."""

TIME_SCALE = 1e3
"""The deadline in the units that SCIP sees, for the same reason."""

PROOF_PARAMETERS: dict[str, int | float] = {
    "heuristics/alns/freq": 2,
    "heuristics/alns/minnodes": 200,
    "heuristics/alns/nodesofs": 5000,
    "heuristics/alns/nodesquot": 0.5,
    "heuristics/alns/waitingnodes": 0,
    "heuristics/farkasdiving/freq": -1,
    "heuristics/feaspump/freq": -1,
    "heuristics/rins/freq": 2,
    "heuristics/rins/nwaitingnodes": 0,
    "nodeselection/bfs/stdpriority": 500_000,
    "separating/maxroundsroot": 12,
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
starting anew at every node. Nodes are few, a hundred in a minute, so that neighbourhoods of what is known are searched
at every other one and not only when SCIP has waited for as many; what they find fixes variables, which helps the bound
too. On MobileNet, batch 8, 25 % on m4 the gap is .1 to 1.0 % after 60 s for each of three seeds, with SCIP's own
neighbourhoods 1.5 to 2.1 %.
"""

MOST_BUDGET_ITERATIONS, MOST_BUDGET_NODES, BUDGET_GAP = 3_000, 50, 0.001
"""The search for the smallest budget ends after so many iterations of the simplex or nodes, or within this gap. An LP
that needs more is not solved to its end: the first one of a Llama of 6 layers with adapters ran for minutes."""

SEPARATOR_PRIORITY = 100_000
"""Before SCIP's own separators, whose cuts can build on these rows."""

_SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Listener(Eventhdlr):
    """Asks SCIP for `events` while it works."""

    events: tuple[int, ...] = ()

    def eventinit(self) -> None:
        """Ask for the events."""
        for event in self.events:
            self.model.catchEvent(event, self)

    def eventexit(self) -> None:
        """Ask for them no more."""
        for event in self.events:
            self.model.dropEvent(event, self)


class _Interrupts(_Listener):
    """Notes signals, and stops SCIP at its next event."""

    events = (PY_SCIP_EVENTTYPE.PRESOLVEROUND, PY_SCIP_EVENTTYPE.LPSOLVED, PY_SCIP_EVENTTYPE.NODESOLVED)

    def __init__(self) -> None:
        self.noted: list[int] = []

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take the signal."""
        self.noted.append(number)

    def eventexec(self, event: Event) -> None:
        """Stop SCIP, at the next event if it cannot yet."""
        if self.noted and self.model.getStage() != PY_SCIP_STAGE.INITSOLVE:
            self.model.interruptSolve()


def optimize(scip: Model) -> bool:
    """Let SCIP work until it ends or a signal comes for which Python has a handler; return whether Ctrl-C came.

    Handlers of others than Python's own are called when SCIP has stopped. Outside the main thread, signals are left
    alone.
    """
    heard = _Interrupts()
    scip.includeEventhdlr(heard, "interrupts", "stops at a signal")
    scip.setParam("misc/catchctrlc", False)
    with noted_by(heard.note, _SIGNALS) as handlers:
        scip.optimize()
    for number in heard.noted:
        if handlers[number] is not signal.default_int_handler:
            handlers[number](number, None)
    return signal.SIGINT in heard.noted


class Watcher(_Listener):
    """Hands every better assignment and bound on as SCIP finds them, and stops it a while after the asked gaps.

    SCIP is never stopped at a gap and resumed: doing that lost the optimum of a model, and with it the bound.

    Attributes:
        formulation: the model.
        variables: SCIP's, by the numbers of the model's.
        scale: what a joule is in SCIP's objective.
        incumbent: takes what is found.
        effort: when to stop.
        ending: why SCIP was stopped, None if it was not.
    """

    events = (PY_SCIP_EVENTTYPE.BESTSOLFOUND, PY_SCIP_EVENTTYPE.NODESOLVED, PY_SCIP_EVENTTYPE.LPSOLVED)

    def __init__(
        self,
        formulation: Formulation,
        variables: Sequence[Variable],
        scale: float,
        incumbent: Incumbent,
        effort: Effort,
    ) -> None:
        self.ending: str | None = None
        self.formulation, self.variables, self.scale = formulation, variables, scale
        self.incumbent, self.effort = incumbent, effort
        self.covers = solver_class(formulation.candidates)
        self.last_node: int | None = None

    def eventexec(self, event: Event) -> None:
        """Look at what SCIP has."""
        if self.ending is not None:
            self.stop(self.ending)
        try:
            self._hand_on(event)
        except KeyboardInterrupt:
            self.stop("userinterrupt")

    def stop(self, ending: str) -> None:
        """Make SCIP stop, at the next event if it cannot yet, and note why."""
        self.ending = ending
        if self.model.getStage() != PY_SCIP_STAGE.INITSOLVE:
            self.model.interruptSolve()

    def _hand_on(self, event: Event) -> None:
        dual = self.model.getDualbound()
        if self.formulation.proves and -self.model.infinity() < dual < self.model.infinity():
            self.incumbent.lift(dual / self.scale, self.covers)
        if self.incumbent.bound.joules >= self.effort.known_joules:
            self.stop("gaplimit")
        if event.getType() == PY_SCIP_EVENTTYPE.BESTSOLFOUND:
            best = self.model.getBestSol()
            x = [self.model.getSolVal(best, variable) for variable in self.variables]
            self.incumbent.offer(self.formulation, self.formulation.exact(x))
        self.stop_if_in_vain()
        if self.is_close() and self.ending is None:
            nodes = int(self.model.getNTotalNodes())
            if self.last_node is None:
                self.last_node = nodes + POLISH_WORK // len(self.variables)
            if nodes >= self.last_node:
                self.stop("gaplimit")

    def stop_if_in_vain(self) -> None:
        """Stop SCIP after the iterations of its patience with assignments that make no plan."""
        is_in_vain = self.incumbent.plan is None and self.model.getNSols() > 0
        # SCIP counts them only once it has begun to search.
        is_searching = self.model.getStage() == PY_SCIP_STAGE.SOLVING
        if is_in_vain and is_searching and self.model.getNLPIterations() > self.effort.patience_iterations:
            self.stop("timelimit")

    def is_close(self) -> bool:
        """Return whether the asked gaps are reached."""
        primal, dual = self.model.getPrimalbound(), self.model.getDualbound()
        if primal >= self.model.infinity():
            return False
        energy = self.incumbent.base_joules * self.scale + primal
        return bool(primal - dual <= min(self.effort.gap * energy, self.effort.overhead_gap * primal) * (1 + 1e-6))


class Separator(Sepa):
    """Adds the rows of `Ancestry` that the solution of a node's LP violates."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.ancestry = Ancestry(watcher.formulation)

    def sepaexeclp(self) -> dict[str, int]:
        """Look for rows."""
        self.watcher.stop_if_in_vain()  # at the root, no other event may come for long
        variables = self.watcher.variables
        violated = self.ancestry.violated([self.model.getSolVal(None, variable) for variable in variables])
        for row in violated:
            cut = self.model.createEmptyRowSepa(self, "ancestry", lhs=row.low, rhs=None, local=False)
            self.model.cacheRowExtensions(cut)
            for number, coefficient in row.terms.items():
                self.model.addVarToRow(cut, variables[number], coefficient)
            self.model.flushRowExtensions(cut)
            is_cutoff = self.model.addCut(cut)
            self.model.addPoolCut(cut)
            self.model.releaseRow(cut)
            if is_cutoff:
                return {"result": PY_SCIP_RESULT.CUTOFF}
        return {"result": PY_SCIP_RESULT.SEPARATED if violated else PY_SCIP_RESULT.DIDNOTFIND}


def solver_name() -> str:
    """Return the solver's name and version."""
    return f"SCIP {Model().version()} (PySCIPOpt {metadata.version('pyscipopt')})"


_STATUSES = {"optimal": "optimal", "gaplimit": "optimal", "userinterrupt": "interrupted", "infeasible": "infeasible"}
"""How SCIP ends, and what that is called here; all else is a time limit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What SCIP found: values of all variables or None, the proven bound on the overhead, and how it ended."""

    status: str
    x: tuple[float, ...] | None
    bound_joules: float


def solve(model: Formulation, incumbent: Incumbent, effort: Effort, *, start: Sequence[float] | None = None) -> Outcome:
    """Minimise the overhead energy, telling the incumbent of every assignment and bound on the way.

    Returns:
        The outcome; its status is "optimal", "time_limit", "interrupted" or "infeasible".
    """
    # A measured step may take no energy that anyone could meter.
    scale = OBJECTIVE_SCALE / (incumbent.base_joules or sum(model.cost) or 1.0)
    scip, variables = _build(model, [cost * scale for cost in model.cost], seed=effort.seed)
    if start is not None:
        solution = scip.createSol()
        for variable, level in zip(variables, start, strict=True):
            scip.setSolVal(solution, variable, level)
        scip.addSol(solution)
        scip.setParams(PROOF_PARAMETERS)
    watcher = Watcher(model, variables, scale, incumbent, effort)
    scip.includeEventhdlr(watcher, "watcher", "hands on what is found, and says when it is enough")
    scip.includeSepa(
        Separator(watcher),
        "ancestry",
        "what is recomputed needs what it is made from",
        priority=SEPARATOR_PRIORITY,
        freq=1,
    )
    scip.setParam("limits/time", effort.time_limit_seconds)
    is_interrupted = optimize(scip)
    status = "userinterrupt" if is_interrupted else watcher.ending or str(scip.getStatus())
    best = scip.getBestSol() if scip.getNSols() > 0 else None
    x = None if best is None else tuple(scip.getSolVal(best, variable) for variable in variables)
    return Outcome(_STATUSES.get(status, "time_limit"), x, max(0.0, scip.getDualbound() / scale))


@dataclass(frozen=True, slots=True)
class LeastBudget:
    """The smallest budget found, infinite for none; values of all variables there, or None; and a proven bound."""

    budget_bytes: float
    x: tuple[float, ...] | None
    bound_bytes: float


class _Worker(_Listener):
    """Stops SCIP after some work, the same on every machine."""

    events = (
        PY_SCIP_EVENTTYPE.NODESOLVED,
        PY_SCIP_EVENTTYPE.LPSOLVED,  # of a node, behind all of its cuts
        PY_SCIP_EVENTTYPE.ROWADDEDSEPA,
        PY_SCIP_EVENTTYPE.BESTSOLFOUND,
    )

    def eventexec(self, event: Event) -> None:
        """Look at the iterations of the simplex; SCIP counts them once it has begun to search."""
        is_searching = self.model.getStage() == PY_SCIP_STAGE.SOLVING
        if is_searching and self.model.getNLPIterations() > MOST_BUDGET_ITERATIONS:
            self.model.interruptSolve()


def least_budget(model: Formulation) -> LeastBudget:
    """Find the smallest budget with which the formulation is feasible, its memory rows' right-hand sides moving along.

    The search is bounded by its work, so that its answer does not depend on the machine.
    """
    scip, variables = _build(model, [0.0] * len(model.cost), seed=0, memory=False)
    unit = max(1.0, model.limits.transient_bytes / 1000.0)
    budget = scip.addVar("budget", vtype="C", lb=model.memory.fixed_bytes / unit, obj=1.0)
    for row in model.memory.rows():
        fixed = model.limits.transient_bytes - (row.high or 0.0)
        terms = quicksum(size / unit * variables[variable] for variable, size in row.terms.items())
        scip.addCons(terms + fixed / unit <= budget)
    scip.setParam("propagating/probing/maxprerounds", 0)  # takes as long as the search, which finds the same without
    scip.setParam("limits/gap", BUDGET_GAP)
    scip.setParam("limits/nodes", MOST_BUDGET_NODES)
    scip.setParam("lp/rootiterlim", MOST_BUDGET_ITERATIONS + 1)  # no event comes while an LP is solved
    scip.setParam("lp/iterlim", MOST_BUDGET_ITERATIONS + 1)
    scip.includeEventhdlr(_Worker(), "work", "stops after some work")
    if optimize(scip):
        raise KeyboardInterrupt
    bound_bytes = scip.getDualbound() * unit
    if not scip.getNSols():
        return LeastBudget(float("inf"), None, bound_bytes)
    best = scip.getBestSol()
    x = tuple(scip.getSolVal(best, variable) for variable in variables)
    return LeastBudget(scip.getPrimalbound() * unit, x, bound_bytes)


def _build(
    model: Formulation, objective: Sequence[float], *, seed: int, memory: bool = True
) -> tuple[Model, list[Variable]]:
    scip = Model("schedule")
    scip.hideOutput()
    scip.setParam("timing/clocktype", 2)
    scip.setParam("randomization/randomseedshift", seed)
    variables = [
        scip.addVar(f"x{number}", vtype="B" if binary else "C", lb=0.0, ub=1.0, obj=objective[number])
        for number, binary in enumerate(model.binary)
    ]
    for rows, factor in (
        (model.rows, 1.0),
        (model.time, TIME_SCALE / (model.limits.deadline_seconds or 1.0)),
        (model.moved, 1.0),
        (model.memory.rows() if memory else (), 1000.0 / max(model.limits.transient_bytes, 1)),
    ):
        for row in rows:
            _add_row(scip, variables, row, factor)
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
