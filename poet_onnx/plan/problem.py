"""The scheduling problem: a graph, its costs, and the means that a plan may use. `Limits` says what it must keep to."""

from __future__ import annotations

from dataclasses import dataclass

from poet_onnx.costing.costs import CostTable
from poet_onnx.graph import TrainingGraph


@dataclass(frozen=True)
class ScheduleProblem:
    """What is to be planned.

    Attributes:
        graph: the training graph.
        costs: what nodes and transfers cost.
        recompute: recompute may be used.
        paging: paging may be used (it needs storage in `costs` too).
    """

    graph: TrainingGraph
    costs: CostTable
    recompute: bool = True
    paging: bool = True

    @property
    def base_joules(self) -> float:
        """Return the energy of running every node once, and of what the store writes behind the step."""
        nodes = (self.costs.nodes[node.name] for node in self.graph.nodes)
        computing = sum(node.joules + self.costs.idle_watts * node.seconds for node in nodes)
        return computing + self.costs.commit.joules + self.costs.idle_watts * self.costs.commit.seconds
