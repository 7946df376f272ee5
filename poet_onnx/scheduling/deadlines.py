"""Plans that keep a deadline, transfers included.

Relaxations of the deadline, which leave no plan out, are solved: one that ignores the time of transfers, then one with
rows for it. If a relaxation's plan misses the deadline once its transfers are placed, the windows of stages that it
crowds get rows, and the relaxation is solved again. Where no plan is found so, a stricter model is solved, whose plans
keep the deadline but which leaves others out. Bounds and proofs come from the relaxations only.
"""

from __future__ import annotations

import time
from dataclasses import replace

from poet_onnx.scheduling.attempt import attempt
from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.scheduling.instance import Instance
from poet_onnx.scheduling.outcome import Limits
from poet_onnx.scheduling.timing import Timing, crowded_windows, relaxed_timing

MOST_ROUNDS = 40
"""Times that missing rows are added to one relaxation."""

TURN_SHARE = 0.75
"""Of the time that is left, for one relaxation while there is no plan."""

PATIENCE, PATIENCE_SHARE = 6_000, 0.1
"""Iterations of the simplex, 4 s or so, and share of those that are allowed, for the relaxation that ignores transfers
where its assignments so far make no plan in time."""


def solve_within_deadline(
    incumbent: Incumbent, instance: Instance, budget_bytes: int, deadline_seconds: float, limits: Limits
) -> tuple[str, Formulation | None]:
    """Offer plans within a budget and a deadline to the incumbent until one settles it, or time or ideas run out.

    Returns:
        How it ended, "infeasible" if a relaxation has no solution; and the last relaxation that was solved.
    """
    end = time.monotonic() + limits.time_limit_seconds
    proving: Formulation | None = None
    exact = relaxed_timing(instance, deadline_seconds)
    for turn in _turns(instance, exact):
        timing = turn
        if incumbent.steps is not None and not timing.leaves_none_out:
            break
        turn_end = time.monotonic() + TURN_SHARE * limits.until(end).time_limit_seconds
        for _ in range(MOST_ROUNDS):
            left = limits.until(turn_end if incumbent.steps is None and timing.leaves_none_out else end)
            if not timing.limits_transfers:
                left = replace(left, patience_iterations=min(PATIENCE, PATIENCE_SHARE * limits.most_iterations))
            outcome, model = attempt(incumbent, instance, budget_bytes, timing, left)
            proving = model if model.proves else proving
            if outcome.status == "infeasible" and model.proves:
                return "infeasible", proving
            if incumbent.settles(limits) or incumbent.is_over(limits, end) or outcome.status == "interrupted":
                return ("time_limit" if outcome.status == "infeasible" else outcome.status), proving
            if outcome.x is None or not timing.limits_transfers or timing.charged:
                break
            before, timing = timing, timing.with_windows_of(crowded_windows(model, outcome.x, timing))
            if timing == before or (incumbent.steps is None and time.monotonic() >= turn_end):
                break
    return "time_limit", proving


def _turns(instance: Instance, exact: Timing) -> list[Timing]:
    """Return the relaxations of a deadline and the stricter model, from the widest to the strictest."""
    if not instance.problem.costs.asynchronous:
        return [exact]
    return [
        replace(exact, wait_seconds=float("inf")),
        exact,
        replace(exact, charged=1.0, wait_seconds=float("inf"), leaves_none_out=False),
    ]
