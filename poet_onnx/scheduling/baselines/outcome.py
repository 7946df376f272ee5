"""What a method is given, what it offers, and what comes out of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from poet_onnx.choices import POET
from poet_onnx.errors import LimitReachedError, PoetError
from poet_onnx.plan import ALL_PLANS, Certificate, Plan, Prediction, Step, gaps
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.baselines.tidy import tidied
from poet_onnx.scheduling.incumbent import Progress
from poet_onnx.scheduling.liveness import Instance, build_instance
from poet_onnx.scheduling.refusals import NothingFoundError, Terms
from poet_onnx.simulate import simulate
from poet_onnx.transfers import overlap

ATTEMPTS = 6
"""Budgets that a method which does not count all bytes itself is asked for."""


class CannotError(PoetError):
    """A method cannot do with a graph or a device what it does elsewhere; the message is the reason, a sentence."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a method makes of a problem.

    Attributes:
        method: its name.
        plan: that keeps the limits, or None. Its certificate has the method's proof if that is a bound on energy, and
            otherwise the energy of computing once.
        reason: why there is no plan, in one sentence.
        closest: what the simulator says of the plan of least transient peak that breaks a limit, where one was made.
        is_proven: the method has proven that none of its plans keeps the limits.
        proves: what it proves of the plan, in words; empty for nothing.
        bound_joules: that it proves for its plans; None for none.
        solve_seconds: wall time.
    """

    method: str
    plan: Plan | None
    reason: str = ""
    closest: Prediction | None = None
    is_proven: bool = False
    proves: str = ""
    bound_joules: float | None = None
    solve_seconds: float = 0.0


class NoPlanError(NothingFoundError):
    """A method has no plan; that says nothing of other methods."""

    def __init__(self, outcome: Outcome) -> None:
        LimitReachedError.__init__(self, f"method '{outcome.method}' found no plan")
        self.seconds = outcome.solve_seconds
        self._outcome = outcome

    def explained(self, terms: Terms) -> LimitReachedError:
        """Return the error that says why, in the terms of who asked."""
        outcome, closest = self._outcome, self._outcome.closest
        needs = ""
        if closest is not None:
            peak_bytes = closest.transient_peak_bytes
            needs = f" Its smallest plan takes {closest.seconds:.6g} s and {peak_bytes:,} transient bytes."
        return LimitReachedError(
            f"Method '{outcome.method}' has no plan for {terms}. {outcome.reason}{needs} With {terms.works_text} "
            f"everything stays in RAM; give that, or try --method {POET}.",
            terms.works_bytes,
        )


@dataclass
class Task:
    """One problem for one method, and the plans that the method offers for it.

    Attributes:
        problem: what to plan.
        limits: what the plan must keep to.
        order: of the nodes.
        gap: for methods that prove something: when to stop.
        seed: of solvers.
        end: moment of `time.monotonic` at which to stop.
        progress: told how far a solver is.
        best: the cheapest plan offered that keeps the limits.
        closest: prediction of the offered plan of least peak that breaks a limit.
        last: prediction of the plan that was offered last.
        proves, bound_joules, is_proven: as in `Outcome`; a method sets them.
    """

    problem: ScheduleProblem
    limits: Limits
    order: tuple[str, ...]
    gap: float
    seed: int
    end: float
    progress: Callable[[Progress], None] | None = None
    best: tuple[tuple[Step, ...], Prediction] | None = None
    closest: Prediction | None = None
    last: Prediction | None = None
    proves: str = ""
    bound_joules: float | None = None
    is_proven: bool = False
    begin: float = field(default_factory=time.monotonic)

    @cached_property
    def instance(self) -> Instance:
        """Return nodes and values by number."""
        return build_instance(self.problem, self.order)

    @property
    def is_late(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() >= self.end

    def budgets(self) -> Iterator[int]:
        """Yield the budget, and smaller ones while what is offered for them exceeds it by what was not counted.

        Raises:
            CannotError: if there is no budget.
        """
        budget_bytes = self.limits.budget_bytes
        if budget_bytes is None:
            raise CannotError("It decides where a budget is reached, and there is none.")
        aim_bytes = budget_bytes
        for _ in range(ATTEMPTS):
            self.last = None
            yield aim_bytes
            excess_bytes = 0 if self.last is None else self.last.transient_peak_bytes - budget_bytes
            if self.best is not None or excess_bytes <= 0 or self.is_late:
                return
            aim_bytes -= excess_bytes

    def offer(self, steps: tuple[Step, ...]) -> bool:
        """Take a plan, its transfers synchronous, if it is the cheapest so far; return whether it keeps the limits."""
        steps = tidied(self.problem, steps)
        prediction = simulate(self.problem, steps)
        if prediction.page_out_bytes and self.problem.costs.asynchronous:
            steps = overlap(self.problem, self.limits, steps)
            prediction = simulate(self.problem, steps)
        self.last = prediction
        if any(True for _ in self.limits.broken_by(prediction)):
            if self.closest is None or prediction.transient_peak_bytes < self.closest.transient_peak_bytes:
                self.closest = prediction
            return False
        if self.best is None or prediction.energy_joules < self.best[1].energy_joules:
            self.best = steps, prediction
        return True

    def outcome(self, method: str, reason: str) -> Outcome:
        """Return what has come of the plans that were offered, or the reason why there is none."""
        seconds = time.monotonic() - self.begin
        if self.best is None:
            return Outcome(method, None, reason, self.closest, self.is_proven, solve_seconds=seconds)
        plan = self._plan(method, *self.best, seconds)
        return Outcome(method, plan, "", None, False, self.proves, self.bound_joules, seconds)

    def _plan(self, method: str, steps: tuple[Step, ...], prediction: Prediction, seconds: float) -> Plan:
        """Return a plan with a certificate that says no more than what holds for all plans."""
        energy, base = prediction.energy_joules, self.problem.base_joules
        bound = min(energy, base)
        is_plain = not prediction.recomputed_nodes and not prediction.page_out_bytes
        certificate = Certificate(
            "not_needed" if is_plain else "feasible",
            energy,
            bound,
            *gaps(energy, bound, base),
            covers=ALL_PLANS,
            wide_bound_joules=bound,
            solver="none" if is_plain else method,
            seed=self.seed,
            threads=1,
            solve_seconds=seconds,
        )
        return Plan(
            fingerprint=self.problem.graph.fingerprint,
            device=self.problem.costs.device,
            limits=self.limits,
            steps=steps,
            prediction=prediction,
            certificate=certificate,
        )
