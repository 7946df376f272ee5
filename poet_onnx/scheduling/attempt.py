"""One model from start to finish, and a second one where a deadline needs it.

Where transfers run beside the computations, a relaxation leaves their time out. Mostly some of its plans keep the
deadline once their transfers are placed. If none does, a stricter model is solved, whose plans keep the deadline but
which leaves others out. Bounds and proofs come from the relaxation only.

The solver starts from what a plan, or paging everything, brings back. That may exceed rows of time, and those of bytes
moved, which are treated as such. Local search that may not exceed one is soon stuck, for whatever saves energy takes
time elsewhere first. So the seconds of all rows of time are charged for, at a price that rises until keeping the rows
is the cheaper way (a Lagrangian relaxation); between the last two prices a better one is looked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from poet_onnx.plan import PlanClass, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling.choices import solver_class
from poet_onnx.scheduling.incumbent import Effort, Incumbent, seconds_until
from poet_onnx.scheduling.limit_rows import Timing, relaxed_timing
from poet_onnx.scheduling.liveness import Instance
from poet_onnx.scheduling.local_search import MOST_CHANGES, fitted, improve
from poet_onnx.scheduling.memory_rows import Row
from poet_onnx.scheduling.model import Formulation, Restores, formulate
from poet_onnx.scheduling.steps import restores_of

SEARCH_SHARE = 0.25
"""The local search for a start gets at most this share of the time that is left; mostly it ends earlier."""

START_CHANGES = MOST_CHANGES // 8
"""The local search for a start changes at most this many restores: from there on SCIP mostly finds more."""

TURN_SHARE = 0.75
"""While there is no plan, the relaxation gets this share of the time."""

PATIENCE = 6_000
"""The relaxation ends after so many iterations of the simplex, some 4 s, if none of its assignments is in time."""

FIRST_PRICE = 1 / 16
"""The first price is this share of all costs in the model, divided by all seconds in its rows."""

PRICE_RISE = 4.0

MOST_RISES = 7

BISECTIONS = 3
"""Prices between one that is too low and one that is not."""

SHARE_PER_RISE, SHARE_BETWEEN = 1 / 40, 1 / 8
"""A local search at a rising price, and at one of the bisection, makes this share of `MOST_CHANGES`: the latter find
the better plans."""


def attempt(
    incumbent: Incumbent, instance: Instance, limits: Limits, timing: Timing | None, effort: Effort
) -> tuple[str, PlanClass]:
    """Solve one model, and offer all it finds to the incumbent.

    Where rounding made the solver's answer exceed the budget, the memory rows are tightened by that little and the
    model is solved again; the bound is the first model's.

    Returns:
        How the solver ended, and the class of the model's plans.
    """
    # Imported here, so that a plan can be carried out and a model inspected where no solver is installed.
    from poet_onnx.scheduling.solver import solve

    end = time.monotonic() + effort.time_limit_seconds
    budget_bytes = limits.transient_bytes
    for tightened in (0, budget_bytes // 500_000 + 64, budget_bytes // 50_000 + 64):
        worth_joules = (incumbent.joules - incumbent.base_joules) * (1 + 1e-9)  # dearer plans are of no use
        model = formulate(instance, limits.within(budget_bytes - tightened), timing, worth_joules=worth_joules)
        model.proves = model.proves and not tightened
        covers = solver_class(model.candidates)
        without = "time_limit" if tightened else "infeasible"  # what tighter rows leave out may be a plan
        if model.memory.fixed_bytes > budget_bytes - tightened:
            return without, covers
        start = _start(model, incumbent, SEARCH_SHARE * seconds_until(end))
        if incumbent.plan is not None and time.monotonic() > end:
            return "time_limit", covers
        outcome = solve(model, incumbent, effort.until(end), start=start)
        is_infeasible = outcome.status == "infeasible"
        if model.proves and not (is_infeasible and incumbent.plan is None):
            incumbent.lift(min(outcome.bound_joules, worth_joules), covers)  # dearer plans were left out
        if is_infeasible:
            return without, covers
        if outcome.x is None or model.ceilings().excess_bytes(model.exact(outcome.x)) <= tightened:
            return outcome.status, covers
    return "time_limit", covers


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


def solve_in_order(incumbent: Incumbent, instance: Instance, limits: Limits, effort: Effort) -> tuple[str, PlanClass]:
    """Offer plans within limits to the incumbent until one settles it, or time or ideas run out.

    Returns:
        How it ended, "infeasible" if a relaxation has no solution; and the class of the relaxation's plans.
    """
    timing = relaxed_timing(instance, limits)
    stricter = None if timing is None else timing.stricter
    end = time.monotonic() + effort.time_limit_seconds
    patient = effort
    if stricter is not None:
        share = TURN_SHARE if incumbent.plan is None else 1.0
        patient = replace(effort, patience_iterations=PATIENCE, time_limit_seconds=share * effort.time_limit_seconds)
    status, covers = attempt(incumbent, instance, limits, timing, patient)
    is_over = incumbent.plan is not None or time.monotonic() >= end
    if stricter is None or status in ("infeasible", "interrupted") or is_over:
        return status, covers
    status, _ = attempt(incumbent, instance, limits, stricter, effort.until(end))
    return ("interrupted" if status == "interrupted" else "time_limit"), covers


def start_from(model: Formulation, steps: Sequence[Step]) -> list[float] | None:
    """Return an assignment that brings back what a plan in the model's order brings back, or None if none fits.

    What the model has no variable for stays in RAM, for which others may have to leave. It may exceed rows of time.
    """
    return fitted(model, model.complete(restores_of(model, steps)))


def paged_start(model: Formulation) -> list[float] | None:
    """Return the assignment that keeps in RAM only what it must, or all there is, or None if neither can be made fit.

    What does not stay is paged in for each of its readers; without paging, it is made again.
    """
    everything = Restores(paged_in=model.page_in.keys()) if model.page_in else Restores(model.recompute.keys())
    for restores in (everything, Restores()):
        x = fitted(model, model.complete(model.useful(restores)))
        if x is not None:
            return x
    return None


def improve_in_time(
    model: Formulation, start: list[float], *, time_limit_seconds: float, most_changes: int = MOST_CHANGES
) -> list[float] | None:
    """Return a cheap assignment that satisfies all rows, or None if none was found.

    The start satisfies all but, perhaps, rows of time. The time limit is a guard; changes of restores are counted,
    those without a price and, again, those once it is in time.
    """
    search = _Search(model, time_limit_seconds, most_changes)
    x = search.improved(start)
    if not search.is_late(x):
        return x
    timely = [one for one in (search.timely(x), start) if one is not None and not search.is_late(one)]
    return search.improved(min(timely, key=model.joules), None) if timely else None


def _level(rows: Sequence[Row]) -> float:
    """Return what rows could hold if every variable counted."""
    return sum(abs(term) for row in rows for term in row.terms.values())


class _Search:
    """Local search at prices for the rows of time."""

    def __init__(self, model: Formulation, time_limit_seconds: float, most_changes: int) -> None:
        self.model, self.ceilings, self.most_changes = model, model.ceilings(), most_changes
        self.end = time.monotonic() + time_limit_seconds

    def improved(self, x: list[float], price: float | None = 0.0, share: float = 1.0) -> list[float]:
        """Return a cheaper assignment at a price in joules for each second in a row of time; None: all rows hold."""
        model = self.model
        if price is not None:
            cost = list(model.cost)
            for row, factor in self._rows():
                for variable, term in row.terms.items():
                    cost[variable] += price * factor * term
            model = replace(model, cost=cost, time=[], moved=[])
        left, most_changes = max(0.0, self.end - time.monotonic()), int(share * self.most_changes)
        return improve(model, x, time_limit_seconds=left, most_changes=most_changes)

    def _rows(self) -> Iterator[tuple[Row, float]]:
        """Yield the rows that are charged for, each with what its unit is in seconds.

        All that could be written is charged for as all the time that could be spent, where there is a deadline.
        """
        for row in self.model.time:
            yield row, 1.0
        for row in self.model.moved:
            yield row, (_level(self.model.time) or 1.0) / _level([row])

    def is_late(self, x: Sequence[float]) -> bool:
        """Return whether an assignment exceeds a row of time or of bytes written."""
        return bool((self.ceilings.activity(x) > self.ceilings.limit)[self.ceilings.memory_rows :].any())

    def timely(self, late: list[float]) -> list[float] | None:
        """Return the cheapest assignment found that exceeds no row of time."""
        seconds = sum(factor * _level([row]) for row, factor in self._rows())
        low, price = 0.0, FIRST_PRICE * sum(self.model.cost) / seconds
        for _ in range(MOST_RISES):
            found = self.improved(late, price, SHARE_PER_RISE)
            if not self.is_late(found):
                return self._between(low, price, late, found)
            late, low, price = found, price, price * PRICE_RISE
        return None

    def _between(self, low: float, high: float, late: list[float], timely: list[float]) -> list[float]:
        """Return the cheapest timely assignment at prices between that of a late one and that of a timely one."""
        best = timely
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            found = [self.improved(start, middle, SHARE_BETWEEN) for start in (late, timely)]
            kept = [x for x in found if not self.is_late(x)]
            if kept:
                timely, high = min(kept, key=self.model.joules), middle
                best = min(best, timely, key=self.model.joules)
            else:
                late, low = found[0], middle
        return best
