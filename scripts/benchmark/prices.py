"""Energy of every decision, the same for all methods: the device's joules plus idle power over the time it costs."""

from __future__ import annotations

from dataclasses import dataclass

from poet_onnx.plan.problem import ScheduleProblem


@dataclass(frozen=True)
class Prices:
    """Joules of single decisions of a problem.

    Attributes:
        problem: where they come from.
    """

    problem: ScheduleProblem

    def compute(self, node: str) -> float:
        """Return the joules of running a node once."""
        costs = self.problem.costs
        return costs.nodes[node].joules + costs.idle_watts * costs.nodes[node].seconds

    def page_out(self, value: str) -> float:
        """Return the joules of one page-out."""
        cost = self.problem.costs.page_out[value]
        return cost.joules + self._wait_watts * cost.seconds

    def page_in(self, value: str) -> float:
        """Return the joules of one page-in."""
        cost = self.problem.costs.page_in[value]
        return cost.joules + self._wait_watts * cost.seconds

    @property
    def base(self) -> float:
        """Return the joules of running every node once, views included."""
        return sum(self.compute(node.name) for node in self.problem.graph.nodes)

    @property
    def base_seconds(self) -> float:
        """Return the seconds of running every node once, views included."""
        return sum(self.problem.costs.nodes[node.name].seconds for node in self.problem.graph.nodes)

    @property
    def _wait_watts(self) -> float:
        return 0.0 if self.problem.costs.asynchronous else self.problem.costs.idle_watts


def can_page(problem: ScheduleProblem, value: str) -> bool:
    """Return whether a value may be moved to storage and back."""
    return problem.paging and value in problem.costs.page_out and value in problem.costs.page_in
