"""What goes into a solve and what comes out of it; no solver is needed to speak of them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from poet_onnx.plan import ALL_PLANS, PlanClass

OVERHEAD_GAP = 0.1
"""Besides the asked gap, the solver closes the gap over the overhead to this, as long as time lasts."""

WORTHWHILE = 0.03
"""Share of the energy that more orders or plans of a wider class must be able to save, to be looked for."""

LEAST_SECONDS = 1.0
"""For whatever must be tried, however little is left of the time limit."""


def overhead_gap_of(gap: float) -> float:
    """Return the gap over the overhead that goes with one over the energy of the whole step."""
    return min(OVERHEAD_GAP, 10 * gap)


def seconds_until(end: float) -> float:
    """Return the seconds up to a moment of `time.monotonic`, and at least those that everything gets."""
    return max(LEAST_SECONDS, end - time.monotonic())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a solve has come; energies of the whole step, infinite while unknown."""

    objective_joules: float
    bound_joules: float
    gap: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop: at both gaps, or at the time limit.

    Attributes:
        gap: (objective - bound) / objective, energy of the whole step.
        overhead_gap: the same over the energy above the base.
        time_limit_seconds: wall time of the solve.
        seed: of SCIP's random numbers.
        known_joules: of the step, by a plan in another order or form of the graph: dearer ones are of no use.
        most_iterations: of the simplex, in all. What they end, they end in the same place on any machine.
        patience_iterations: after that the solver ends if it has assignments but none of them gave a plan.
    """

    gap: float
    overhead_gap: float
    time_limit_seconds: float
    seed: int = 0
    known_joules: float = math.inf
    most_iterations: float = math.inf
    patience_iterations: float = math.inf

    def until(self, end: float) -> Limits:
        """Return the limits with the time that is left up to a moment of `time.monotonic`."""
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What SCIP found: values of all variables or None, the proven bound on the overhead, and how it ended."""

    status: str
    x: tuple[float, ...] | None
    bound_joules: float
    nodes: int
