"""Nodes that do nothing go, as in ONNX Runtime's optimizer before training."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.graph.shapes import Inferred, infer
from poet_onnx.passes.fused.reading import is_number, number_in

NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
"""The second operand that changes nothing; of a sum or a product also the first."""


def drop_idle_nodes(model: ir.Model) -> None:
    """Drop dropouts that drop nothing, and sums and products with a neutral constant no larger than the rest."""
    graph = model.graph
    inferred = infer(model)
    for node in list(graph):
        source = _stands_for(node, inferred)
        if source is None or node.outputs[0].is_graph_output():
            continue
        node.outputs[0].replace_all_uses_with(source)
        graph.remove(node, safe=True)


def _stands_for(node: ir.Node, inferred: Inferred) -> ir.Value | None:
    """Return the input that a node hands on unchanged, None if it does something."""
    if is_op(node, "Dropout"):
        mask_read = len(node.outputs) > 1 and bool(node.outputs[1].uses())
        return node.inputs[0] if (has_no_ratio(node) or is_for_inference(node)) and not mask_read else None
    if not is_op(node, *NEUTRAL) or len(node.inputs) != 2:
        return None
    pairs = ((0, 1), (1, 0)) if node.op_type in ("Add", "Mul") else ((0, 1),)
    for kept, constant in pairs:
        value, neutral = node.inputs[kept], node.inputs[constant]
        if value is None or neutral is None or number_in(neutral) != NEUTRAL[node.op_type]:
            continue
        if len(_shape(neutral, inferred)) <= len(_shape(value, inferred)):
            return value
    return None


def is_for_inference(dropout: ir.Node) -> bool:
    """Return whether a Dropout was exported for inference, and drops nothing whatever its ratio."""
    training = dropout.inputs[2] if len(dropout.inputs) > 2 else None
    return training is None or is_number(training, 0.0)


def has_no_ratio(dropout: ir.Node) -> bool:
    """Return whether a Dropout has the ratio 0."""
    return len(dropout.inputs) > 1 and is_number(dropout.inputs[1], 0.0)


def _shape(value: ir.Value, inferred: Inferred) -> tuple[int, ...]:
    return inferred.types[value.name or ""].shape
