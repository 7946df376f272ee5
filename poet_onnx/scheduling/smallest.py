"""The smallest budget that works: plans that need little RAM, found in a bounded search.

What is found depends on the problem and on limits besides the budget alone: work is counted, no clock is looked at, and
no budget that was asked for is known here. So the same command names the same budget on every machine, however busy;
and whatever larger budget is asked for next, the same plan is found again and keeps it.

The smallest transient peak of an order is found by the solver where the model is small, or where all is paged; in
larger ones, in other orders and within a deadline by quick plans for smaller and smaller budgets. A process wants more
than a small peak: each node and the paging take RAM of their own. So there are plans of larger peaks besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import ALL_PLANS, PlanClass, Step
from poet_onnx.plan.limits import UNLIMITED, Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.attempt import paged_start
from poet_onnx.scheduling.choices import solver_class
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.scheduling.liveness import Instance, Liveness, Profile, build_instance
from poet_onnx.scheduling.model import Formulation, formulate
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.order_search import OrderSearch
from poet_onnx.scheduling.quick_plan import quick_plan
from poet_onnx.scheduling.steps import SimulatedPlan, ordered_steps
from poet_onnx.simulate import simulate

PRECISION = 0.01
"""Share of the smallest budget known: nothing is looked for that would lower it by less."""

MOST_MODELS = 6
"""Models that are solved, each for the budget that the one before leads to."""

MOST_NODES = 600
"""Nodes of a graph that is recomputed: the model of a larger one takes long to build."""

OTHER_ORDERS = 3
"""Orders that are looked at besides the memory-aware one."""

SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.55, 0.7, 0.85)
"""Plans are made for budgets at these shares of the way from the smallest peak to the peak of the order."""

Accepts = Callable[[tuple[Step, ...]], bool]
"""Whether steps can be carried out, limits aside."""


@dataclass(frozen=True, slots=True)
class SmallestBudget:
    """How far the transient peak can be pushed down.

    Attributes:
        plan: the plan of the smallest peak that was found; None where nothing keeps the other limits.
        others: plans of larger peaks that keep them too, where they were asked for: a process may need less for them.
        bound_bytes: no plan of those that `covers` names fits in less; others, in other orders above all, may.
        covers: the plans that the bound is about.
        node: name of the node that needs the most by itself.
        node_bytes: its inputs, outputs and workspace.
    """

    plan: SimulatedPlan | None
    others: tuple[SimulatedPlan, ...]
    bound_bytes: int
    covers: PlanClass
    node: str
    node_bytes: int

    @property
    def budget_bytes(self) -> int:
        """Return the smallest budget for which a plan was found.

        Raises:
            CheckFailedError: if none was.
        """
        if self.plan is None:
            raise CheckFailedError("No plan was found that keeps the limits, so there is no smallest budget.")
        return _peak_bytes(self.plan)


def smallest_budget(
    problem: ScheduleProblem,
    order: Sequence[str] | None = None,
    *,
    limits: Limits = UNLIMITED,
    accepts: Accepts = lambda _: True,
    in_order: bool = False,
    varied: bool = False,
    in_ram: bool = False,
) -> SmallestBudget:
    """Find the smallest transient budget that a plan can keep to.

    Args:
        problem: to plan.
        order: of the nodes, to begin with; made if not given.
        limits: that the plan must keep besides; a budget among them is not looked at.
        accepts: what else must be true of its steps.
        in_order: look at no other order.
        varied: look for plans of larger peaks besides.
        in_ram: look at no plan but the order itself, which keeps everything in RAM.
    """
    order = tuple(order or memory_aware_order(problem))
    instance = build_instance(problem, order)
    needed, peak = instance.largest_node_bytes, max(instance.step_bytes())
    worst = instance.nodes[max(range(len(instance.nodes)), key=instance.smallest_node_bytes)].name
    search = _Search(problem, limits.within(None), accepts, in_order=in_order)
    if in_ram:
        search.offer_order(order)
        return SmallestBudget(search.smallest, (), min(needed, peak), ALL_PLANS, worst, needed)
    floor = search.solve(instance, min(needed, peak), peak)
    searches = [search]
    search.look_around(order, floor[0])
    alone = _Search(replace(problem, paging=False), search.limits, accepts, in_order=in_order)
    is_close = search.smallest_bytes <= (1 + PRECISION) * floor[0]
    if problem.paging and problem.costs.page_out and (varied or not is_close):
        searches.append(alone)
        alone.look_around(order, floor[0])
    # What is found besides must not lower the budget, or it would be another one where it is not asked for.
    counted = searches[:1] if is_close else searches
    plan = min((one.smallest for one in counted if one.smallest), key=_peak_bytes, default=None)
    if varied:
        for each in searches:
            each.look_above(order)
    others = tuple(other for each in searches for other in each.plans.values() if other is not plan)
    bound = floor[0] if plan is None else min(floor[0], _peak_bytes(plan))
    return SmallestBudget(plan, others, bound, floor[1], worst, needed)


def least_peak_bytes(problem: ScheduleProblem, order: Sequence[str]) -> int:
    """Return what every plan of a problem needs at its peak: what one of its nodes does, in any order."""
    return build_instance(problem, order).largest_node_bytes


_Floor = tuple[int, PlanClass]
"""Bytes that all plans of a class need."""


def _peak_bytes(plan: SimulatedPlan) -> int:
    return plan.prediction.transient_peak_bytes


class _Search:
    """A search among what a problem permits.

    Attributes:
        plans: that keep the limits, by their steps.
    """

    def __init__(self, problem: ScheduleProblem, limits: Limits, accepts: Accepts, *, in_order: bool) -> None:
        self.problem, self.limits, self.accepts, self.in_order = problem, limits, accepts, in_order
        self.liveness = Liveness(problem)
        self.plans: dict[tuple[Step, ...], SimulatedPlan] = {}

    @property
    def smallest(self) -> SimulatedPlan | None:
        """Return the plan of the smallest peak."""
        return min(self.plans.values(), key=_peak_bytes, default=None)

    @property
    def smallest_bytes(self) -> float:
        """Return its peak, infinite where there is no plan."""
        return math.inf if self.smallest is None else _peak_bytes(self.smallest)

    def offer(self, plan: SimulatedPlan | None) -> bool:
        """Take a plan if it keeps the limits; return whether it does."""
        if plan is None or any(self.limits.broken_by(plan.prediction)) or not self.accepts(plan.steps):
            return False
        self.plans.setdefault(plan.steps, plan)
        return True

    def solve(self, instance: Instance, low_bytes: int, peak_bytes: int) -> _Floor:
        """Offer the plan of the smallest peak in an order that the solver finds; return what its like need at least.

        Args:
            instance: the problem in the order.
            low_bytes: what every plan needs.
            peak_bytes: of the order as it is.
        """
        from poet_onnx.scheduling.solver import least_budget

        floor: _Floor = low_bytes, ALL_PLANS
        problem = self.problem
        is_small = len(instance.nodes) <= MOST_NODES or not problem.recompute
        if not is_small and not (problem.paging and problem.costs.page_out):
            return floor
        budget = low_bytes
        for _ in range(MOST_MODELS):
            if budget >= peak_bytes:
                break
            model = self._model(instance, budget)
            covers = solver_class(model.candidates)
            floor = max(floor, (model.memory.fixed_bytes, covers), key=itemgetter(0))
            if model.memory.fixed_bytes > budget:
                budget = model.memory.fixed_bytes
                continue
            if self._offer_paged(model):
                self._tighten(instance, model)
                break
            found = least_budget(model)
            floor = max(floor, (int(min(found.bound_bytes, found.budget_bytes)), covers), key=itemgetter(0))
            if found.x is None:
                break
            self._offer_assignment(model, found.x, math.ceil(found.budget_bytes))
            if found.budget_bytes <= budget:
                break
            # What the model sets aside depends on the budget.
            budget = max(budget + 1, math.ceil(found.budget_bytes - 0.5))
        return floor

    def _model(self, instance: Instance, budget_bytes: int) -> Formulation:
        """Build the model of the plans in the instance's order that are looked at.

        Where everything can be paged, paging alone reaches the smallest budget: a recompute needs what it reads in RAM
        besides.
        """
        problem = instance.problem
        if problem.paging and problem.costs.page_out:
            instance = replace(instance, problem=replace(problem, recompute=False))
        return formulate(instance, self.limits.without_deadline().within(budget_bytes))

    def _offer_assignment(self, model: Formulation, x: Sequence[float], budget_bytes: int) -> bool:
        """Offer the plan of an assignment if it keeps to a budget; return whether it is taken."""
        incumbent = Incumbent(self.problem, self.limits.within(budget_bytes))
        incumbent.offer(model, model.exact(x))
        return self.offer(incumbent.plan)

    def _offer_paged(self, model: Formulation) -> bool:
        """Offer the plan that keeps in RAM what it must alone; return whether it is taken."""
        x = paged_start(model)
        return x is not None and self._offer_assignment(model, x, model.limits.transient_bytes)

    def _tighten(self, instance: Instance, model: Formulation) -> None:
        """Offer plans for budgets a little below that of a feasible model.

        What the model sets aside for small values and tokens depends on the budget, so it may leave a rest.
        """
        while (fixed_bytes := model.memory.fixed_bytes) < model.limits.transient_bytes:
            model = self._model(instance, fixed_bytes)
            if model.memory.fixed_bytes > fixed_bytes or not self._offer_paged(model):
                break

    def look_around(self, order: Sequence[str], low_bytes: int) -> None:
        """Offer quick plans for smaller and smaller budgets, in an order and in others that may need less."""
        profile = self.liveness.in_order(order)
        self._descend(profile, low_bytes)
        if self.in_order or self.smallest is None or self.smallest_bytes <= (1 + PRECISION) * low_bytes:
            return
        tight = self.limits.within(int((1 - PRECISION) * self.smallest_bytes))
        for candidate in OrderSearch(profile, tight, end=math.inf, seed=0).candidates()[:OTHER_ORDERS]:
            if candidate.profile.order.tobytes() != profile.order.tobytes():
                self._descend(candidate.profile, low_bytes)

    def offer_order(self, order: Sequence[str]) -> bool:
        """Offer an order as it is; return whether it is taken: it is too slow otherwise."""
        steps = ordered_steps(order)
        return self.offer(SimulatedPlan(steps, simulate(self.problem, steps)))

    def _descend(self, profile: Profile, low_bytes: int) -> None:
        """Offer the order as it is, and halve the way from what works to what does not."""
        if not self.offer_order(self.liveness.names_of(profile.order)):
            return
        works = min(self.smallest_bytes, profile.peak_bytes)
        while works - low_bytes > PRECISION * works:
            budget = int(low_bytes + works) // 2
            plan = quick_plan(profile, self.limits.within(budget))
            if plan is not None and self.offer(plan):
                works = _peak_bytes(plan)
            else:
                low_bytes = budget

    def look_above(self, order: Sequence[str]) -> None:
        """Offer quick plans for budgets between the smallest that works and what the order needs as it is."""
        profile = self.liveness.in_order(order)
        if self.smallest is None:
            return
        low_bytes = _peak_bytes(self.smallest)
        for budget in _between(low_bytes, profile.peak_bytes):
            self.offer(quick_plan(profile, self.limits.within(budget)))


def _between(low_bytes: int, high_bytes: int) -> Iterator[int]:
    """Yield budgets between two."""
    if high_bytes - low_bytes > PRECISION * low_bytes:
        yield from (low_bytes + int(share * (high_bytes - low_bytes)) for share in SHARES)
