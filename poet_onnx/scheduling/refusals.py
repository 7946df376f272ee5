"""What is said where there is no plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import PlanClass
from poet_onnx.plan.limits import Limits, TransferLimit
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.quantities import budget_text
from poet_onnx.scheduling.liveness import Instance, Liveness
from poet_onnx.scheduling.quick_plan import quick_plan


def least_moved(problem: ScheduleProblem, limits: Limits, order: Sequence[str], limit: TransferLimit) -> int | None:
    """Return the bytes that a quick plan moves, of those that a limit bounds, within the other limits.

    It is made with the bytes in the place of energy; None where there is none.
    """
    others = replace(limits, **{limit.field: None})
    quick = quick_plan(Liveness(_bytes_as_joules(problem, limit)).in_order(order), others)
    if quick is None or any(others.broken_by(quick.prediction)):
        return None
    moved: int = getattr(quick.prediction, limit.figure)
    return moved


def _bytes_as_joules(problem: ScheduleProblem, limit: TransferLimit) -> ScheduleProblem:
    """Return a problem in which energy is what a limit bounds: its cheapest plan moves least."""
    costs, tensors = problem.costs, problem.graph.tensors
    nodes = {name: replace(cost, joules=0.0) for name, cost in costs.nodes.items()}
    page_out, page_in = (
        {name: replace(cost, joules=float(counts * tensors[name].size_bytes)) for name, cost in table.items()}
        for counts, table in ((limit.is_out, costs.page_out), (limit.is_in, costs.page_in))
    )
    free = replace(costs, nodes=nodes, page_out=page_out, page_in=page_in, idle_watts=0.0)
    return replace(problem, costs=free)


@dataclass(frozen=True, slots=True)
class Terms:
    """A budget as it was asked for, where the scheduler was given what is left of it.

    Attributes:
        kind: of budget, in words.
        asked_bytes: the whole budget.
        works_bytes: the smallest of its kind for which a plan is at hand; None where there is none.
        note: what the scheduler was not given of it, in words that follow the figure asked for; empty for nothing.
        forbidden: what was forbidden besides recompute and paging, and could be allowed.
    """

    kind: str
    asked_bytes: int
    works_bytes: int | None
    note: str = ""
    forbidden: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name the budget."""
        return f"a {self.kind} of {self.asked_bytes:,} bytes{self.note}"

    @property
    def works_text(self) -> str:
        """Name the budget that works."""
        return (
            "a larger budget, of which none was found," if self.works_bytes is None else budget_text(self.works_bytes)
        )

    @property
    def advice(self) -> str:
        """Return what to give, in words."""
        if self.works_bytes is None:
            return "no quick plan and no plan of the solver was found for any budget"
        return f"give at least {self.works_text}"


class NothingFoundError(LimitReachedError):
    """No plan was found in an order, but none was proven not to exist; what would do is told when all have failed.

    Attributes:
        seconds: of the search.
    """

    def __init__(
        self, problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], fastest_seconds: float
    ) -> None:
        super().__init__("no plan was found")
        self._problem, self._limits, self._order = problem, limits, order
        self._fastest_seconds = fastest_seconds
        self.seconds = 0.0

    def explained(self, terms: Terms) -> LimitReachedError:
        """Return the error that says what was looked for and what would do, in the terms of who asked."""
        problem, limits = self._problem, self._limits
        known = _known_to_move(problem, limits, self._order)
        if self._fastest_seconds == float("inf"):
            found, allow = f"in {self.seconds:.0f} s", _or_allow(problem, limits, terms)
            means = f"{terms.advice}, or a larger --time-limit"
        else:
            found = (
                f"that meets the deadline of {limits.deadline_seconds:.6g} s, transfers included: the fastest found "
                f"takes {self._fastest_seconds:.6g} s"
            )
            allow = _or_allow(problem, limits.without_deadline(), terms)
            means = f"give at least that, or a budget of at least {terms.works_text}"
        return LimitReachedError(
            f"No plan for {terms}{_moving(limits)} was found {found}; {means}{allow}{known}.", terms.works_bytes
        )


class NoneExistsError(InfeasibleError):
    """No plan of a class exists; what would do is told when all orders have failed."""

    def __init__(self, instance: Instance, limits: Limits, covers: PlanClass) -> None:
        super().__init__("no plan exists")
        self._instance, self._limits, self._covers = instance, limits, covers

    def explained(self, terms: Terms) -> InfeasibleError:
        """Return the error that names the smallest budget that works, in the terms of who asked."""
        instance, limits = self._instance, self._limits
        within = "" if limits.deadline_seconds is None else f" within {limits.deadline_seconds:.6g} s"
        works = (
            "" if terms.works_bytes is None else f"the smallest found that works is {terms.works_bytes:,} bytes, and "
        )
        worst = max(range(len(instance.nodes)), key=instance.smallest_node_bytes)
        node_bytes = instance.largest_node_bytes
        order = [node.name for node in instance.nodes]
        return InfeasibleError(
            f"No plan{within}{_moving(limits)} keeps to {terms} among {self._covers}: {works}node "
            f"'{instance.nodes[worst].name}' alone needs {node_bytes:,}; {terms.advice}"
            f"{_or_allow(instance.problem, limits, terms, alone_bytes=node_bytes)}"
            f"{_known_to_move(instance.problem, limits, order)}.",
            terms.works_bytes,
        )


def _moving(limits: Limits) -> str:
    """Name the limits on what is moved, if there are any."""
    said = [f"{limit.verb}s at most {allowed:,} bytes" for limit, allowed in limits.on_transfers()]
    return f" that {' and '.join(said)} a step" if said else ""


def _known_to_move(problem: ScheduleProblem, limits: Limits, order: Sequence[str]) -> str:
    """Say what plans move that keep the other limits, where that is limited and such plans are found."""
    known = ""
    for limit, allowed in limits.on_transfers():
        found = least_moved(problem, limits, order, limit)
        if found is not None and found > allowed:
            known += f"; a plan for this budget that {limit.verb}s {found:,} bytes a step is known"
    return known


def _or_allow(problem: ScheduleProblem, limits: Limits, terms: Terms, *, alone_bytes: int = 0) -> str:
    """Say what was forbidden, or limited besides the budget, that may help; what is allowed is no advice.

    Args:
        problem: that has no plan.
        limits: that plans should have kept.
        terms: of who asked.
        alone_bytes: what one node needs: where the budget is less, only another form of the graph helps.
    """
    means = list(terms.forbidden)
    if alone_bytes <= (limits.budget_bytes or 0):
        means += [] if problem.recompute else ["recompute"]
        means += [] if problem.paging or not problem.costs.page_out else ["paging"]
        means += [] if limits.deadline_seconds is None else ["more time"]
    *others, last = means or [""]
    listed = f"{', '.join(others)} or {last}" if others else last
    return f", or allow {listed}, which may help" if listed else ""
