"""What is said where there is no plan, and of which plans a bound holds."""

from __future__ import annotations

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.problem import ScheduleProblem
from poet_onnx.scheduling.budget import smallest_budget
from poet_onnx.scheduling.candidates import Candidates
from poet_onnx.scheduling.instance import Instance


class NothingFoundError(LimitReachedError):
    """No plan was found in an order, but none was proven not to exist; what would do is told when all have failed.

    Attributes:
        seconds: of the search.
    """

    def __init__(self, problem: ScheduleProblem, order: tuple[str, ...], fastest_seconds: float) -> None:
        super().__init__("no plan was found")
        self._problem, self._order, self._fastest_seconds = problem, order, fastest_seconds
        self.seconds = 0.0

    def explained(self) -> LimitReachedError:
        """Return the error that says what was looked for and what would do."""
        asked = f"No plan for a budget of {self._problem.budget_bytes:,} bytes"
        if self._fastest_seconds == float("inf"):
            return LimitReachedError(
                f"{asked} was found in {self.seconds:.0f} s; give a larger --time-limit, budget or deadline."
            )
        works = smallest_budget(self._problem, self._order).budget_bytes
        return LimitReachedError(
            f"{asked} was found that meets the deadline of {self._problem.deadline_seconds:.6g} s, transfers included: "
            f"the fastest found takes {self._fastest_seconds:.6g} s; give at least that, or a budget of {works:,} "
            "bytes."
        )


class NoneExistsError(InfeasibleError):
    """No plan exists in an order; what would do is told when all orders have failed."""

    def __init__(self, instance: Instance) -> None:
        super().__init__("no plan exists")
        self._problem = instance.problem
        self._order = tuple(node.name for node in instance.nodes)

    def explained(self) -> InfeasibleError:
        """Return the error that names the smallest budget that works."""
        problem = self._problem
        smallest = smallest_budget(problem, self._order, too_small_bytes=problem.budget_bytes or 0)
        within = "" if problem.deadline_seconds is None else f" within {problem.deadline_seconds:.6g} s"
        return InfeasibleError(
            f"No plan{within} keeps to a transient budget of {problem.budget_bytes:,} bytes: the smallest that works "
            f"is {smallest.budget_bytes:,} bytes (bound {smallest.bound_bytes:,}), and node '{smallest.node}' alone "
            f"needs {smallest.node_bytes:,}; give at least {smallest.budget_bytes:,} bytes or allow recompute, paging "
            "or time.",
            smallest.budget_bytes,
        )


def covers_of(candidates: Candidates) -> str:
    """Say in words which plans the bound holds for."""
    hops = "any number of" if candidates.hops >= len(candidates.units) else f"at most {candidates.hops}"
    stays = sum(1 for value in candidates.last_alive if value not in candidates.instance.kept)
    return (
        "plans in this order, which recomputes before the same node keep as well; recompute right before a reader, or "
        "where an input is in RAM anyway, in chains of "
        f"{hops} fused units whose inner values are not stored; values stored when they are made first, fetched right "
        f"before a reader; {stays} small or short-lived values stay in RAM; buffers are taken "
        "over only where that is certain; transfers hidden as far as time allows"
    )


def check_large_nodes(instance: Instance, budget: int) -> None:
    """Look whether every node alone keeps to the budget.

    Raises:
        NoneExistsError: if one does not.
    """
    if any(instance.smallest_node_bytes(position) > budget for position in range(len(instance.nodes))):
        raise NoneExistsError(instance)
