"""What SCIP calls back while it solves: a watcher that hands on what is found, a heuristic and a separator."""

from __future__ import annotations

from collections.abc import Sequence

from pyscipopt import Heur, Model, Sepa, Variable
from pyscipopt.scip import PY_SCIP_EVENTTYPE, PY_SCIP_RESULT, PY_SCIP_STAGE, Event

from poet_onnx.scheduling.ancestry import Ancestry
from poet_onnx.scheduling.classes import solver_class
from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.scheduling.interrupts import Interrupts, Listener
from poet_onnx.scheduling.outcome import Limits
from poet_onnx.scheduling.search import MOST_CHANGES
from poet_onnx.scheduling.starts import rounded_start
from poet_onnx.scheduling.timely import improve_in_time

POLISH_WORK = 400_000
"""Variables times nodes to go on for when the asked gaps are reached; most models are solved to the end in it."""

NEXT_ROUNDING = 4
"""Times as many nodes as at one rounding until the next."""

FIRST_CHANGES, NEXT_CHANGES = MOST_CHANGES // 4, MOST_CHANGES // 16
"""Of supplies, in the local search behind the rounding at the root and behind those of later nodes."""

ROUNDING_SHARE = 0.25
"""Of the time that is left, a guard for the local search behind a rounding."""


def iterations_of(scip: Model) -> int:
    """Return the iterations of the simplex so far; SCIP counts them only once it has begun to search."""
    return int(scip.getNLPIterations()) if scip.getStage() in (PY_SCIP_STAGE.SOLVING, PY_SCIP_STAGE.SOLVED) else 0


class Watcher(Listener):
    """Hands every better assignment and bound on as SCIP finds them, and stops it a while after the asked gaps.

    SCIP is never stopped at a gap and resumed: doing that lost the optimum of a model, and with it the bound.

    Attributes:
        ending: why SCIP was stopped, None if it was not.
    """

    events = (PY_SCIP_EVENTTYPE.BESTSOLFOUND, PY_SCIP_EVENTTYPE.NODESOLVED, PY_SCIP_EVENTTYPE.LPSOLVED)

    def __init__(
        self,
        formulation: Formulation,
        variables: Sequence[Variable],
        scale: float,
        incumbent: Incumbent,
        limits: Limits,
        *,
        interrupts: Interrupts,
    ) -> None:
        """Note what to watch.

        Args:
            formulation: the model.
            variables: SCIP's, by the numbers of the model's.
            scale: what a joule is in SCIP's objective.
            incumbent: takes what is found.
            limits: when to stop.
            interrupts: to heed while something takes its time.
        """
        self.most_iterations = limits.most_iterations - incumbent.iterations
        self.ending: str | None = None
        self.formulation = formulation
        self.covers = solver_class(formulation.candidates)
        self.variables = variables
        self.scale = scale
        self.incumbent = incumbent
        self.limits = limits
        self.interrupts = interrupts
        self.last_node: int | None = None

    def eventexec(self, event: Event) -> None:
        """Look at what SCIP has."""
        if self.ending is not None:
            self.stop(self.ending)
        try:
            with self.interrupts:
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
        if self.incumbent.bound.joules >= self.limits.known_joules:
            self.stop("gaplimit")
        if event.getType() == PY_SCIP_EVENTTYPE.BESTSOLFOUND:
            best = self.model.getBestSol()
            x = [self.model.getSolVal(best, variable) for variable in self.variables]
            self.incumbent.offer(self.formulation, self.formulation.exact(x))
        self.stop_if_spent()
        if self.is_close() and self.ending is None:
            nodes = int(self.model.getNTotalNodes())
            if self.last_node is None:
                self.last_node = nodes + POLISH_WORK // len(self.variables)
            if nodes >= self.last_node:
                self.stop("gaplimit")

    def stop_if_spent(self) -> None:
        """Stop SCIP after all its iterations, or after those of its patience with assignments that make no plan."""
        iterations = iterations_of(self.model)
        is_in_vain = self.incumbent.steps is None and self.model.getNSols() > 0
        if iterations >= self.most_iterations or (is_in_vain and iterations > self.limits.patience_iterations):
            self.stop("timelimit")

    def is_close(self) -> bool:
        """Return whether the asked gaps are reached."""
        primal, dual = self.model.getPrimalbound(), self.model.getDualbound()
        if primal >= self.model.infinity():
            return False
        energy = self.incumbent.base_joules * self.scale + primal
        return bool(primal - dual <= min(self.limits.gap * energy, self.limits.overhead_gap * primal) * (1 + 1e-6))


class Rounding(Heur):
    """Keeps in RAM what the LP's solution mostly keeps, supplies the rest as it does, and searches from there.

    At the root, and ever more seldom behind it, until the asked gaps are reached.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.next_node = 1

    def heurexec(self, heurtiming: int, nodeinfeasible: bool) -> dict[str, int]:
        """Round the solution of the node's LP."""
        nodes = int(self.model.getNTotalNodes())
        if nodeinfeasible or nodes < self.next_node or self.watcher.is_close():
            return {"result": PY_SCIP_RESULT.DIDNOTRUN}
        most_changes = FIRST_CHANGES if self.next_node == 1 else NEXT_CHANGES
        self.next_node = NEXT_ROUNDING * max(1, nodes)
        try:
            with self.watcher.interrupts:
                x = self._round(most_changes)
        except KeyboardInterrupt:
            self.watcher.stop("userinterrupt")
            x = None
        found = x is not None and self._try(x)
        return {"result": PY_SCIP_RESULT.FOUNDSOL if found else PY_SCIP_RESULT.DIDNOTFIND}

    def _round(self, most_changes: int) -> list[float] | None:
        formulation, variables = self.watcher.formulation, self.watcher.variables
        x = rounded_start(formulation, [self.model.getSolVal(None, variable) for variable in variables])
        if x is not None:
            limits = self.watcher.limits
            left = max(0.0, limits.time_limit_seconds - self.model.getSolvingTime())
            x = improve_in_time(
                formulation,
                x,
                time_limit_seconds=ROUNDING_SHARE * left,
                most_changes=most_changes,
            )
        return x

    def _try(self, x: list[float]) -> bool:
        # SCIP may have fixed or merged its own variables; those of the model can be given any value.
        solution = self.model.createOrigSol(self)
        for variable, level in zip(self.watcher.variables, x, strict=True):
            self.model.setSolVal(solution, variable, level)
        return bool(self.model.trySol(solution))


class Separator(Sepa):
    """Adds the rows of `Ancestry` that the solution of a node's LP violates."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.ancestry = Ancestry(watcher.formulation)

    def sepaexeclp(self) -> dict[str, int]:
        """Look for rows."""
        return {"result": self._separate()}

    def _separate(self) -> int:
        self.watcher.stop_if_spent()  # at the root, no other event may come for long
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
                return int(PY_SCIP_RESULT.CUTOFF)
        return int(PY_SCIP_RESULT.SEPARATED if violated else PY_SCIP_RESULT.DIDNOTFIND)
