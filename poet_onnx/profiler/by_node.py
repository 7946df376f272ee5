"""Measures a training step that does not fit this machine: node by node, never the whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.measured import MeasuredCosts, NodeMeasurement, OperatorMeasurement, load_measured
from poet_onnx.errors import InputError
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.profiler.journal import Journal
from poet_onnx.profiler.operators import Alone, RunOverhead, measure_operators, with_fitted
from poet_onnx.profiler.rates import TimedNodes
from poet_onnx.profiler.single import single_nodes
from poet_onnx.rewriting.variants import GraphVariant


@dataclass(frozen=True)
class Validity:
    """What figures are valid for.

    Attributes:
        device, target, machine, runtime, threads: as of `MeasuredCosts`.
    """

    device: str
    target: str
    machine: str
    runtime: str
    threads: int


@dataclass(frozen=True)
class MeasuredNodes:
    """What the nodes of a step and of its variants took, one by one.

    Attributes:
        step_seconds, node_overhead_seconds, nodes, variants, operators: as of `MeasuredCosts`; the step is the sum of
            its nodes.
    """

    step_seconds: float
    node_overhead_seconds: float
    nodes: Mapping[str, NodeMeasurement]
    variants: Mapping[str, Mapping[str, NodeMeasurement]]
    operators: Mapping[str, OperatorMeasurement]

    @property
    def timed(self) -> TimedNodes:
        """Return the times of the step's nodes alone."""
        kernels = {name: node.seconds for name, node in self.nodes.items()}
        return TimedNodes(self.step_seconds, self.node_overhead_seconds, kernels)


def measure_by_node(
    variants: Sequence[GraphVariant],
    device: DeviceProfile,
    alone: Alone,
    overhead: RunOverhead,
    *,
    journal: Journal,
    report: Callable[[str], None],
) -> MeasuredNodes:
    """Measure the nodes of a graph and of its variants.

    Args:
        variants: the graph itself first.
        device: whose profile the rest is fitted from.
        alone: how nodes run.
        overhead: what the runtime takes beside them.
        journal: knows what was measured before.
        report: called with what is being done.

    Raises:
        InputError: no node could be measured.
    """
    first = variants[0].graph
    known, modelled = dict[str, OperatorMeasurement](), dict[str, float]()
    found: list[tuple[TrainingGraph, Sequence[Node]]] = []
    for variant in variants:
        graph = variant.graph
        nodes = graph.nodes if graph is first else tuple(graph.nodes_beyond(first))
        known |= measure_operators(list(single_nodes(variant.model, graph, nodes)), alone, overhead, journal, report)
        costs = cost_table(graph, device, threads=alone.threads).nodes
        modelled |= {node.name: costs[node.name].seconds for node in nodes}
        found.append((graph, nodes))
    if not known:
        raise InputError("No node could be run alone within the memory that is left: close other programs.")
    figures = {
        graph.fingerprint: with_fitted(graph, nodes, known, modelled, threads=alone.threads) for graph, nodes in found
    }
    nodes_of_step = figures.pop(first.fingerprint)
    return MeasuredNodes(
        step_seconds=sum(node.seconds + overhead.node_seconds for node in nodes_of_step.values()),
        node_overhead_seconds=overhead.node_seconds,
        nodes=nodes_of_step,
        variants=figures,
        operators=journal.known,
    )


def known_operators(files: Sequence[str | os.PathLike[str]], valid_for: Validity) -> dict[str, OperatorMeasurement]:
    """Return what other profiles measured of operators; of one in several files the last one counts.

    Raises:
        InputError: a file cannot be read, has no operators, or is valid for something else.
    """
    known: dict[str, OperatorMeasurement] = {}
    for path in files:
        costs = load_measured(path)
        if _validity(costs) != valid_for:
            raise InputError(
                f"{Path(path).name} was measured on {_words(_validity(costs))}, and this profile is on "
                f"{_words(valid_for)}: merge files of the same alone."
            )
        if not costs.operators:
            raise InputError(f"{Path(path).name} has no operators to merge: measure it again with --by-node.")
        known |= costs.operators
    return known


def _validity(costs: MeasuredCosts) -> Validity:
    return Validity(costs.device, costs.target, costs.machine, costs.runtime, costs.threads)


def _words(valid: Validity) -> str:
    return (
        f"{valid.machine} with {valid.runtime}, device '{valid.device}', target '{valid.target}' and {valid.threads} "
        f"thread{'s' if valid.threads > 1 else ''}"
    )
