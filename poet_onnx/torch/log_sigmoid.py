"""The logarithm of a sigmoid, in a form that keeps its numbers.

torch's exporters write `logsigmoid`, and so `binary_cross_entropy_with_logits`, as Log(Sigmoid(x)). Where x is above
some 10 that rounds to 0. Where it is below -18, ONNX Runtime's sigmoid stands still, and the gradient vanishes: what is
very wrong would no longer be learned. -Softplus(-x) is the same number and has neither fault.
"""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.node_builder import replace_nodes


def keep_log_sigmoids(model: ir.Model) -> None:
    """Write each Log(Sigmoid(x)) of a forward model as -Softplus(-x); a sigmoid that others need stays."""
    graph = model.graph
    for log in [node for node in graph if node.op_type == "Log" and node.domain in ONNX_DOMAINS]:
        value = log.inputs[0]
        sigmoid = None if value is None else value.producer()
        if value is None or sigmoid is None or sigmoid.op_type != "Sigmoid" or sigmoid.domain not in ONNX_DOMAINS:
            continue
        minus = ir.Node("", "Neg", sigmoid.inputs, name=f"{log.name}/minus")
        softplus = ir.Node("", "Softplus", minus.outputs, name=f"{log.name}/softplus")
        end = ir.Node("", "Neg", softplus.outputs, name=log.name)
        for node in (minus, softplus):
            node.outputs[0].type, node.outputs[0].shape = log.outputs[0].type, log.outputs[0].shape
        minus.outputs[0].name, softplus.outputs[0].name = f"{log.name}/minus", f"{log.name}/softplus"
        replace_nodes(graph, [log], [minus, softplus, end], log.outputs)
        if not value.uses() and not value.is_graph_output():
            graph.remove(sigmoid, safe=True)
