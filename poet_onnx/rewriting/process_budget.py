"""The budget of a process: what of it is left for the step, and a plan with which the whole process keeps to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from poet_onnx.addresses import plan_region
from poet_onnx.addresses.region import Region
from poet_onnx.costing.process import ProcessCosts, ProcessMemory, process_memory
from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.passes.layout import Placed, lay_out
from poet_onnx.plan import Action, Plan, Prediction, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import ordered_steps, schedule
from poet_onnx.scheduling.refusals import NoneExistsError, NothingFoundError

ATTEMPTS = 4
"""Plans that are made, with paging and without, until the process keeps to its budget."""

_LEAST_SHARE = 0.25
"""Of the time that was given, for each plan after the first one."""

_EXPLAINED_SECONDS = 5.0
"""For a plan that tells what a process needs besides a step."""


class ProcessBudgetError(LimitReachedError):
    """Plans were found for what the budget leaves, but with what they add themselves the process exceeds it."""


@dataclass(frozen=True)
class ProcessBudget:
    """What a training process takes, and how much it may.

    Attributes:
        costs: of the process besides the step's tensors.
        target: runtime that the process trains with.
        budget_bytes: bound on the process's peak; None for none.
    """

    costs: ProcessCosts
    target: str
    budget_bytes: int | None = None
    _regions: dict[tuple[str, tuple[Step, ...]], Region] = field(default_factory=dict, init=False, compare=False)

    def of_order(self, graph: TrainingGraph, prediction: Prediction) -> ProcessMemory:
        """Return what the process takes that runs every node once, in an order whose figures are known."""
        return self._of_nodes(graph, prediction.transient_peak_bytes)

    def _of_nodes(self, graph: TrainingGraph, region_bytes: int) -> ProcessMemory:
        nodes, values = len(graph.nodes), _values(graph, graph.nodes)
        return process_memory(graph, self.costs, nodes=nodes, values=values, region_bytes=region_bytes, pages=False)

    def region(self, problem: ScheduleProblem, steps: tuple[Step, ...]) -> Region:
        """Return where the blocks of a plan's steps lie; it is worked out once."""
        key = (problem.graph.fingerprint, steps)
        if key not in self._regions:
            self._regions[key] = plan_region(problem, steps, self.target)
        return self._regions[key]

    def of_steps(self, problem: ScheduleProblem, steps: tuple[Step, ...]) -> ProcessMemory:
        """Return what the process takes that carries out the steps of a plan."""
        placed = lay_out(problem.graph, steps)
        return process_memory(
            problem.graph,
            self.costs,
            nodes=1 + len(placed),
            values=1 + _values(problem.graph, placed),
            region_bytes=self.region(problem, steps).region_bytes,
            pages=any(step.action is Action.PAGE_OUT_START for step in steps),
        )

    def fixed_bytes(self, graph: TrainingGraph) -> int:
        """Return what a process takes for a graph at least, whatever the plan, besides transient bytes."""
        return self._of_nodes(graph, 0).peak_bytes

    def schedule(
        self, problem: ScheduleProblem, make: Callable[[ScheduleProblem, float], Plan], *, seconds: float
    ) -> Plan:
        """Return a plan with which the process keeps to its budget.

        The scheduler knows transient bytes alone. A plan's own nodes, its paging and the gaps between its packed
        values come on top: where they do not fit, it plans again for as much less, and where nothing fits in that,
        for something between. Paging takes memory itself, so where that is too much it does without.

        Args:
            problem: to plan, with the transient bytes that are left of the budget.
            make: plans a problem in some seconds; raises what it raises.
            seconds: to plan in; what is planned again may take longer.

        Raises:
            ProcessBudgetError: if no attempt kept to the budget.
        """
        end = time.monotonic() + seconds

        def in_time(problem: ScheduleProblem) -> Plan:
            return make(problem, max(_LEAST_SHARE * seconds, end - time.monotonic()))

        plan, excess = self._closest(problem, in_time)
        if excess > 0 and plan.prediction.page_out_bytes and plan.certificate.status != "interrupted":
            with contextlib.suppress(NoneExistsError, NothingFoundError):
                unpaged = self._closest(replace(problem, paging=False), in_time)
                plan, excess = min((plan, excess), unpaged, key=lambda found: found[1])
        if excess > 0:
            needed = (self.budget_bytes or 0) + excess
            raise ProcessBudgetError(
                f"The best plan found needs a process of {needed:,} bytes, {excess:,} more than the RAM budget of "
                f"{self.budget_bytes:,} bytes; give at least {needed:,} bytes."
            )
        return plan

    def _closest(self, problem: ScheduleProblem, make: Callable[[ScheduleProblem], Plan]) -> tuple[Plan, int]:
        """Return the first plan that keeps to the budget, or the one of least excess, and by how much it exceeds it."""
        best = plan = make(problem)
        least = excess = self._excess_bytes(problem, plan)
        lowest, highest = 0, min(problem.budget_bytes or 0, plan.prediction.transient_peak_bytes)
        for _ in range(ATTEMPTS - 1):
            if least <= 0 or plan.certificate.status == "interrupted":
                break
            # Below its own peak: less than the budget alone might allow the same plan again.
            lowered = highest - excess if highest - excess > lowest else (lowest + highest) // 2
            try:
                plan = make(replace(problem, budget_bytes=max(1, lowered)))
            except (NoneExistsError, NothingFoundError):
                lowest = max(1, lowered)
                continue
            highest = min(lowered, plan.prediction.transient_peak_bytes)
            excess = self._excess_bytes(problem, plan)
            if excess < least:
                best, least = plan, excess
        return best, least

    def besides_bytes(self, problem: ScheduleProblem, order: Sequence[str], transient_bytes: int) -> int:
        """Return what a process needs besides, where so many transient bytes are enough for a plan.

        It is never more than with what the order needs that neither recomputes nor pages: that is certain to work.

        Args:
            problem: its budget is ignored.
            order: of the nodes, to begin with.
            transient_bytes: for which there is a plan; one is made, for it has nodes of its own and may page.
        """
        fixed = self.fixed_bytes(problem.graph)
        most = self.of_steps(problem, ordered_steps(order)).peak_bytes - transient_bytes
        problem = replace(problem, budget_bytes=transient_bytes)
        try:
            plan = schedule(problem, rule=tuple(order), time_limit_seconds=_EXPLAINED_SECONDS, explains=False)
        except (InfeasibleError, LimitReachedError):
            return max(fixed, most)
        # Another plan for the same bytes may have more nodes; with as much again there is room for one.
        extra = self.of_steps(problem, plan.steps).peak_bytes - transient_bytes - fixed
        return max(fixed, min(most, fixed + 2 * extra))

    def _excess_bytes(self, problem: ScheduleProblem, plan: Plan) -> int:
        return 0 if self.budget_bytes is None else self.of_steps(problem, plan.steps).peak_bytes - self.budget_bytes


def _values(graph: TrainingGraph, nodes: Sequence[Node | Placed]) -> int:
    """Return how many values a session knows: inputs, and what nodes make."""
    return len(graph.inputs) + sum(1 for node in nodes for name in node.outputs if name)
