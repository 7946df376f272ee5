"""What is said where there is no plan, and the smallest budget that works."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import ALL_PLANS, PlanClass
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.attempt import solve_in_order
from poet_onnx.scheduling.choices import solver_class
from poet_onnx.scheduling.incumbent import Incumbent, SearchLimits
from poet_onnx.scheduling.liveness import Instance, build_instance
from poet_onnx.scheduling.model import Formulation, formulate
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.starts import paged_start

SEARCH_SECONDS = 20.0

ALONE_SECONDS = 2.0
"""For recompute alone where there is storage to page to."""

LEAST_GAIN = 0.01
"""Share of the budget that recompute alone must be able to save."""

BISECTION_ITERATIONS = 6_000
"""Of the simplex, some 4 s, for each budget that is tried where there are other limits."""

BISECTIONS_SECONDS = 30.0
"""For all of them: what works by then is told, if not to the last percent."""

PRECISION = 0.02
"""Share of the budget to which the smallest one is found where there are other limits."""

LEAST_EXPLANATION_SECONDS = 10.0
"""To work out what would do, however little is left of the time limit."""


@dataclass(frozen=True, slots=True)
class SmallestBudget:
    """How far the transient peak can be pushed down.

    Attributes:
        budget_bytes: the smallest budget for which a plan was found.
        bound_bytes: no plan of those that `covers` names fits in less; others, in other orders above all, may.
        covers: the plans that were looked at.
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
    too_small_bytes: int = 0,
    seconds: float = BISECTIONS_SECONDS,
) -> SmallestBudget:
    """Find the smallest transient budget that a plan can keep to, within the problem's other limits.

    Args:
        problem: its budget is ignored.
        order: of the nodes; made if not given.
        too_small_bytes: a budget that was proven to be too small.
        seconds: to look for it where there are other limits.
    """
    instance = build_instance(problem, order or memory_aware_order(problem))
    needs = [instance.smallest_node_bytes(position) for position in range(len(instance.nodes))]
    worst = max(range(len(needs)), key=needs.__getitem__)
    peak = max(instance.step_bytes())
    alone = _Floor(min(needs[worst], peak), ALL_PLANS)
    low = min(max(needs[worst], too_small_bytes + 1), peak)
    if problem.deadline_seconds is None and problem.max_written_bytes is None:
        found, floor = _search(instance, low, peak, alone)
        found = _without_paging(instance, low, found)
    else:
        found, floor = _bisected(instance, low, peak, alone, seconds=seconds)
    node = instance.nodes[worst].name
    return SmallestBudget(min(found, peak), min(floor.size_bytes, found, peak), floor.covers, node, needs[worst])


@dataclass(frozen=True, slots=True)
class _Floor:
    """Bytes that all plans of a class need."""

    size_bytes: int
    covers: PlanClass

    def lifted(self, size_bytes: int, model: Formulation) -> _Floor:
        """Return the floor, or a higher one that a model's plans have."""
        return _Floor(size_bytes, solver_class(model.candidates)) if size_bytes > self.size_bytes else self


def _search(
    instance: Instance, low_bytes: int, peak_bytes: int, floor: _Floor, *, seconds: float = SEARCH_SECONDS
) -> tuple[int, _Floor]:
    """Return a budget that works, `peak_bytes` if no smaller one is found, and what all plans that are looked at need.

    Args:
        instance: the problem; its own budget is not looked at.
        low_bytes: the smallest budget to look at.
        peak_bytes: a budget that works.
        floor: that is known.
        seconds: for each model.
    """
    from poet_onnx.scheduling.solver import least_budget

    budget = low_bytes
    while budget < peak_bytes:
        model = _model(instance, budget)
        floor = floor.lifted(model.memory.fixed_bytes, model)
        if model.memory.fixed_bytes > budget:
            budget = model.memory.fixed_bytes
            continue
        if paged_start(model) is not None:
            return _tightened(instance, model), floor
        found, proven, _ = least_budget(model, time_limit_seconds=seconds)
        floor = floor.lifted(int(min(proven, found)), model)
        if found <= budget:
            return budget, floor
        budget = max(budget + 1, math.ceil(min(found, peak_bytes) - 0.5))
    return peak_bytes, floor


def _without_paging(instance: Instance, low_bytes: int, found_bytes: int) -> int:
    """Return a smaller budget than one that was found, if recompute alone, which needs no tokens, soon has one."""
    problem = instance.problem
    if not (problem.paging and problem.recompute) or found_bytes - low_bytes < LEAST_GAIN * found_bytes:
        return found_bytes
    alone = replace(instance, problem=replace(problem, paging=False))
    floor = _Floor(low_bytes, ALL_PLANS)
    # Mostly one model says that it has none; from the bottom up there would be many.
    if _search(alone, max(low_bytes, found_bytes - 1), found_bytes, floor, seconds=ALONE_SECONDS)[0] == found_bytes:
        return found_bytes
    return _search(alone, low_bytes, found_bytes, floor, seconds=ALONE_SECONDS)[0]


