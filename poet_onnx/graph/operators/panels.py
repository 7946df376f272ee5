"""Operators that have panels of a matrix in memory: linear layers and convolutions."""

from __future__ import annotations

from poet_onnx.graph.operators import conv_stored, linear, quantized
from poet_onnx.graph.operators.spec import Call

BACKWARD = (linear.BACKWARD, conv_stored.BACKWARD)
"""What the names of operators begin with that use gradients up."""


def comparing_bytes(call: Call) -> int:
    """Return about what comparing a node's products by panels with whole ones takes; 0 for nodes without panels."""
    if call.op_type == "LinearStored" or call.op_type.startswith(linear.BACKWARD):
        return linear.comparing_bytes(call)
    if call.op_type == "ConvStored" or call.op_type.startswith(conv_stored.BACKWARD):
        return conv_stored.comparing_bytes(call)
    if call.op_type == quantized.LINEAR:
        return quantized.comparing_bytes(call)
    return 0
