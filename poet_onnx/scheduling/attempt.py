"""One model from start to finish, and a second one where a deadline needs it.

Where transfers run beside the computations, a relaxation leaves their time out. Mostly some of its plans keep the
deadline once their transfers are placed. If none does, a stricter model is solved, whose plans keep the deadline but
which leaves others out. Bounds and proofs come from the relaxation only.
"""

from __future__ import annotations

import time
from dataclasses import replace

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling.choices import solver_class
from poet_onnx.scheduling.deadline import Timing, relaxed_timing
from poet_onnx.scheduling.incumbent import Effort, Incumbent, seconds_until
from poet_onnx.scheduling.liveness import Instance
from poet_onnx.scheduling.local_search import MOST_CHANGES
from poet_onnx.scheduling.model import Formulation, formulate
from poet_onnx.scheduling.starts import improve_in_time, paged_start, start_from

SEARCH_SHARE = 0.25
"""Of the time that is left, a guard for a local search that others follow; it mostly ends by itself in less."""

START_CHANGES = MOST_CHANGES // 8
"""Of restores, in the local search for a start: what SCIP's first relaxation is rounded to is better in most cases."""

TURN_SHARE = 0.75
"""Of the time, for the relaxation while there is no plan."""

PATIENCE = 6_000
"""Iterations of the simplex, 4 s or so, for the relaxation where its assignments so far make no plan in time."""


def attempt(
    incumbent: Incumbent, instance: Instance, limits: Limits, timing: Timing | None, effort: Effort
) -> tuple[str, Formulation]:
    """Solve one model, and offer all it finds to the incumbent.

    Where rounding made the solver's answer exceed the budget, the memory rows are tightened by that little and the
    model is solved again; the bound is the first model's.

    Returns:
        How the solver ended, and the model.
    """
    # Imported here, so that a plan can be carried out and a model inspected where no solver is installed.
    from poet_onnx.scheduling.solver import solve

    end = time.monotonic() + effort.time_limit_seconds
    budget_bytes = limits.transient_bytes
    for tightened in (0, budget_bytes // 500_000 + 64, budget_bytes // 50_000 + 64):
        model = formulate(instance, limits.within(budget_bytes - tightened), timing)
        model.proves = model.proves and not tightened
        without = "time_limit" if tightened else "infeasible"  # what tighter rows leave out may be a plan
        if model.memory.fixed_bytes > budget_bytes - tightened:
            return without, model
        start = _start(model, incumbent, SEARCH_SHARE * seconds_until(end))
        if incumbent.steps is not None and time.monotonic() > end:
            return "time_limit", model
        outcome = solve(model, incumbent, effort.until(end), start=start)
        if outcome.status == "infeasible":
            return without, model
        if model.proves:
            incumbent.lift(outcome.bound_joules, solver_class(model.candidates))
        if outcome.x is None or model.ceilings().excess_bytes(model.exact(outcome.x)) <= tightened:
            return outcome.status, model
    return "time_limit", model


def _start(model: Formulation, incumbent: Incumbent, time_limit_seconds: float) -> list[float] | None:
    """Offer what local search makes of the best plan so far, in time or not, or of paging everything; return that."""
    start = None if incumbent.start is None else start_from(model, incumbent.start)
    if start is None:
        start = paged_start(model)
        if start is None:
            return None
        incumbent.offer(model, start)
    improved = improve_in_time(model, start, time_limit_seconds=time_limit_seconds, most_changes=START_CHANGES)
    if improved is not None:
        incumbent.offer(model, improved)
    return improved


def solve_in_order(incumbent: Incumbent, instance: Instance, limits: Limits, effort: Effort) -> tuple[str, Formulation]:
    """Offer plans within limits to the incumbent until one settles it, or time or ideas run out.

    Returns:
        How it ended, "infeasible" if a relaxation has no solution; and the relaxation.
    """
    timing = relaxed_timing(instance, limits)
    stricter = None if timing is None else timing.stricter
    end = time.monotonic() + effort.time_limit_seconds
    patient = effort
    if stricter is not None:
        share = TURN_SHARE if incumbent.steps is None else 1.0
        patient = replace(effort, patience_iterations=PATIENCE, time_limit_seconds=share * effort.time_limit_seconds)
    status, relaxation = attempt(incumbent, instance, limits, timing, patient)
    is_over = incumbent.steps is not None or time.monotonic() >= end
    if stricter is None or status in ("infeasible", "interrupted") or is_over:
        return status, relaxation
    status, _ = attempt(incumbent, instance, limits, stricter, effort.until(end))
    return ("interrupted" if status == "interrupted" else "time_limit"), relaxation
