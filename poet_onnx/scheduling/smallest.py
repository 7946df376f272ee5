"""The smallest budget that works: plans that need little RAM, found in a bounded search.

What is found depends on the problem and on limits besides the budget alone: work is counted, no clock is looked at, and
no budget that was asked for is known here. So the same command names the same budget on every machine, however busy;
and whatever larger budget is asked for next, the same plan is found again and keeps it.

Where everything may be paged, what a node needs by itself is nearly enough. Where not, or not all within a limit, the
solver looks for the smallest peak of an order if the model is small, and sweeps and quick plans look in that order and
in others. A process wants more than a small peak: each node and the paging take RAM of their own. So there are plans of
larger peaks besides, with as few nodes as possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import ALL_PLANS, PlanClass, Step
from poet_onnx.plan.limits import UNLIMITED, Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.attempt import paged_start
from poet_onnx.scheduling.choices import solver_class
from poet_onnx.scheduling.incumbent import Incumbent
from poet_onnx.scheduling.liveness import Instance, Liveness, Profile, build_instance, file_order
from poet_onnx.scheduling.model import Formulation, formulate
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.order_search import OrderSearch
from poet_onnx.scheduling.quick_plan import quick_plan
from poet_onnx.scheduling.steps import SimulatedPlan, ordered_steps
from poet_onnx.scheduling.sweeps import all_paged, fewest_restores, lowest
from poet_onnx.simulate import simulate

PRECISION = 0.01
"""Share of the smallest budget known: nothing is looked for that would lower it by less."""

MOST_MODELS = 6
"""Models that are solved, each for the budget that the one before leads to."""

MOST_NODES = 600
"""Nodes of a graph that is recomputed: the model of a larger one takes long to build."""

OTHER_ORDERS = 3
"""Orders that are looked at besides the memory-aware one."""

LEVELS = 12
"""Budgets for which there are plans besides, from the smallest peak to that of the order, each a share of the next."""

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
    unpaged: SmallestBudget | None = None,
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
        unpaged: what was found without paging, if that was looked for with the same arguments.
    """
    order = tuple(order or memory_aware_order(problem))
    instance = build_instance(problem, order)
    needed, peak = instance.largest_node_bytes, max(instance.step_bytes())
    worst = instance.nodes[max(range(len(instance.nodes)), key=instance.smallest_node_bytes)].name
    search = _Search(problem, order, limits.within(None), accepts, in_order=in_order)
    search.offer_order(order)
    floor: _Floor = min(needed, peak), ALL_PLANS
    if in_ram:
        return SmallestBudget(search.smallest, (), floor[0], ALL_PLANS, worst, needed)
    pages = problem.paging and bool(problem.costs.page_out)
    if pages:
        search.page_all(floor[0])
    if not search.is_close(floor[0]):
        floor = search.solve(instance, floor[0], peak)
        search.look_around(floor[0])
    is_close = search.is_close(floor[0])
    # What is looked for only to vary must not lower the budget, or it would be another one where it is not asked for.
    smallest = search.smallest
    if varied:
        search.look_above()
    plans = list(search.plans.values())
    if pages and (varied or not is_close):
        unpaged = unpaged or smallest_budget(
            replace(problem, paging=False), order, limits=limits, accepts=accepts, in_order=in_order, varied=varied
        )
        plans += filter(None, (unpaged.plan, *unpaged.others))
        smallest = smallest if is_close else min(filter(None, (smallest, unpaged.plan)), key=_peak_bytes, default=None)
    others = tuple(other for other in plans if other is not smallest)
    bound = floor[0] if smallest is None else min(floor[0], _peak_bytes(smallest))
    return SmallestBudget(smallest, others, bound, floor[1], worst, needed)


def least_peak_bytes(problem: ScheduleProblem) -> int:
    """Return what every plan of a problem needs at its peak: what one of its nodes does, in any order."""
    return build_instance(problem, file_order(problem.graph)).largest_node_bytes


_Floor = tuple[int, PlanClass]
"""Bytes that all plans of a class need."""


def _peak_bytes(plan: SimulatedPlan) -> int:
    return plan.prediction.transient_peak_bytes