def _bisected(
    instance: Instance, low_bytes: int, peak_bytes: int, floor: _Floor, *, seconds: float
) -> tuple[int, _Floor]:
    """Return the smallest budget, as near as time allows, for which a plan is found that keeps the other limits.

    Args:
        instance: the problem; its own budget is not looked at.
        low_bytes: no plan fits in less.
        peak_bytes: a budget that works.
        floor: that is known.
        seconds: to look in.

    Returns:
        That budget, and what plans need: one byte more than the largest budget that was proven to be too small.
    """
    works = peak_bytes
    budget = low_bytes
    limits = SearchLimits(math.inf, math.inf, seconds, most_iterations=BISECTION_ITERATIONS)
    end = time.monotonic() + seconds
    while works - low_bytes > PRECISION * works and time.monotonic() < end:
        limited = instance.within(budget)
        incumbent = Incumbent(limited.problem, instance.base_joules, None)
        status, model = solve_in_order(incumbent, limited, limits.until(end))
        if incumbent.steps is None:
            if status == "infeasible" and model is not None:
                floor = floor.lifted(budget + 1, model)
            low_bytes = budget
        else:
            works = budget
        budget = (low_bytes + works) // 2
    return works, floor


def _tightened(instance: Instance, model: Formulation) -> int:
    """Return the smallest feasible budget at or a little below that of a feasible model.

    What the model sets aside for small values and tokens depends on the budget, so a feasible model may leave a rest.
    """
    while model.memory.fixed_bytes < model.budget_bytes:
        tighter = _model(instance, model.memory.fixed_bytes)
        if tighter.memory.fixed_bytes > tighter.budget_bytes or paged_start(tighter) is None:
            break
        model = tighter
    return model.budget_bytes


def _model(instance: Instance, budget_bytes: int) -> Formulation:
    """Build the model of the plans in the instance's order that are looked at.

    Where everything can be paged, paging alone reaches the smallest budget: a recompute needs what it reads in RAM
    besides.
    """
    problem = instance.problem
    if problem.paging and problem.costs.page_out:
        instance = replace(instance, problem=replace(problem, recompute=False))
    # A little less may do where each token counts, but then it may take a minute to find a plan; with room set aside it
    # takes a moment.
    return formulate(instance.within(budget_bytes), may_count_all=False)


def least_written(problem: ScheduleProblem, order: Sequence[str], *, seconds: float) -> int | None:
    """Return the fewest bytes that a plan was found to write in a step within a problem's other limits.

    The solver sees what is written in the place of energy; None where it finds no plan.
    """
    graph, costs = problem.graph, problem.costs
    bytes_as_joules = replace(
        costs,
        nodes={name: replace(cost, joules=0.0) for name, cost in costs.nodes.items()},
        page_out={
            name: replace(cost, joules=float(graph.tensors[name].size_bytes)) for name, cost in costs.page_out.items()
        },
        page_in={name: replace(cost, joules=0.0) for name, cost in costs.page_in.items()},
        idle_watts=0.0,
    )
    free = replace(problem, costs=bytes_as_joules, max_written_bytes=None)
    incumbent = Incumbent(free, 0.0, None)
    limits = SearchLimits(PRECISION, PRECISION, seconds, most_iterations=BISECTION_ITERATIONS)
    solve_in_order(incumbent, build_instance(free, order), limits)
    return None if incumbent.prediction is None else incumbent.prediction.page_out_bytes


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
        known = _known_to_write(self._problem, self._order, seconds=seconds / 2)
        if self._fastest_seconds == float("inf"):
            return LimitReachedError(
                f"No plan for {terms}{_writing(self._problem)} was found in {self.seconds:.0f} s; give a larger "
                f"--time-limit or budget{_or_allow(self._problem, terms)}{known}."
            )
        works = terms.whole_bytes(smallest_budget(self._problem, self._order, seconds=seconds).budget_bytes)
        return LimitReachedError(
            f"No plan for {terms}{_writing(self._problem)} was found that meets the deadline of "
            f"{self._problem.deadline_seconds:.6g} s, transfers included: the fastest found takes "
            f"{self._fastest_seconds:.6g} s; give at least that, or a budget of {works:,} bytes"
            f"{_or_allow(replace(self._problem, deadline_seconds=None), terms)}{known}."
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
            f"No plan{within}{_writing(problem)} keeps to {terms} among {self._covers}: the smallest found that works "
            f"is {works} bytes, and node '{smallest.node}' alone needs {smallest.node_bytes:,}; give at least {works} "
            f"bytes{_or_allow(problem, terms, alone_bytes=smallest.node_bytes)}"
            f"{_known_to_write(problem, self._order, seconds=seconds / 2)}.",
            smallest.budget_bytes,
        )


def _writing(problem: ScheduleProblem) -> str:
    """Name the limit on what is written, if there is one."""
    allowed = problem.max_written_bytes
    return "" if allowed is None else f" that writes at most {allowed:,} bytes a step"


def _known_to_write(problem: ScheduleProblem, order: Sequence[str], *, seconds: float) -> str:
    """Say what a plan writes that keeps the other limits, if what may be written is limited and one is found."""
    if problem.max_written_bytes is None:
        return ""
    found = least_written(problem, order, seconds=seconds)
    if found is None or found <= problem.max_written_bytes:
        return ""
    return f"; a plan for this budget that writes {found:,} bytes a step is known"


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


def check_large_nodes(instance: Instance) -> None:
    """Look whether every node alone keeps to the budget.

    Raises:
        NoneExistsError: if one does not.
    """
    if any(instance.smallest_node_bytes(position) > instance.budget_bytes for position in range(len(instance.nodes))):
        raise NoneExistsError(instance, ALL_PLANS)
