"""The smallest budget for which a model has a plan: made, placed in its region and replayed for the request at hand.

A budget of transient bytes is that of the smallest peak. A RAM budget bounds a process, where a plan's own nodes, its
paging and the gaps between its packed values count besides: the plans that the search for the smallest peak has found
are placed, the most promising first, and the one whose process takes the least decides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from poet_onnx.passes.paging import page_file_bytes
from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.budget import RequestedBudget
from poet_onnx.scheduling import Progress, SimulatedPlan, SmallestBudget, smallest_budget

MOST_LAID_OUT = 2
"""Plans of a graph variant that are laid out: to pack a large one takes a second."""


@dataclass(frozen=True)
class Candidate:
    """A graph variant, and what is asked of its plan.

    Attributes:
        baseline: of the variant.
        problem: its graph and costs, and what plans may do.
        limits: that a plan must keep besides the budget.
    """

    baseline: Baseline
    problem: ScheduleProblem
    limits: Limits

    def smallest(
        self, *, varied: bool = False, in_ram: bool = False, unpaged: SmallestBudget | None = None
    ) -> SmallestBudget:
        """Search among the plans whose pages have room; the arguments are those of `smallest_budget`."""
        storage, graph = self.problem.costs.storage, self.problem.graph

        def has_room(steps: tuple[Step, ...]) -> bool:
            return storage is None or page_file_bytes(graph, steps) <= storage.capacity_bytes

        limits, order = self.limits, self.baseline.order
        return smallest_budget(
            self.problem,
            order,
            limits=limits,
            accepts=has_room,
            varied=varied,
            in_ram=in_ram,
            unpaged=unpaged,
        )


@dataclass(frozen=True)
class ThriftyPlan:
    """The plan that needs the smallest budget of those found.

    Attributes:
        candidate: its graph variant.
        plan: its steps and their prediction.
        budget_bytes: the smallest budget of the kind that was asked for which it keeps.
    """

    candidate: Candidate
    plan: SimulatedPlan
    budget_bytes: int


def thriftiest(
    candidates: Iterable[Candidate],
    budget: RequestedBudget,
    *,
    in_ram: bool,
    progress: Callable[[Progress], None] | None,
) -> ThriftyPlan | None:
    """Return the plan of a model that needs the smallest budget of those found; None where there is none.

    Variants that cannot need less than what is known are left out.

    Args:
        candidates: the model's variants.
        budget: that was asked for; its size is not looked at.
        in_ram: look at plans alone that keep everything in RAM.
        progress: told when the search begins, and with each variant.
    """
    best: ThriftyPlan | None = None
    begin = time.monotonic()
    for candidate in candidates:
        below_bytes = math.inf if best is None else best.budget_bytes
        if budget.could_lower(candidate.baseline, below_bytes):
            least_bytes = budget.least_variant_bytes(candidate.baseline)
            if progress is not None:
                progress(Progress.looking("looking for the smallest budget that works", time.monotonic() - begin))
            found = thriftiest_of(candidate, candidate.smallest(in_ram=True), budget, below_bytes)
            # Where the order itself needs no more than importing the runtime does, nothing needs less.
            if not in_ram and (found is None or found.budget_bytes > least_bytes):
                varied = candidate.smallest(varied=budget.kind == "ram")
                found = thriftiest_of(candidate, varied, budget, below_bytes)
            best = found or best
    return best


def thriftiest_of(
    candidate: Candidate, found: SmallestBudget, budget: RequestedBudget, below_bytes: float = math.inf
) -> ThriftyPlan | None:
    """Return the plan of a variant that needs the smallest budget, None where none needs less than some bytes."""
    if found.plan is None:
        return None
    best: ThriftyPlan | None = None
    baseline = candidate.baseline
    plans = [found.plan, *(found.others if budget.kind == "ram" else ())]
    least_bytes_of = budget.least_bytes(baseline)
    least = sorted((least_bytes_of(plan), place) for place, plan in enumerate(plans))
    for least_bytes, place in least[:MOST_LAID_OUT]:
        if least_bytes >= below_bytes:
            break
        needed = budget.needed_bytes(baseline, candidate.problem, plans[place])
        if needed < below_bytes:
            best, below_bytes = ThriftyPlan(candidate, plans[place], needed), needed
    return best
