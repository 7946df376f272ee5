"""The best plan so far, and how far the proof has come."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import ALL_PLANS, PlanClass, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.model import Formulation
from poet_onnx.scheduling.steps import SimulatedPlan, steps_of_assignment
from poet_onnx.simulate import simulate
from poet_onnx.transfers import overlap, spread_out

OVERHEAD_GAP = 0.1
"""The solver goes on until the gap is this part of the overhead, too: the energy above computing each node once."""

LEAST_SECONDS = 1.0
"""Each part of the search gets this long, even where less is left of the time limit."""

HOPELESS = 1.2
"""A plan is given up that takes more than this multiple of the deadline with its transfers spread out.

A larger one places more plans thoroughly, a second each on large graphs. At 1.03 a plan of a random graph was lost that
is in time once it is placed thoroughly: spread out it takes 1.08 times the deadline.
"""


def overhead_gap_of(gap: float) -> float:
    """Return the gap over the overhead that goes with one over the energy of the whole step."""
    return min(OVERHEAD_GAP, 10 * gap)


def seconds_until(end: float) -> float:
    """Return the seconds up to a moment of `time.monotonic`, and at least those that everything gets."""
    return max(LEAST_SECONDS, end - time.monotonic())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a solve has come; energies of the whole step, infinite while unknown.

    Attributes:
        doing: what else than solving is done, in words; empty while the solver works.
    """

    objective_joules: float
    bound_joules: float
    gap: float
    seconds: float
    doing: str = ""

    @classmethod
    def looking(cls, doing: str, seconds: float) -> Progress:
        """Return what is told where there is no solver."""
        return cls(math.inf, 0.0, math.inf, seconds, doing)


@dataclass(frozen=True, slots=True)
class Effort:
    """When a search stops: at both gaps, or at the time limit.

    Attributes:
        gap: (objective - bound) / objective, energy of the whole step.
        overhead_gap: the same over the energy above the base.
        time_limit_seconds: wall time of the solve.
        seed: of SCIP's random numbers.
        known_joules: of the step, by a plan in another order or form of the graph: dearer ones are of no use.
        patience_iterations: of the simplex; after them the solver ends if it has assignments but none gave a plan.
    """

    gap: float
    overhead_gap: float
    time_limit_seconds: float
    seed: int = 0
    known_joules: float = math.inf
    patience_iterations: float = math.inf

    def until(self, end: float) -> Effort:
        """Return the effort with the time that is left up to a moment of `time.monotonic`."""
        return replace(self, time_limit_seconds=seconds_until(end))


@dataclass(frozen=True, slots=True)
class Bound:
    """What is proven so far: no plan of a class spends less; nor does any in its order with its permissions.

    Attributes:
        joules: of the step.
        covers: the class.
        wide_joules: of the step, for plans that the solver does not form, too.
    """

    joules: float
    covers: PlanClass
    wide_joules: float

    @classmethod
    def base(cls, joules: float) -> Bound:
        """Return the bound that computing once is."""
        return cls(joules, ALL_PLANS, joules)

    def lifted(self, joules: float, covers: PlanClass) -> Bound:
        """Return the bound, or another one of the class if it is higher."""
        if joules <= self.joules:
            return self
        return Bound(joules, covers, self.wide_joules if covers.hops is not None else joules)


class Incumbent:
    """Keeps the cheapest plan offered that the simulator accepts, and the best bound.

    Attributes:
        plan: that plan, or None.
        bound: what is proven.
        fastest_seconds: of all plans offered, those included that miss the deadline.
        start: the steps to set out from: those of the plan, or of the fastest one that misses the deadline.
        refused: why the simulator refused plans, those aside that miss the deadline.
    """

    def __init__(
        self,
        problem: ScheduleProblem,
        limits: Limits,
        progress: Callable[[Progress], None] | None = None,
        begin: float | None = None,
    ) -> None:
        self.plan: SimulatedPlan | None = None
        self.start: tuple[Step, ...] | None = None
        self.fastest_seconds = math.inf
        self.base_joules = problem.base_joules
        self.bound = Bound.base(self.base_joules)
        self.refused: list[str] = []
        self._problem, self._limits = problem, limits
        self._progress = progress
        self._reported = time.monotonic()
        self._begin = self._reported if begin is None else begin

    @property
    def joules(self) -> float:
        """Return the energy of the plan as simulated, infinite without one."""
        return math.inf if self.plan is None else self.plan.joules

    def offer(self, model: Formulation, x: Sequence[float]) -> None:
        """Take an assignment's plan if it keeps the limits and is the cheapest so far."""
        self.offer_steps(steps_of_assignment(model, x))

    def offer_steps(self, steps: tuple[Step, ...]) -> None:
        """Take a plan, wherever its transfers stand, as `offer` does."""
        try:
            self.take(self._placed(steps))
        except CheckFailedError as error:
            self.refused.append(str(error))

    def take(self, plan: SimulatedPlan) -> None:
        """Take a plan that the simulator has accepted, as `offer` does."""
        seconds = plan.prediction.seconds
        if self.plan is None and seconds < self.fastest_seconds:
            self.start = plan.steps
        self.fastest_seconds = min(self.fastest_seconds, seconds)
        if seconds <= self._limits.latest_seconds and plan.joules < self.joules:
            self.plan, self.start = plan, plan.steps
            self.report()

    def _placed(self, steps: tuple[Step, ...]) -> SimulatedPlan:
        """Spread the transfers of a plan, thoroughly if the deadline is near."""
        timeless = self._limits.without_deadline()
        if self._problem.costs.asynchronous:
            steps = spread_out(self._problem, self._limits, steps)
        prediction = simulate(self._problem, steps, timeless)
        if self._limits.latest_seconds < prediction.seconds < HOPELESS * self._limits.latest_seconds:
            steps = overlap(self._problem, self._limits, steps)
            prediction = simulate(self._problem, steps, timeless)
        return SimulatedPlan(steps, prediction)

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
        gap = math.inf if self.plan is None else max(0.0, self.joules - self.bound.joules) / self.joules
        self._progress(Progress(self.joules, self.bound.joules, gap, self._reported - self._begin))

    def settles(self, effort: Effort) -> bool:
        """Return whether the plan is as close to the bound as was asked for, or none can be as cheap as a known one."""
        if self.bound.joules >= effort.known_joules:
            return True
        if self.plan is None:
            return False
        gap, overhead = self.joules - self.bound.joules, self.joules - self.base_joules
        return gap <= effort.gap * self.joules * (1 + 1e-9) and gap <= effort.overhead_gap * overhead * (1 + 1e-6)
