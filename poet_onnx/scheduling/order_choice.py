"""The order for a budget: the one in which least energy goes into recompute and paging.

The baseline order has the lowest peak, but what lies above a budget is more than the peak. A local search looks for
orders with cheap quick plans. The baseline order stays unless another one has a plan that the simulator accepts, that
meets the deadline, and that is cheaper than a bound on all plans of the baseline order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.bound import least_overhead
from poet_onnx.scheduling.eviction import Prices
from poet_onnx.scheduling.liveness import Profile, build_instance
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.order_search import BASELINE, Candidate, Network, OrderSearch
from poet_onnx.scheduling.quick_plan import QuickPlan, quick_plan

CHOSEN = 3
"""Orders that are judged by the simulator besides the baseline order."""


@dataclass(frozen=True)
class OrderChoice:
    """An order, and the plan that made it the choice.

    Attributes:
        order: names of the nodes.
        baseline: the baseline by which the order was made, "+ moves" if it was changed.
        peak_bytes: transient peak with nothing recomputed or paged.
        energy_joules: of the step by the quick plan, infinite if there is none.
        baseline_energy_joules: the same of the memory-aware order.
        baseline_bound_joules: no plan in the memory-aware order costs less, of any class; 0 where it was not needed.
        steps: of the quick plan; empty if there is none. It keeps to the budget, and to the deadline where a quick plan
            of any order that was judged does.
        rival: the order with the cheapest quick plan where it is not proven to be better than the memory-aware one,
            which is the choice then; empty if there is none. Only solving both can tell.
    """

    order: tuple[str, ...]
    baseline: str
    peak_bytes: int
    energy_joules: float
    baseline_energy_joules: float
    baseline_bound_joules: float
    steps: tuple[Step, ...]
    rival: tuple[str, ...] = ()


def order_for(
    problem: ScheduleProblem,
    limits: Limits,
    *,
    seconds: float = 20.0,
    seed: int = 0,
    baseline: Sequence[str] | None = None,
    found: Callable[[tuple[Step, ...]], None] | None = None,
) -> OrderChoice:
    """Return the order in which the cheapest plan within a budget was found if it beats all of the memory-aware order.

    Args:
        problem: to plan.
        limits: what the plan must keep to.
        seconds: of the processor, half of them for the search; a guard against large graphs on slow machines only, and
            the answer depends on the rest alone where it is not reached.
        seed: of the order in which moves are tried.
        baseline: the memory-aware order, if it is known.
        found: called with the steps of each plan that the simulator accepts, in whatever order.
    """
    begin, budget_bytes = time.thread_time(), limits.transient_bytes
    judge = _Judge(Network.of(problem, baseline or memory_aware_order(problem)), limits, begin + seconds / 2)
    baseline_profile = judge.network.baseline
    base = judge.quick_plan(baseline_profile)
    if base is not None and found is not None:
        found(base.steps)
    if baseline_profile.peak_bytes <= budget_bytes or judge.largest_node_bytes > budget_bytes:
        return judge.choice(BASELINE, baseline_profile, base, base)
    best, name, plan = baseline_profile, BASELINE, base
    for candidate in judge.candidates(seed)[:CHOSEN]:
        if time.thread_time() > begin + seconds:
            break
        quick = judge.quick_plan(candidate.profile)
        if quick is not None and (plan is None or quick.rank(limits) < plan.rank(limits)):
            best, name, plan = candidate.profile, candidate.baseline, quick
    if plan is not None and plan is not base and found is not None:
        found(plan.steps)
    if best is baseline_profile or plan is None:
        return judge.choice(BASELINE, baseline_profile, base, base)
    bound = judge.bound(baseline_profile)
    late, joules = plan.rank(limits)
    if not late and joules < bound:
        return judge.choice(name, best, plan, base, bound)
    return replace(
        judge.choice(BASELINE, baseline_profile, base, base, bound), rival=judge.network.liveness.names_of(best.order)
    )


@dataclass(frozen=True)
class _Judge:
    """What orders are worth within limits; `end` is the processor's time at which searches give up."""

    network: Network
    limits: Limits
    end: float

    @property
    def largest_node_bytes(self) -> int:
        """Return what the node that needs most needs by itself."""
        instance = build_instance(self.network.problem, self.network.liveness.names)
        return max(map(instance.smallest_node_bytes, range(len(instance.nodes))), default=0)

    def candidates(self, seed: int) -> list[Candidate]:
        """Return orders other than the baseline's, the most promising first."""
        search = OrderSearch(self.network, self.limits, self.end, seed)
        baseline = self.network.baseline.order.tobytes()
        return [one for one in search.candidates() if one.profile.order.tobytes() != baseline]

    def quick_plan(self, profile: Profile) -> QuickPlan | None:
        """Return the best quick plan of an order that the simulator accepts."""
        return quick_plan(self.network.liveness, self.network.prices, profile, self.limits)

    def bound(self, profile: Profile) -> float:
        """Return joules of the step that no plan of an order costs less than."""
        liveness = self.network.liveness
        least = least_overhead(liveness, Prices.of(liveness), profile, self.limits)
        return self.network.problem.base_joules + least

    def choice(
        self, baseline: str, profile: Profile, plan: QuickPlan | None, base: QuickPlan | None, bound: float = 0.0
    ) -> OrderChoice:
        """Return an order as the answer."""
        return OrderChoice(
            self.network.liveness.names_of(profile.order),
            baseline,
            profile.peak_bytes,
            plan.prediction.energy_joules if plan is not None else math.inf,
            base.prediction.energy_joules if base is not None else math.inf,
            bound,
            plan.steps if plan is not None else (),
        )
