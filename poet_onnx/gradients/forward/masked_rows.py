"""Tokens that may look at nothing, whose attention is zero in torch, as it is where padding is on the left.

The dynamo exporter (onnxscript 0.7) adds the lowest number of a type to hidden scores, and replaces weights that are no
number by zero. Such a sum is never without a number, so a row that hides all becomes attention to everything. The
replacement is meant for -inf, which torch adds and the legacy exporter writes.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op, readers
from poet_onnx.gradients.torch_arguments import CALL
from poet_onnx.passes.fused.reading import behind_guard, is_number, number_in, only_reader
from poet_onnx.passes.node_builder import initializer

_ATTENTION = "scaled_dot_product_attention"


def hide_whole_rows(graph: ir.Graph) -> None:
    """Let masks of torch's attention add -inf where they add the lowest number; changes the graph."""
    for node in list(graph):
        dtype = _type_of_mask(node)
        if dtype is not None and all(_is_of_guarded_weights(reader) for reader in readers(node.outputs[0])):
            hidden = initializer(graph, f"{node.name}/hidden", np.array(-math.inf, dtype.numpy()))
            node.replace_input_with(2, hidden)


def _type_of_mask(node: ir.Node) -> ir.DataType | None:
    """Return the type of numbers of which a node of such a call makes 0 of what is seen, and else the lowest."""
    if not is_op(node, "Where") or not is_number(node.inputs[1], 0) or node.outputs[0].is_graph_output():
        return None
    if _ATTENTION not in node.metadata_props.get(CALL, _ATTENTION):
        return None
    lowest = ir.convenience.get_const_tensor(node.inputs[2]) if node.inputs[2] is not None else None
    if lowest is None or not lowest.dtype.is_floating_point():
        return None
    return lowest.dtype if number_in(node.inputs[2]) == float(lowest.dtype.min) else None


def _is_of_guarded_weights(added: ir.Node) -> bool:
    """Return whether a node adds a mask to scores whose softmax is read behind a guard alone."""
    softmax = only_reader(added.outputs[0], "Softmax") if is_op(added, "Add") else None
    return softmax is not None and behind_guard(softmax.outputs[0])[1]
