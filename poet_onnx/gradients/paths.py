"""Finds what gradients flow through: the tensors between the trained parameters and the loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.gradients.registry import gradient, stops_gradient
from poet_onnx.graph.shapes import TensorType

OF_SHAPE = ("Shape", "Size")
"""Operators that read no numbers."""

REAL = frozenset((ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE))


@dataclass(frozen=True)
class Paths:
    """The part of a graph that is differentiated.

    Attributes:
        values: that depend on a trained parameter and lead to the loss.
        nodes: between them, in the order of the graph.
        lost: nodes by which more would flow to a parameter than is known.
    """

    values: frozenset[ir.Value]
    nodes: tuple[ir.Node, ...]
    lost: tuple[ir.Node, ...]


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
    reached = set(parameters)
    for node in graph:
        reached.update(_flows(node, reached, types))
    needed = {loss}
    for node in reversed(graph):
        if any(output in needed and _is_real(output, types) for output in node.outputs):
            needed.update(sources(node))
    values = frozenset(reached & needed)
    between = (node for node in graph if values.intersection(node.outputs) and values.intersection(sources(node)))
    lost = (node for node in graph if needed.intersection(node.outputs) and reached.intersection(_unknown(node)))
    return Paths(values, tuple(between), tuple(lost))


def ends_of(
    graph: ir.Graph, loss: ir.Value, parameters: Collection[ir.Value], types: Mapping[str, TensorType]
) -> list[ir.Node]:
    """Find the nodes at which gradients of parameters end though the loss depends on them, as Round and comparisons.

    A `detach` is none of them, for it is meant so, nor is what reads the scales of quantized weights. Shapes do not
    depend on numbers.

    Args:
        graph: in an order that can run.
        loss: a tensor of one number.
        parameters: to which no gradient leads.
        types: of all tensors, by name.
    """
    needed = {loss}
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs):
            needed.update(value for value in node.inputs if value is not None)
    reached, ends = set(parameters), []
    for node in graph:
        if reached.isdisjoint(node.inputs) or needed.isdisjoint(node.outputs):
            continue
        flows = _flows(node, reached, types)
        reached.update(flows)
        is_zero = node.op_type not in OF_SHAPE and reached.isdisjoint(_unknown(node)) and not stops_gradient(node)
        if not flows and is_zero:
            ends.append(node)
    return ends


def _flows(node: ir.Node, reached: Collection[ir.Value], types: Mapping[str, TensorType]) -> list[ir.Value]:
    """Return the results of a node through which gradients flow to tensors that it reads."""
    if not any(value in reached for value in sources(node)):
        return []
    return [output for output in node.outputs if _is_real(output, types)]


def _is_real(value: ir.Value, types: Mapping[str, TensorType]) -> bool:
    found = types.get(value.name or "")
    return found is not None and found.dtype in REAL


def sources(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a node that may have a gradient; all of them if nobody knows the operator's."""
    found = gradient(node)
    if found is not None and found.rule is None:
        return []
    left_out = found.stops | found.unknown if found is not None else frozenset()
    return [value for index, value in enumerate(node.inputs) if value is not None and index not in left_out]


def _unknown(node: ir.Node) -> list[ir.Value | None]:
    """Return the inputs of a node whose gradient would be needed, but is not known."""
    found = gradient(node)
    places = found.unknown if found is not None else frozenset()
    return [value for index, value in enumerate(node.inputs) if index in places]
