"""Finds what gradients flow through: the tensors between the trained parameters and the loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.gradients.registry import gradient
from poet_onnx.graph.shapes import TensorType

REAL = frozenset((ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE))


@dataclass(frozen=True)
class Paths:
    """The part of a graph that is differentiated.

    Attributes:
        values: that depend on a trained parameter and lead to the loss.
        nodes: between them, in the order of the graph.
    """

    values: frozenset[ir.Value]
    nodes: tuple[ir.Node, ...]


def find_paths(
    graph: ir.Graph, loss: ir.Value, parameters: Collection[ir.Value], types: Mapping[str, TensorType]
) -> Paths:
    """Find the tensors and nodes that lead from parameters to the loss.

    Args:
        graph: in an order that can run.
        loss: a tensor of one number.
        parameters: what is trained.
        types: of all tensors, by name.
    """

    def is_real(value: ir.Value) -> bool:
        found = types.get(value.name or "")
        return found is not None and found.dtype in REAL

    reached = set(parameters)
    for node in graph:
        if any(value in reached for value in sources(node)):
            reached.update(output for output in node.outputs if is_real(output))
    needed = {loss}
    for node in reversed(graph):
        if any(output in needed for output in node.outputs):
            needed.update(sources(node))
    values = frozenset(reached & needed)
    between = (node for node in graph if values.intersection(node.outputs) and values.intersection(sources(node)))
    return Paths(values, tuple(between))


def sources(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a node that may have a gradient; all of them if nobody knows the operator's."""
    found = gradient(node)
    inputs = {index: value for index, value in enumerate(node.inputs) if value is not None}
    if found is None:
        return list(inputs.values())
    flows = found.unknown if found.rule is None else inputs.keys() - found.stops
    return [value for index, value in inputs.items() if index in flows]
