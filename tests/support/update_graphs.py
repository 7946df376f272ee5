"""Graphs with a parameter and the buffer of its gradient, as text."""

from __future__ import annotations

import onnx

HEADER = '<ir_version: 8, opset_import: ["" : 15, "poet" : 1, "com.microsoft" : 1]>'
BUFFER = "w_grad.accumulation.buffer"
INPUTS = "float[4] x, float[4] w, float[4] w_buffer, bool[1] fresh"


def graph(
    nodes: str, *, inputs: str = INPUTS, outputs: str = "float[] loss, bool[1] done", state: str = ""
) -> onnx.ModelProto:
    """Parse a graph, in which words in capitals stand for nodes, and w_buffer for the buffer of w's gradient."""
    nodes = nodes.replace("LOSS", "loss = ReduceSum <keepdims = 0> (y)")
    nodes = nodes.replace("BOUNDS", "s = Constant <value_ints = [0]> () e = Constant <value_ints = [4]> ()")
    nodes = nodes.replace("ACCUMULATE", "done = poet.Accumulate <offset = 0> (w_buffer, g, fresh)")
    model = onnx.parser.parse_model(f"{HEADER} g ({inputs}) => ({outputs}) {state} {{ {nodes} }}")
    for value in model.graph.input:  # the parser knows no names with dots
        value.name = BUFFER if value.name == "w_buffer" else value.name
    for node in model.graph.node:
        node.input[:] = [BUFFER if name == "w_buffer" else name for name in node.input]
    return model
