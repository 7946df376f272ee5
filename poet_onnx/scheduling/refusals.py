"""What is said where there is no plan, and of which plans a bound holds."""

from __future__ import annotations

import time
from dataclasses import dataclass

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.problem import ScheduleProblem
from poet_onnx.scheduling.budget import BISECTIONS_SECONDS, smallest_budget
from poet_onnx.scheduling.candidates import Candidates
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
        besides_bytes: what is in it besides the scheduler's own.
        note: what that is, in words that follow the figure asked for; empty where there is nothing.
    """

    kind: str
    asked_bytes: int
    besides_bytes: int = 0
    note: str = ""

    @classmethod
    def of(cls, problem: ScheduleProblem) -> Terms:
        """Return the terms of a budget that the scheduler was given whole."""
        return cls("transient budget", problem.budget_bytes or 0)

    def __str__(self) -> str:
        """Name the budget."""
        return f"a {self.kind} of {self.asked_bytes:,} bytes{self.note}"

    def whole(self, size_bytes: int) -> str:
        """Return the figure that bytes of the scheduler's are for whoever asked."""
        return f"{size_bytes + self.besides_bytes:,}"


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
                f"No plan for {terms} was found in {self.seconds:.0f} s; give a larger --time-limit, budget or "
                "deadline."
            )
        works = smallest_budget(self._problem, self._order, seconds=seconds).budget_bytes
        return LimitReachedError(
            f"No plan for {terms} was found that meets the deadline of {self._problem.deadline_seconds:.6g} s, "
            f"transfers included: the fastest found takes {self._fastest_seconds:.6g} s; give at least that, or a "
            f"budget of {terms.whole(works)} bytes."
        )


class NoneExistsError(InfeasibleError):
    """No plan exists in an order; what would do is told when all orders have failed."""

    def __init__(self, instance: Instance) -> None:
        super().__init__("no plan exists")
        self._problem = instance.problem
        self._order = tuple(node.name for node in instance.nodes)

    def explained(self, terms: Terms | None = None, *, seconds: float) -> InfeasibleError:
        """Return the error that names the smallest budget that works, in the terms of who asked."""
        problem = self._problem
        terms = terms or Terms.of(problem)
        too_small_bytes = problem.budget_bytes or 0
        smallest = smallest_budget(problem, self._order, too_small_bytes=too_small_bytes, seconds=seconds)
        within = "" if problem.deadline_seconds is None else f" within {problem.deadline_seconds:.6g} s"
        works = terms.whole(smallest.budget_bytes)
        return InfeasibleError(
            f"No plan{within} keeps to {terms}: the smallest found that works is {works} bytes "
            f"({smallest.covers} need at least {terms.whole(smallest.bound_bytes)}), and node '{smallest.node}' alone "
            f"needs {smallest.node_bytes:,}; give at least {works} bytes or allow recompute, paging or time.",
            smallest.budget_bytes,
        )


def covers_of(candidates: Candidates) -> str:
    """Say in words which plans the bound holds for."""
    hops = "any number of" if candidates.hops >= len(candidates.units) else f"at most {candidates.hops}"
    stays = sum(1 for value in candidates.last_alive if value not in candidates.instance.kept)
    recompute = (
        "plans in this order, which recomputes before the same node keep as well; recompute right before a reader, or "
        f"where an input is in RAM anyway, in chains of {hops} fused units whose inner values are not stored"
    )
    return (
        f"{recompute if candidates.units else 'plans in this order that recompute nothing'}; values stored when they "
        f"are made first, fetched right before a reader; {stays} small or short-lived values stay in RAM; buffers are "
        "taken over only where that is certain; transfers hidden as far as time allows"
    )


def check_large_nodes(instance: Instance, budget: int) -> None:
    """Look whether every node alone keeps to the budget.

    Raises:
        NoneExistsError: if one does not.
    """
    if any(instance.smallest_node_bytes(position) > budget for position in range(len(instance.nodes))):
        raise NoneExistsError(instance)
