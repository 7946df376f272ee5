"""Which inputs a node reads for their shape alone."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.graph.operators import MICROSOFT_DOMAIN


def reads_shape_alone(node: ir.Node, index: int) -> bool:
    """Return whether a node's results do not depend on the numbers of one of its inputs.

    A ConvGrad that computes no data gradient takes the shape of the weight alone, and so does one of a weight's parts.
    """
    if node.domain == MICROSOFT_DOMAIN and node.op_type == "ConvGrad" and index == 2:
        data = node.outputs[0]
        return not data.name or not (data.uses() or data.is_graph_output())
    if node.op_type == "Slice" and index == 0 and not node.outputs[0].is_graph_output():
        return all(reads_shape_alone(reader, place) for reader, place in node.outputs[0].uses())
    return False
