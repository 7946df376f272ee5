"""SCIP: solves the formulation, reports progress, and stops at a gap, a time limit or Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from pyscipopt import Model, Variable, quicksum
from pyscipopt.scip import PY_SCIP_HEURTIMING

from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.scheduling.interrupts import Interrupts, optimize
from poet_onnx.scheduling.memory import Row
from poet_onnx.scheduling.outcome import Limits, Outcome
from poet_onnx.scheduling.plugins import Rounding, Separator, Watcher, iterations_of

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

SEPARATOR_PRIORITY = 100_000
"""Before SCIP's own separators, whose cuts can build on these rows."""

ROUNDING_PRIORITY = 100_000
"""Before SCIP's own heuristics, which begin with what it found."""


def solver_name() -> str:
    """Return the solver's name and version."""
    return f"SCIP {Model().version()} (PySCIPOpt {metadata.version('pyscipopt')})"


def solve(model: Formulation, incumbent: Incumbent, limits: Limits, *, start: Sequence[float] | None = None) -> Outcome:
    """Minimise the overhead energy, telling the incumbent of every assignment and bound on the way.

    Returns:
        The outcome; its status is "optimal", "time_limit", "interrupted" or "infeasible".
    """
    scale = _scale(model, incumbent.base_joules)
    scip, variables = _build(model, [cost * scale for cost in model.cost], limits)
    if start is not None:
        _add_start(scip, variables, start)
        scip.setParams(PROOF_PARAMETERS)
    interrupts = Interrupts()
    watcher = Watcher(model, variables, scale, incumbent, limits, interrupts=interrupts)
    scip.includeEventhdlr(watcher, "watcher", "hands on what is found, and says when it is enough")
    scip.includeSepa(
        Separator(watcher),
        "ancestry",
        "what is recomputed needs what it is made from",
        priority=SEPARATOR_PRIORITY,
        freq=1,
    )
    scip.includeHeur(
        Rounding(watcher),
        "rounding by gaps",
        "keeps in RAM what the LP does, and searches from there",
        "P",
        priority=ROUNDING_PRIORITY,
        timingmask=PY_SCIP_HEURTIMING.AFTERLPNODE,
    )
    scip.setParam("limits/time", limits.time_limit_seconds)
    is_interrupted = optimize(scip, interrupts)
    incumbent.iterations += iterations_of(scip)
    status = "userinterrupt" if is_interrupted else watcher.ending or str(scip.getStatus())
    return _outcome(scip, variables, scale, status)


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
    if optimize(scip):
        raise KeyboardInterrupt
    found = scip.getNSols() > 0
    x = tuple(float(round(scip.getVal(variable))) for variable in variables) if found else None
    return (scip.getPrimalbound() * unit if found else float("inf")), scip.getDualbound() * unit, x


def _scale(model: Formulation, base_joules: float) -> float:
    """Return what a joule is in the units that SCIP sees; a measured step may take none that anyone could meter."""
    return OBJECTIVE_SCALE / (base_joules or sum(model.cost) or 1.0)


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
    for row in model.time:
        _add_row(scip, variables, row, TIME_SCALE / (model.deadline_seconds or 1.0))
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
