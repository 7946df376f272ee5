"""Plans that keep a deadline, transfers included, and proofs that there are none.

A model is solved that leaves no plan out. If what it finds misses the deadline once its transfers are placed, the rows
that it shows to be missing are added, and the model is solved again; before that, with few recomputes, where these may
do. Where it is not the channel but memory that hinders plans, the model is made stricter than need be, step by step,
until its plans keep the deadline. Bounds come from models that leave no plan out only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from poet_onnx.scheduling.attempt import attempt
from poet_onnx.scheduling.building import formulate
from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.scheduling.instance import Instance
from poet_onnx.scheduling.lateness import late_transfers, rows_beside_bottlenecks, rows_between_peaks
from poet_onnx.scheduling.lowering import to_steps
from poet_onnx.scheduling.outcome import Limits
from poet_onnx.scheduling.timing import Timing, crowded_windows, relaxed_timing
from poet_onnx.scheduling.transfers import overlap, spread_out

MOST_ROUNDS = 40
"""Times that missing rows are added to one model."""

VIEW_SHARE = 0.75
"""Of the time that is left, for one of several views of the deadline while there is no plan."""

PATIENCE, PATIENCE_SHARE = 6_000, 0.1
"""Iterations of the simplex, 4 s or so, and share of those that are allowed, for a model whose assignments so far make
no plan in time."""

HOPELESS_PATIENCE, HOPELESS_SHARE = 3, 0.4
"""Times that patience, and, as a guard, share of the time that is left, for a look whether there is any plan."""

STRICTER = ((0.5, 1.0), (0.0, 1.0), (0.0, 1.5), (0.0, 2.5), (0.0, 4.0))
"""(share of the spare time that the step may wait, stretch of transfers) of the stricter models, tried in turn."""


def solve_within_deadline(
    incumbent: Incumbent, instance: Instance, budget_bytes: int, deadline_seconds: float, limits: Limits
) -> tuple[str, Formulation | None]:
    """Offer plans within a budget and a deadline to the incumbent until one settles it, or time or ideas run out.

    Returns:
        How it ended, "infeasible" if a model that leaves no plan out has no solution; and the last such model.
    """
    end = time.monotonic() + limits.time_limit_seconds
    exact = relaxed_timing(instance, deadline_seconds)
    proving: Formulation | None = None
    known = exact
    peaks = rows_between_peaks(instance, budget_bytes, exact) if instance.problem.costs.asynchronous else exact
    narrow = replace(exact, is_narrow=True)
    refuted: list[Timing] = []
    has_peaks = False
    patience = min(PATIENCE, PATIENCE_SHARE * limits.most_iterations)

    share = VIEW_SHARE if instance.problem.costs.asynchronous else 1.0
    for timing in _views(instance, budget_bytes, exact, narrow):
        if incumbent.steps is not None and not timing.leaves_none_out:
            continue
        if any(timing.is_within(other) for other in refuted):
            continue
        # Rows that did not settle it among few recomputes would only be in the way among all of them.
        has_peaks = timing.is_narrow or narrow in refuted or (has_peaks and incumbent.steps is not None)
        turn_end = time.monotonic() + (1.0 if narrow in refuted else share) * limits.until(end).time_limit_seconds
        for _ in range(MOST_ROUNDS):
            left = limits.until(turn_end if incumbent.steps is None else end)
            if not timing.limits_transfers or timing.is_narrow:
                left = replace(left, patience_iterations=patience)
            rows = known.with_rows_of(peaks) if has_peaks else known
            view = timing.with_rows_of(rows) if timing.limits_transfers else timing
            seconds = HOPELESS_SHARE * limits.until(end).time_limit_seconds
            check = replace(limits, time_limit_seconds=seconds, most_iterations=HOPELESS_PATIENCE * patience)
            is_hopeless = partial(_is_hopeless, instance, budget_bytes, known, limits=check)
            outcome, model = attempt(incumbent, instance, budget_bytes, view, left, is_hopeless=is_hopeless)
            proving = model if model.proves else proving
            if outcome.status == "infeasible" and model.proves:
                return "infeasible", proving
            if incumbent.settles(limits) or incumbent.is_over(limits, end) or outcome.status == "interrupted":
                return ("time_limit" if outcome.status == "infeasible" else outcome.status), proving
            if outcome.x is None or timing.charged:
                break
            before, known = known, known.with_rows_of(_missed(model, outcome.x, rows))
            is_over = incumbent.steps is None and time.monotonic() >= turn_end
            if known == before or is_over or not timing.limits_transfers:
                break
        if outcome.status == "infeasible":
            refuted.append(timing)
    return "time_limit", proving


def _is_hopeless(
    instance: Instance,
    budget_bytes: int,
    known: Timing,
    model: Formulation,
    start: list[float] | None,
    *,
    limits: Limits,
) -> bool:
    """Return whether the model that leaves no plan out, which is slow to solve, is soon seen to have no solution."""
    # Imported here, so that a plan can be carried out and a model inspected where no solver is installed.
    from poet_onnx.scheduling.solver import is_infeasible

    if known.charged:
        # Synchronous transfers are where their readers are: there are no rows to be missing.
        return is_infeasible(formulate(instance, budget_bytes, known), limits, branches=False)
    missed = known if start is None else known.with_rows_of(_missed(model, start, known))
    rows = rows_beside_bottlenecks(instance, budget_bytes, missed)
    return is_infeasible(formulate(instance, budget_bytes, rows), limits, branches=rows != missed)


def _missed(model: Formulation, x: Sequence[float], timing: Timing) -> Timing:
    """Return the rows of time that an assignment, with its transfers placed, shows to be missing."""
    problem, steps = model.candidates.instance.problem, to_steps(model, x)
    crowded = crowded_windows(model, x, timing)
    missed = late_transfers(model, overlap(problem, steps), timing)
    if crowded.begins:
        return missed.with_rows_of(crowded)
    return missed.with_rows_of(late_transfers(model, spread_out(problem, steps), timing))


def _views(instance: Instance, budget_bytes: int, exact: Timing, narrow: Timing) -> Iterator[Timing]:
    """Yield views of the deadline from the widest to the strictest."""
    if not instance.problem.costs.asynchronous:
        yield exact
        return
    yield replace(exact, wait_seconds=float("inf"))
    few, all_of_them = (len(formulate(instance, budget_bytes, view).recompute) for view in (narrow, exact))
    if few < all_of_them:
        yield narrow
    yield exact
    for share, stretch in STRICTER:
        yield replace(narrow, wait_seconds=share * exact.spare_seconds, stretch=stretch)
    yield replace(narrow, charged=1.0)
