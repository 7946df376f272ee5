"""What is said where there is no plan, and the smallest budget that works."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import ALL_PLANS, PlanClass
from poet_onnx.plan.limits import UNLIMITED, Limits, TransferLimit
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.attempt import paged_start
from poet_onnx.scheduling.choices import solver_class
from poet_onnx.scheduling.liveness import Instance, Liveness, build_instance
from poet_onnx.scheduling.model import Formulation, formulate
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.quick_plan import quick_plan

SEARCH_SECONDS = 20.0
"""Of the solver, for each model."""

PRECISION = 0.02
"""Share of the budget to which the smallest one is found where there are other limits."""


@dataclass(frozen=True, slots=True)
class SmallestBudget:
    """How far the transient peak can be pushed down.

    Attributes:
        budget_bytes: the smallest budget for which a plan was found.
        bound_bytes: no plan of those that `covers` names fits in less; others, in other orders above all, may.
        covers: the plans that the bound is about.
        node: name of the node that needs the most by itself.
        node_bytes: its inputs, outputs and workspace.
    """

    budget_bytes: int
    bound_bytes: int
    covers: PlanClass
    node: str
    node_bytes: int


def smallest_budget(
    problem: ScheduleProblem,
    order: Sequence[str] | None = None,
    *,
    others: Limits = UNLIMITED,
    too_small_bytes: int = 0,
) -> SmallestBudget:
    """Find the smallest transient budget that a plan can keep to; within other limits, that a quick plan does.

    Args:
        problem: to plan.
        order: of the nodes; made if not given.
        others: limits that the plan must keep besides, without a budget.
        too_small_bytes: a budget that was proven to be too small, or for which nothing was found.
    """
    instance = build_instance(problem, order or memory_aware_order(problem))
    worst = max(range(len(instance.nodes)), key=instance.smallest_node_bytes)
    needed = instance.largest_node_bytes
    peak = max(instance.step_bytes())
    floor = min(needed, peak), ALL_PLANS
    low = min(max(needed, too_small_bytes + 1), peak)
    if others == UNLIMITED:
        found, floor = _search(instance, low, peak, floor)
    else:
        found = _quickly(instance, others, low, peak)
    node = instance.nodes[worst].name
    return SmallestBudget(min(found, peak), min(floor[0], found, peak), floor[1], node, needed)


_Floor = tuple[int, PlanClass]
"""Bytes that all plans of a class need."""


def _search(instance: Instance, low_bytes: int, peak_bytes: int, floor: _Floor) -> tuple[int, _Floor]:
    """Return a budget that works, `peak_bytes` if no smaller one is found, and what all plans that are looked at need.

    Args:
        instance: the problem, without other limits.
        low_bytes: the smallest budget to look at.
        peak_bytes: a budget that works.
        floor: that is known.
    """
    from poet_onnx.scheduling.solver import least_budget

    budget = low_bytes
    while budget < peak_bytes:
        model = _model(instance, budget)
        covers = solver_class(model.candidates)
        floor = max(floor, (model.memory.fixed_bytes, covers), key=itemgetter(0))
        if model.memory.fixed_bytes > budget:
            budget = model.memory.fixed_bytes
            continue
        if paged_start(model) is not None:
            return _tightened(instance, model), floor
        found, proven = least_budget(model, time_limit_seconds=SEARCH_SECONDS)
        floor = max(floor, (int(min(proven, found)), covers), key=itemgetter(0))
        if found <= budget:
            return budget, floor
        budget = max(budget + 1, math.ceil(min(found, peak_bytes) - 0.5))
    return peak_bytes, floor


def _quickly(instance: Instance, others: Limits, low_bytes: int, peak_bytes: int) -> int:
    """Return the smallest budget, nearly, for which a quick plan keeps other limits; what needs no plan always does."""
    profile = Liveness(instance.problem).in_order([node.name for node in instance.nodes])
    works = peak_bytes
    while works - low_bytes > PRECISION * works:
        limits = others.within((low_bytes + works) // 2)
        quick = quick_plan(profile, limits)
        if quick is None or any(limits.broken_by(quick.prediction)):
            low_bytes = limits.transient_bytes
        else:
            works = limits.transient_bytes
    return works


def _tightened(instance: Instance, model: Formulation) -> int:
    """Return the smallest feasible budget at or a little below that of a feasible model.

    What the model sets aside for small values and tokens depends on the budget, so a feasible model may leave a rest.
    """
    while (fixed_bytes := model.memory.fixed_bytes) < model.limits.transient_bytes:
        tighter = _model(instance, fixed_bytes)
        if tighter.memory.fixed_bytes > fixed_bytes or paged_start(tighter) is None:
            break
        model = tighter
    return model.limits.transient_bytes


def _model(instance: Instance, budget_bytes: int) -> Formulation:
    """Build the model of the plans in the instance's order that are looked at.

    Where everything can be paged, paging alone reaches the smallest budget: a recompute needs what it reads in RAM
    besides.
    """
    problem = instance.problem
    if problem.paging and problem.costs.page_out:
        instance = replace(instance, problem=replace(problem, recompute=False))
    return formulate(instance, Limits(budget_bytes))


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
    def of(cls, limits: Limits) -> Terms:
        """Return the terms of a budget that the scheduler was given whole."""
        return cls("transient budget", limits.budget_bytes or 0)

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

    def __init__(
        self, problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], fastest_seconds: float
    ) -> None:
        super().__init__("no plan was found")
        self._problem, self._limits, self._order = problem, limits, order
        self._fastest_seconds = fastest_seconds
        self.seconds = 0.0

    def explained(self, terms: Terms | None = None) -> LimitReachedError:
        """Return the error that says what was looked for and what would do, in the terms of who asked."""
        problem, limits, order = self._problem, self._limits, self._order
        terms = terms or Terms.of(limits)
        known = _known_to_move(problem, limits, order)
        if self._fastest_seconds == float("inf"):
            return LimitReachedError(
                f"No plan for {terms}{_moving(limits)} was found in {self.seconds:.0f} s; give a larger "
                f"--time-limit or budget{_or_allow(problem, limits, terms)}{known}."
            )
        smallest = smallest_budget(problem, order, others=limits.within(None), too_small_bytes=limits.budget_bytes or 0)
        return LimitReachedError(
            f"No plan for {terms}{_moving(limits)} was found that meets the deadline of "
            f"{limits.deadline_seconds:.6g} s, transfers included: the fastest found takes "
            f"{self._fastest_seconds:.6g} s; give at least that, or a budget of "
            f"{terms.whole_bytes(smallest.budget_bytes):,} bytes"
            f"{_or_allow(problem, limits.without_deadline(), terms)}{known}."
        )


class NoneExistsError(InfeasibleError):
    """No plan of a class exists; what would do is told when all orders have failed."""

    def __init__(self, instance: Instance, limits: Limits, covers: PlanClass) -> None:
        super().__init__("no plan exists")
        self._problem, self._limits, self._covers = instance.problem, limits, covers
        self._order = tuple(node.name for node in instance.nodes)

    def explained(self, terms: Terms | None = None) -> InfeasibleError:
        """Return the error that names the smallest budget that works, in the terms of who asked."""
        problem, limits, order = self._problem, self._limits, self._order
        terms = terms or Terms.of(limits)
        smallest = smallest_budget(problem, order, others=limits.within(None), too_small_bytes=limits.budget_bytes or 0)
        within = "" if limits.deadline_seconds is None else f" within {limits.deadline_seconds:.6g} s"
        works = f"{terms.whole_bytes(smallest.budget_bytes):,}"
        return InfeasibleError(
            f"No plan{within}{_moving(limits)} keeps to {terms} among {self._covers}: the smallest found that works "
            f"is {works} bytes, and node '{smallest.node}' alone needs {smallest.node_bytes:,}; give at least {works} "
            f"bytes{_or_allow(problem, limits, terms, alone_bytes=smallest.node_bytes)}"
            f"{_known_to_move(problem, limits, order)}.",
            smallest.budget_bytes,
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