class _Search:
    """A search among what a problem permits.

    Attributes:
        plans: that keep the limits, by their steps.
        profiles: the order to begin with and, behind it, the one of the lowest peak if that is another one.
    """

    def __init__(
        self, problem: ScheduleProblem, order: Sequence[str], limits: Limits, accepts: Accepts, *, in_order: bool
    ) -> None:
        self.problem, self.limits, self.accepts, self.in_order = problem, limits, accepts, in_order
        self.liveness = Liveness(problem)
        self.profiles = [self.liveness.in_order(order)]
        self.plans: dict[tuple[Step, ...], SimulatedPlan] = {}

    @property
    def smallest(self) -> SimulatedPlan | None:
        """Return the plan of the smallest peak."""
        return min(self.plans.values(), key=_peak_bytes, default=None)

    def is_close(self, low_bytes: int) -> bool:
        """Return whether the smallest peak is as close to what every plan needs as is looked for."""
        return self.smallest_bytes <= (1 + PRECISION) * low_bytes

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

    def page_all(self, low_bytes: int) -> None:
        """Offer plans that page all there is, the one of fewer transfers first."""
        for steps in all_paged(self.profiles[0], low_bytes):
            self._offer_steps(steps)

    def look_around(self, low_bytes: int) -> None:
        """Offer quick plans for smaller and smaller budgets, in the order and in others that may need less."""
        first = best = self.profiles[0]
        others: list[Profile] = []
        if not self._swept(first, low_bytes):
            return
        if not (self.in_order or self.is_close(low_bytes)):
            tight = self.limits.within(int((1 - PRECISION) * self.smallest_bytes))
            candidates = OrderSearch(first, tight, end=math.inf, seed=0).candidates()[:OTHER_ORDERS]
            others = [one.profile for one in candidates if one.profile.order.tobytes() != first.order.tobytes()]
        for profile in others:
            known_bytes = self.smallest_bytes
            if self._swept(profile, low_bytes) and self.smallest_bytes < known_bytes:
                best = profile
        # Sweeps look at no other limit than the budget, and quick plans keep to all.
        for profile in () if self.limits == UNLIMITED else (first, *others):
            self._descend(profile, low_bytes)
        self.profiles = [first] if best is first else [first, best]

    def _swept(self, profile: Profile, low_bytes: int) -> bool:
        """Offer an order and the plan of the lowest peak that a sweep finds; return whether the first is taken."""
        is_taken = self.offer_order(self.liveness.names_of(profile.order))
        self._offer_steps(lowest(profile, low_bytes))
        return is_taken

    def offer_order(self, order: Sequence[str]) -> bool:
        """Offer an order as it is; return whether it is taken: it is too slow otherwise."""
        return self._offer_steps(ordered_steps(order))

    def _offer_steps(self, steps: tuple[Step, ...]) -> bool:
        """Offer steps; return whether they are taken."""
        return self.offer(self.plans.get(steps) or SimulatedPlan(steps, simulate(self.problem, steps)))

    def _descend(self, profile: Profile, low_bytes: int) -> None:
        """Offer the order as it is, and halve the way from what works to what does not."""
        if not self.offer_order(self.liveness.names_of(profile.order)):
            return
        works, fails = min(self.smallest_bytes, profile.peak_bytes), low_bytes - 1
        while works - fails > max(1, PRECISION * works):
            budget = int(fails + works) // 2
            plan = quick_plan(profile, self.limits.within(budget))
            if plan is not None and self.offer(plan):
                works = _peak_bytes(plan)
            else:
                fails = budget

    def look_above(self) -> None:
        """Offer plans of few runs and transfers for budgets between the smallest that works and an order's peak."""
        if self.smallest is None:
            return
        low_bytes = _peak_bytes(self.smallest)
        for profile in self.profiles:
            ratio = profile.peak_bytes / low_bytes
            budgets = [int(low_bytes * ratio ** (level / LEVELS)) for level in range(LEVELS)]
            for steps in fewest_restores(profile, budgets) if ratio > 1 + PRECISION else ():
                self._offer_steps(steps)
