"""Biases of zeros that torch's dynamo exporter gives to convolutions of volumes without one.

They have the shape [filters, 2], which ONNX Runtime refuses (torch 2.13.0, onnxscript 0.7).
"""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_number, is_op


def drop_zero_biases(model: ir.Model) -> None:
    """Take biases that are made of a zero out of a forward model; what made them goes if nobody else reads it."""
    graph = model.graph
    for node in list(graph):
        if not is_op(node, "Conv") or len(node.inputs) < 3 or not _is_zero(node.inputs[2]):
            continue
        bias = node.inputs[2]
        node.resize_inputs(2)
        _drop_unread(graph, bias)


def _is_zero(value: ir.Value | None) -> bool:
    """Return whether a value is a constant zero that was expanded; a parameter is none, whatever its number."""
    node = None if value is None else value.producer()
    if node is not None and is_op(node, "Expand", "CastLike", "Cast"):
        return _is_zero(node.inputs[0])
    return is_op(node, "Constant") and is_number(value, 0.0)


def _drop_unread(graph: ir.Graph, value: ir.Value | None) -> None:
    node = None if value is None else value.producer()
    if node is None or any(output.uses() or output.is_graph_output() for output in node.outputs):
        return
    inputs = list(node.inputs)
    graph.remove(node, safe=True)
    for each in inputs:
        _drop_unread(graph, each)
