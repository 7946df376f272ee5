"""The scheduling problem: a graph, its costs, and what the plan must keep to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poet_onnx.costing.costs import CostTable
from poet_onnx.graph import TrainingGraph


@dataclass(frozen=True)
class ScheduleProblem:
    """Everything the scheduler needs to know.

    Attributes:
        graph: the training graph.
        costs: what nodes and transfers cost.
        budget_bytes: hard bound on the transient peak; None for none.
        deadline_seconds: hard bound on the predicted step time; None for none.
        recompute: recompute may be used.
        paging: paging may be used (it needs storage in `costs` too).
        max_written_bytes: hard bound on what a step writes to storage; None for none.
    """

    graph: TrainingGraph
    costs: CostTable
    budget_bytes: int | None = None
    deadline_seconds: float | None = None
    recompute: bool = True
    paging: bool = True
    max_written_bytes: int | None = None

    def unlimited(self) -> ScheduleProblem:
        """Return the problem without any bound."""
        return replace(self, budget_bytes=None, deadline_seconds=None, max_written_bytes=None)

    @property
    def base_joules(self) -> float:
        """Return the energy of running every node once and nothing else."""
        nodes = (self.costs.nodes[node.name] for node in self.graph.nodes)
        return sum(node.joules + self.costs.idle_watts * node.seconds for node in nodes)
