"""What is said where there is no plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import ALL_PLANS, PlanClass
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.budget import BISECTIONS_SECONDS, smallest_budget
from poet_onnx.scheduling.instance import Instance

LEAST_EXPLANATION_SECONDS = 10.0
"""To work out what would do, however little is left of the time limit."""


def seconds_to_explain(end: float) -> float:
    """Return the seconds to work out what would do, where the time limit ends at a moment of `time.monotonic`."""
    return min(BISECTIONS_SECONDS, max(LEAST_EXPLANATION_SECONDS, end - time.monotonic()))


@dataclass(frozen=True, slots=True)
class Terms:
    """A budget as it was asked for, where the scheduler was given what is left of it.

    Attributes:
        kind: of budget, in words.
        asked_bytes: the whole budget.
        besides: what a budget needs besides, where so many bytes are enough for the scheduler.
        note: what that is, in words that follow the figure asked for; empty where there is nothing.
        forbidden: what was forbidden besides recompute and paging, and could be allowed.
    """

    kind: str
    asked_bytes: int
    besides: Callable[[int], int] = lambda _: 0
    note: str = ""
    forbidden: tuple[str, ...] = ()

    @classmethod
    def of(cls, problem: ScheduleProblem) -> Terms:
        """Return the terms of a budget that the scheduler was given whole."""
        return cls("transient budget", problem.budget_bytes or 0)

    def __str__(self) -> str:
        """Name the budget."""
        return f"a {self.kind} of {self.asked_bytes:,} bytes{self.note}"

    def whole_bytes(self, size_bytes: int) -> int:
        """Return the budget for whoever asked, where so many bytes are enough for the scheduler."""
        return size_bytes + self.besides(size_bytes)


class NothingFoundError(LimitReachedError):
    """No plan was found in an order, but none was proven not to exist; what would do is told when all have failed.

    Attributes:
        seconds: of the search.
    """

    def __init__(self, problem: ScheduleProblem, order: tuple[str, ...], fastest_seconds: float) -> None:
        super().__init__("no plan was found")
        self._problem, self._order, self._fastest_seconds = problem, order, fastest_seconds
        self.seconds = 0.0

    def explained(self, terms: Terms | None = None, *, seconds: float) -> LimitReachedError:
        """Return the error that says what was looked for and what would do, in the terms of who asked."""
        terms = terms or Terms.of(self._problem)
        if self._fastest_seconds == float("inf"):
            return LimitReachedError(
                f"No plan for {terms} was found in {self.seconds:.0f} s; give a larger --time-limit or budget"
                f"{_or_allow(self._problem, terms)}."
            )
        works = terms.whole_bytes(smallest_budget(self._problem, self._order, seconds=seconds).budget_bytes)
        return LimitReachedError(
            f"No plan for {terms} was found that meets the deadline of {self._problem.deadline_seconds:.6g} s, "
            f"transfers included: the fastest found takes {self._fastest_seconds:.6g} s; give at least that, or a "
            f"budget of {works:,} bytes{_or_allow(replace(self._problem, deadline_seconds=None), terms)}."
        )


class NoneExistsError(InfeasibleError):
    """No plan of a class exists; what would do is told when all orders have failed."""

    def __init__(self, instance: Instance, covers: PlanClass) -> None:
        super().__init__("no plan exists")
        self._problem, self._covers = instance.problem, covers
        self._order = tuple(node.name for node in instance.nodes)

    def explained(self, terms: Terms | None = None, *, seconds: float) -> InfeasibleError:
        """Return the error that names the smallest budget that works, in the terms of who asked."""
        problem = self._problem
        terms = terms or Terms.of(problem)
        too_small_bytes = problem.budget_bytes or 0
        smallest = smallest_budget(problem, self._order, too_small_bytes=too_small_bytes, seconds=seconds)
        within = "" if problem.deadline_seconds is None else f" within {problem.deadline_seconds:.6g} s"
        works = f"{terms.whole_bytes(smallest.budget_bytes):,}"
        return InfeasibleError(
            f"No plan{within} keeps to {terms} among {self._covers}: the smallest found that works is {works} bytes, "
            f"and node '{smallest.node}' alone needs {smallest.node_bytes:,}; give at least {works} bytes"
            f"{_or_allow(problem, terms, alone_bytes=smallest.node_bytes)}.",
            smallest.budget_bytes,
        )


def _or_allow(problem: ScheduleProblem, terms: Terms, *, alone_bytes: int = 0) -> str:
    """Say what was forbidden, or limited besides the budget, that may help; what is allowed is no advice.

    Args:
        problem: that has no plan.
        terms: of who asked.
        alone_bytes: what one node needs: where the budget is less, only another form of the graph helps.
    """
    means = list(terms.forbidden)
    if alone_bytes <= (problem.budget_bytes or 0):
        means += [] if problem.recompute else ["recompute"]
        means += [] if problem.paging or not problem.costs.page_out else ["paging"]
        means += [] if problem.deadline_seconds is None else ["more time"]
    *others, last = means or [""]
    listed = f"{', '.join(others)} or {last}" if others else last
    return f", or allow {listed}, which may help" if listed else ""


def check_large_nodes(instance: Instance, budget: int) -> None:
    """Look whether every node alone keeps to the budget.

    Raises:
        NoneExistsError: if one does not.
    """
    if any(instance.smallest_node_bytes(position) > budget for position in range(len(instance.nodes))):
        raise NoneExistsError(instance, ALL_PLANS)
