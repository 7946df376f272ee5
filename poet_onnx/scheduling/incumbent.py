"""The best plan so far: what the simulator has accepted, and how far the proof has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import PlanClass, Prediction, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.outcome import Bound, Limits, Progress
from poet_onnx.scheduling.steps import steps_of_assignment
from poet_onnx.scheduling.transfers import overlap, spread_out
from poet_onnx.simulate import simulate

HOPELESS = 1.03
"""A plan that misses the deadline by more than this factor, its transfers spread out, is not worth more effort."""


class Incumbent:
    """Keeps the cheapest plan offered that the simulator accepts, and the best bound.

    Attributes:
        steps: of that plan, or None.
        prediction: of that plan, or None.
        joules: its energy as simulated, infinite without a plan.
        bound: what is proven.
        fastest_seconds: of all plans offered, those included that miss the deadline.
        start: the steps to set out from: those of the plan, or of the fastest one that misses the deadline.
        iterations: of the simplex, spent on it so far.
        refused: why the simulator refused plans, those aside that miss the deadline.
    """

    def __init__(
        self,
        problem: ScheduleProblem,
        base_joules: float,
        progress: Callable[[Progress], None] | None,
        begin: float | None = None,
    ) -> None:
        self.steps: tuple[Step, ...] | None = None
        self.prediction: Prediction | None = None
        self.start: tuple[Step, ...] | None = None
        self.joules = self.fastest_seconds = float("inf")
        self.base_joules = base_joules
        self.bound = Bound.base(base_joules)
        self.iterations = 0
        self.refused: list[str] = []
        self._problem = problem
        self._timeless = replace(problem, deadline_seconds=None)
        # The simulator allows for rounding in the same measure.
        self._latest_seconds = (
            float("inf") if problem.deadline_seconds is None else problem.deadline_seconds * (1 + 1e-9)
        )
        self._progress = progress
        self._reported = time.monotonic()
        self._begin = self._reported if begin is None else begin

    def offer(self, model: Formulation, x: Sequence[float]) -> bool:
        """Take an assignment's plan if it is the cheapest so far; return whether it keeps budget and deadline."""
        return self.offer_steps(steps_of_assignment(model, x))

    def offer_steps(self, steps: tuple[Step, ...]) -> bool:
        """Take a plan, wherever its transfers stand, as `offer` does."""
        try:
            steps, prediction = self._placed(steps)
        except CheckFailedError as error:
            self.refused.append(str(error))
            return False
        return self.take(steps, prediction)

    def take(self, steps: tuple[Step, ...], prediction: Prediction) -> bool:
        """Take a plan whose transfers are placed and which the simulator has accepted, as `offer` does."""
        if self.steps is None and prediction.seconds < self.fastest_seconds:
            self.start = steps
        self.fastest_seconds = min(self.fastest_seconds, prediction.seconds)
        if prediction.seconds > self._latest_seconds:
            return False
        if self.prediction is None or prediction.energy_joules < self.prediction.energy_joules:
            self.start = self.steps = steps
            self.prediction, self.joules = prediction, prediction.energy_joules
            self.report()
        return True

    def _placed(self, steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], Prediction]:
        """Spread the transfers of a plan, thoroughly if the deadline is near."""
        if self._problem.costs.asynchronous:
            steps = spread_out(self._problem, steps)
        prediction = simulate(self._timeless, steps)
        if self._latest_seconds < prediction.seconds < HOPELESS * self._latest_seconds:
            steps = overlap(self._problem, steps)
            prediction = simulate(self._timeless, steps)
        return steps, prediction

    def lift(self, overhead_joules: float, covers: PlanClass) -> None:
        """Take note of a bound on the energy above the base of all plans of a class."""
        before, self.bound = self.bound, self.bound.lifted(self.base_joules + overhead_joules, covers)
        if self.bound is not before and time.monotonic() - self._reported > 0.25:
            self.report()

    def report(self) -> None:
        """Tell how far things are."""
        if self._progress is None:
            return
        self._reported = time.monotonic()
        found = self.joules < float("inf")
        gap = max(0.0, self.joules - self.bound.joules) / self.joules if found else float("inf")
        self._progress(Progress(self.joules, self.bound.joules, gap, self._reported - self._begin))

    def is_over(self, limits: Limits, end: float) -> bool:
        """Return whether all iterations are spent, or a moment of `time.monotonic` has come."""
        return self.iterations >= limits.most_iterations or time.monotonic() >= end

    def settles(self, limits: Limits) -> bool:
        """Return whether the plan is as close to the bound as was asked for, or none can be as cheap as a known one."""
        if self.bound.joules >= limits.known_joules:
            return True
        if self.steps is None:
            return False
        gap, overhead = self.joules - self.bound.joules, self.joules - self.base_joules
        return gap <= limits.gap * self.joules * (1 + 1e-9) and gap <= limits.overhead_gap * overhead * (1 + 1e-6)
