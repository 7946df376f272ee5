"""A plan for which there is room: its process keeps to the RAM budget, and its page file fits on the storage."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.passes.paging import page_file_bytes
from poet_onnx.plan import Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.budget import RequestedBudget
from poet_onnx.rewriting.process import LaidOutPlan
from poet_onnx.scheduling import NoneExistsError, NothingFoundError, Terms

ATTEMPTS = 5
"""Plans that are made, with paging and without, until the process keeps to its budget."""

_LEAST_SHARE = 0.25
"""Each plan after the first one gets at least this share of the time, until twice the time is over. From then on there
are quick plans alone: with 21 % less energy than the plan of the smallest budget has (MobileNetV2 with 10 s)."""


class ProcessBudgetError(LimitReachedError):
    """Plans were found for what the budget leaves, but with what they add themselves the process exceeds it."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__("no plan's process keeps to the budget")
        self._needed_bytes = needed_bytes

    def explained(self, terms: Terms) -> LimitReachedError:
        """Return the error that says by how much, and what would do."""
        needed, asked = self._needed_bytes, terms.asked_bytes
        return LimitReachedError(
            f"The best plan found needs a process of {needed:,} bytes, {needed - asked:,} more than the RAM budget of "
            f"{asked:,} bytes; {terms.advice}.",
            terms.works_bytes,
        )


class EvaluationBudgetError(InfeasibleError):
    """However the training step is planned, evaluating exceeds the budget."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__("evaluating exceeds the budget")
        self._needed_bytes = needed_bytes

    def explained(self, terms: Terms) -> InfeasibleError:
        """Return the error that says what evaluating needs, and what would do."""
        return InfeasibleError(
            f"Whatever the step of training needs, {terms} is exceeded, for evaluating needs {self._needed_bytes:,}: "
            f"{terms.advice}, or a smaller batch.",
            terms.works_bytes,
        )


class PageFileError(InfeasibleError):
    """A plan's page file does not fit on the device's storage."""

    def explained(self, terms: Terms) -> PageFileError:
        """Return the error that says so, and what would do."""
        return PageFileError(f"{self}; {terms.advice}, or storage with more room.", terms.works_bytes)


@dataclass(frozen=True)
class FittingPlan:
    """A plan, and what carries it out."""

    plan: Plan
    laid_out: LaidOutPlan


def check_page_file(problem: ScheduleProblem, plan: Plan, advice: str) -> None:
    """Check that a plan's page file fits on the device's storage.

    Args:
        problem: with the graph, and the costs that name the storage.
        plan: for that graph.
        advice: what to say behind the figures.

    Raises:
        PageFileError: if it does not.
    """
    storage = problem.costs.storage
    needed = page_file_bytes(problem.graph, plan.steps)
    if storage is not None and needed > storage.capacity_bytes:
        raise PageFileError(
            f"The plan for {problem.costs.device} needs a page file of {needed:,} bytes, and its storage holds "
            f"{storage.capacity_bytes:,} bytes (`capacity_bytes` of the device profile){advice}"
        )


def fitting_plan(
    problem: ScheduleProblem,
    limits: Limits,
    make: Callable[..., Plan],
    budget: RequestedBudget,
    *,
    seconds: float,
) -> FittingPlan:
    """Return a plan for which there is room.

    The scheduler knows transient bytes alone. A plan's own nodes, its paging and the gaps between its packed values
    come on top: where they do not fit, it plans again for as much less, and where nothing fits in that, for something
    between. Paging takes memory itself, and storage, so where that is too much it does without.

    Args:
        problem: to plan.
        limits: what the plan must keep to, with the transient bytes that are left of the budget.
        make: plans a problem within limits in `time_limit_seconds`; raises what it raises.
        budget: that was asked for.
        seconds: to plan in; planning again may take as long once more, and quick plans some seconds each.

    Raises:
        PageFileError: if the page file is too large and no plan without paging was found.
        ProcessBudgetError: if no attempt kept to the budget.
    """
    begin = time.monotonic()

    def attempt(problem: ScheduleProblem, limits: Limits) -> FittingPlan:
        plan = make(problem, limits, time_limit_seconds=_time_limit(seconds, time.monotonic() - begin))
        return FittingPlan(plan, budget.process.laid_out(problem, plan.steps))

    def excess_bytes(found: FittingPlan) -> float:
        storage = problem.costs.storage
        if storage is not None and page_file_bytes(problem.graph, found.plan.steps) > storage.capacity_bytes:
            return math.inf  # no smaller budget helps: it pages more
        return budget.excess_bytes(found.laid_out.memory)

    best = _closest(problem, limits, attempt, excess_bytes)
    excess = excess_bytes(best)
    may_go_on = math.isinf(excess) or best.plan.certificate.status != "interrupted"
    if excess > 0 and best.plan.prediction.page_out_bytes and may_go_on:
        with contextlib.suppress(NoneExistsError, NothingFoundError):
            unpaged = _closest(replace(problem, paging=False), limits, attempt, excess_bytes)
            best = min(best, unpaged, key=excess_bytes)
    check_page_file(problem, best.plan, ", and without paging no plan was found")
    if budget.excess_bytes(best.laid_out.memory) > 0:
        raise ProcessBudgetError(best.laid_out.memory.peak_bytes)
    return best


def _time_limit(seconds: float, spent_seconds: float) -> float:
    """Return the time limit of the next plan, where some seconds of those to plan in are spent."""
    return max(_LEAST_SHARE * seconds if spent_seconds < 2 * seconds else 0.0, seconds - spent_seconds)


def _closest(
    problem: ScheduleProblem,
    limits: Limits,
    attempt: Callable[[ScheduleProblem, Limits], FittingPlan],
    excess_bytes: Callable[[FittingPlan], float],
) -> FittingPlan:
    """Return the first plan for which there is room, or the one of least excess."""
    best = attempt(problem, limits)
    excess = excess_bytes(best)
    lowest, highest = 0, min(limits.budget_bytes or 0, best.plan.prediction.transient_peak_bytes)
    found = best
    for attempts in range(ATTEMPTS - 1):
        if excess_bytes(best) <= 0 or math.isinf(excess) or found.plan.certificate.status == "interrupted":
            break
        # Below its own peak: less than the budget alone might allow the same plan again. Each time by twice as much,
        # for a plan of fewer bytes runs or loads more nodes again, which take some bytes themselves.
        target = int(highest - excess * 2**attempts)
        lowered = target if target > lowest else (lowest + highest) // 2
        try:
            found = attempt(problem, limits.within(max(1, lowered)))
        except (NoneExistsError, NothingFoundError):
            lowest = max(1, lowered)
            continue
        highest = min(lowered, found.plan.prediction.transient_peak_bytes)
        excess = excess_bytes(found)
        best = min(best, found, key=excess_bytes)
    return best
