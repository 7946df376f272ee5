"""Forward nodes whose gradients need more than their result return it, too."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.description.names import UNBIASED_KEY
from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.gradients.order import Numbers
from poet_onnx.gradients.paths import REAL
from poet_onnx.gradients.torch_words import is_of_torch
from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.passes.node_builder import replace_nodes

EXTRA = {
    "MaxPool": ("_mask",),
    "LayerNormalization": ("_saved_mean", "_saved_inv_std_var"),
    "SoftmaxCrossEntropyLoss": ("_log_prob",),
    "Dropout": ("_mask",),
}
"""Outputs after the first by which gradients find maxima, statistics, probabilities and dropped elements."""


def save_for_gradients(model: ir.Model, numbers: Numbers) -> None:
    """Let nodes return what their gradients need; batch normalization in training mode becomes ONNX Runtime's own."""
    graph = model.graph
    for node in numbers.visit():
        if is_op(node, "BatchNormalization") and plain_attributes(node).get("training_mode", 0):
            own = _own_batch_norm(graph, node)
            if is_of_torch(model):
                own.metadata_props[UNBIASED_KEY] = "1"
            numbers.add(own)
        elif is_op(node, *EXTRA):
            _extend(node, EXTRA[node.op_type])
    if any(node.domain == MICROSOFT_DOMAIN for node in graph):
        model.opset_imports.setdefault(MICROSOFT_DOMAIN, 1)


def _extend(node: ir.Node, endings: tuple[str, ...]) -> None:
    node.resize_outputs(1 + len(endings))
    for output, ending in zip(node.outputs[1:], endings, strict=True):
        output.name = output.name or f"{node.outputs[0].name}{ending}"


def _own_batch_norm(graph: ir.Graph, node: ir.Node) -> ir.Node:
    """Replace a batch normalization by the operator that returns its batch's statistics."""
    first = node.outputs[0].name
    node.resize_outputs(3)
    own = ir.Node(
        MICROSOFT_DOMAIN,
        "BatchNormInternal",
        node.inputs,
        list(node.attributes.values()),
        num_outputs=5,
        name=f"{node.name}_BatchNormInternal",
    )
    results = list(node.outputs)
    for result, ending in zip(results[1:], ("_running_mean", "_running_var"), strict=True):
        result.name = result.name or f"{first}{ending}"
    replace_nodes(graph, [node], [own], results)
    # By names that begin so, `--frozen-batch-norm auto` knows that the node trains, as from the artifact generator.
    own.outputs[3].name, own.outputs[4].name = f"saved_mean_def_{first}", f"saved_inv_std_{first}"
    return own


def save_lengths(graph: ir.Graph, numbers: Numbers) -> None:
    """Let joins of real numbers return the operands' lengths."""
    for node in numbers.visit():
        if not is_op(node, "Concat") or node.outputs[0].dtype not in REAL:
            continue
        own = ir.Node(
            MICROSOFT_DOMAIN,
            "ConcatTraining",
            node.inputs,
            list(node.attributes.values()),
            num_outputs=2,
            name=f"{node.name}_ConcatTraining",
        )
        own.outputs[1].name = f"{node.outputs[0].name}_per_input_length"
        replace_nodes(graph, [node], [own], [node.outputs[0]])
        numbers.add(own)
