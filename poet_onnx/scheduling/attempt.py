"""One model from start to finish: the best plan so far, local search, SCIP, local search on what it found."""

from __future__ import annotations

import time
from dataclasses import replace

from poet_onnx.scheduling.building import formulate
from poet_onnx.scheduling.classes import solver_class
from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.scheduling.instance import Instance
from poet_onnx.scheduling.outcome import Limits, Outcome, seconds_until
from poet_onnx.scheduling.search import MOST_CHANGES, improve
from poet_onnx.scheduling.starts import paged_start, start_from
from poet_onnx.scheduling.timely import improve_in_time
from poet_onnx.scheduling.timing import Timing

SEARCH_SHARE = 0.25
"""Of the time that is left, a guard for a local search that others follow; it mostly ends by itself in less."""

START_CHANGES = MOST_CHANGES // 8
"""Of supplies, in the local search for a start: what SCIP's first relaxation is rounded to is better in most cases."""


def attempt(
    incumbent: Incumbent,
    instance: Instance,
    budget_bytes: int,
    timing: Timing | None,
    limits: Limits,
) -> tuple[Outcome, Formulation]:
    """Solve one model, and offer all it finds to the incumbent.

    Where rounding made the solver's answer exceed the budget, the memory rows are tightened by that little and the
    model is solved again; the bound is the first model's.

    Returns:
        How the solver ended, its assignment made exact and improved (None if it found none), and the model.
    """
    # Imported here, so that a plan can be carried out and a model inspected where no solver is installed.
    from poet_onnx.scheduling.solver import solve

    end = time.monotonic() + limits.time_limit_seconds
    bound = 0.0
    for tightened in (0, budget_bytes // 500_000 + 64, budget_bytes // 50_000 + 64):
        model = formulate(instance, budget_bytes - tightened, timing)
        model.proves = model.proves and not tightened
        without = "time_limit" if tightened else "infeasible"  # what tighter rows leave out may be a plan
        if model.memory.fixed_bytes > budget_bytes - tightened:
            return Outcome(without, None, bound, 0), model
        start = _start(model, incumbent, SEARCH_SHARE * seconds_until(end))
        if incumbent.steps is not None and time.monotonic() > end:
            outcome = Outcome("time_limit", None, bound, 0)
        else:
            outcome = solve(model, incumbent, limits.until(end), start=start)
        if model.proves and outcome.status != "infeasible":
            incumbent.lift(outcome.bound_joules, solver_class(model.candidates))
        bound = bound or outcome.bound_joules
        status = without if outcome.status == "infeasible" else outcome.status
        outcome = replace(outcome, status=status, bound_joules=bound)
        if outcome.x is None:
            return outcome, model
        exact = model.exact(outcome.x)
        if model.ceilings().excess_bytes(exact) <= tightened:
            exact = improve(model, exact, time_limit_seconds=seconds_until(end))
            incumbent.offer(model, exact)
            return replace(outcome, x=tuple(exact)), model
    return Outcome("time_limit", None, bound, 0), model


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
