"""What planning begins with: a graph variant with its costs, and the baseline order of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from poet_onnx.addresses import BLOCK_EXTRA_BYTES
from poet_onnx.costing.costs import CostTable, cost_table
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.measured import MeasuredCosts
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.variants import GraphVariant
from poet_onnx.scheduling import SimulatedPlan, least_peak_bytes, memory_aware_order, most_values_alive

BLOCKS_BESIDES = 16
"""Blocks that may be there beside the graph's values: workspace, tokens, what a session passes in and out."""


@dataclass(frozen=True)
class Baseline:
    """A graph variant with its costs, and the order of its nodes that plans are looked for from.

    Attributes:
        variant: of the graph.
        problem: its graph and costs.
        target: runtime that will run it.
    """

    variant: GraphVariant
    problem: ScheduleProblem
    target: str

    @cached_property
    def ordered(self) -> SimulatedPlan:
        """Return the nodes in the memory-aware order."""
        return SimulatedPlan.in_order(self.problem, memory_aware_order(self.problem))

    @property
    def order(self) -> tuple[str, ...]:
        """Return the memory-aware order of the nodes."""
        return self.ordered.order

    @cached_property
    def aside_bytes(self) -> int:
        """Return what the target's runtime adds to the blocks that are alive at once in that order."""
        return set_aside_bytes(self.problem, self.order, self.target)

    @cached_property
    def least_peak_bytes(self) -> int:
        """Return what every plan of the variant needs at its peak: what one of its nodes does."""
        return least_peak_bytes(self.problem)

    @property
    def graph(self) -> TrainingGraph:
        """Return the variant's graph."""
        return self.problem.graph

    @property
    def costs(self) -> CostTable:
        """Return the graph's costs."""
        return self.problem.costs

    @classmethod
    def of(
        cls,
        variant: GraphVariant,
        device: DeviceProfile,
        target: str,
        *,
        measured: MeasuredCosts | None = None,
        first_graph: TrainingGraph | None = None,
        threads: int = 1,
    ) -> Baseline:
        """Cost a graph variant; its nodes are ordered where somebody asks. The arguments are those of `cost_table`.

        Raises:
            InputError: if `measured` is of another graph.
        """
        costs = cost_table(variant.graph, device, measured, first_graph=first_graph, threads=threads)
        return cls(variant, ScheduleProblem(variant.graph, costs, paging=bool(costs.page_out)), target)


def set_aside_bytes(problem: ScheduleProblem, order: Sequence[str], target: str) -> int:
    """Return the bytes that a budget keeps for what the stock runtime adds to the blocks that an order holds.

    On aarch64 onnxruntime makes every block MLAS_SYMM_QGEMM_BUF_OVERRUN bytes larger (allocator.cc), whatever is in it.
    """
    if target != "stock":
        return 0
    return BLOCK_EXTRA_BYTES * (most_values_alive(problem, order) + BLOCKS_BESIDES)
