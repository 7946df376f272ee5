"""Attention and recurrent networks."""

from __future__ import annotations

from poet_onnx.graph.operators.rules import nothing, times_tensors
from poet_onnx.graph.operators.shape_context import ShapeContext, TensorType
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, Call, OpSpec, family


def _recurrent(context: ShapeContext) -> list[TensorType]:
    """GRUTraining and LSTMTraining: every state, the last states, and the gates of every state."""
    data, recurrence = context.type(0), context.type(2)
    length, batch = data.shape[:2]
    directions, hidden = recurrence.shape[0], recurrence.shape[2]

    def state(*shape: int) -> TensorType:
        return TensorType(data.dtype, shape)

    every, last = state(length, directions, batch, hidden), state(directions, batch, hidden)
    if context.op_type == "GRUTraining":
        return [every, last, state(length, directions, batch, 3 * hidden)]
    return [every, last, last, every, state(length, directions, batch, 4 * hidden)]


def _attention(call: Call) -> int:
    # Copies of what it reads and writes, and each head's scores in float32: all queries times all keys, also past ones.
    queries = call.inputs[0]
    keys = call.inputs[1] if call.domain == "" or call.op_type != "Attention" else queries
    tensors = times_tensors(2)(call)
    if queries is None or len(queries.shape) < 3:
        return tensors
    heads = queries.shape[1] if len(queries.shape) == 4 else call.integer("num_heads", 0)
    heads = heads or call.integer("q_num_heads", 1)
    others = (keys, *call.inputs[3:], *call.outputs[1:])
    lengths = [tensor.shape[-2] for tensor in others if tensor and len(tensor.shape) > 2]
    return tensors + 4 * queries.shape[0] * heads * queries.shape[-2] * max(lengths, default=queries.shape[-2])


SPECS = [
    *family("Attention MultiHeadAttention GroupQueryAttention", MICROSOFT_DOMAIN, estimate=_attention),
    OpSpec("RotaryEmbedding", MICROSOFT_DOMAIN, workspace=nothing),
    *family("LSTM GRU RNN", estimate=times_tensors(4)),
    *family("GRUTraining LSTMTraining", MICROSOFT_DOMAIN, shape=_recurrent),
]
"""Attention and recurrent networks."""
