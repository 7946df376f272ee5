"""What a method is given besides the problem, and what it hands back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.plan import Step

INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Effort:
    """When a method has to stop, and what it may use.

    Attributes:
        time_limit_seconds: of the solver.
        gap: (energy - bound) / energy that is asked for.
        seed: of the solver's random numbers.
    """

    time_limit_seconds: float = 60.0
    gap: float = 0.01
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """Incumbent and bound at a moment; energies of the whole step, infinite while unknown."""

    seconds: float
    objective_joules: float
    bound_joules: float


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a method's model; (0, 0) where it has none."""

    variables: int
    rows: int


@dataclass(frozen=True, slots=True)
class Solved:
    """What a method found, before anybody has checked it.

    Attributes:
        status: "optimal" (within the asked gap), "time_limit", "infeasible", "heuristic", "not_needed", "too_large".
        steps: the plan, or None.
        bound_joules: that the method proved for its own class of plans; 0 for none.
        size: of its model.
        build_seconds, solve_seconds: phases.
        trace: incumbent and bound over time, counted from the start of the method.
        note: what a reader of the table must know.
    """

    status: str
    steps: tuple[Step, ...] | None
    bound_joules: float
    size: Size
    build_seconds: float
    solve_seconds: float
    trace: tuple[Point, ...] = ()
    note: str = ""


def seconds_to_gap(trace: Sequence[Point], gap: float) -> float | None:
    """Return when (objective - bound) / objective was first at most `gap`."""
    for point in trace:
        if point.objective_joules < INFINITY and point.objective_joules - point.bound_joules <= gap * (
            point.objective_joules * (1 + 1e-9)
        ):
            return point.seconds
    return None
