"""Recurrent layers that have one bias, of which an exporter made the two that ONNX has: the second one is zeros.

A step would move both, and so their sum twice as far as the framework moves its one. Keras has one bias in an LSTM and
in a simple RNN, and in a GRU whose reset gate comes before the product; torch has two.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.evidence import RECURRENT
from poet_onnx.gradients.tensorflow_files import WRITER
from poet_onnx.graph.operators import ONNX_DOMAINS

_BIAS = 3
"""The input at which a recurrent operator has both biases."""


def keep_single_biases(model: ir.Model) -> None:
    """Let second biases that an exporter filled with zeros be constants behind the first ones.

    Args:
        model: without functions, not of torch; changed in place.
    """
    graph = model.graph
    always = ("LSTM", "RNN") if model.producer_name == WRITER else ()
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        uses = list(value.uses())
        is_bias = bool(uses) and all(
            at == _BIAS and node.op_type in RECURRENT and node.domain in ONNX_DOMAINS for node, at in uses
        )
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or not is_bias or value.is_graph_input():
            continue
        first, second = np.split(np.asarray(tensor.numpy()), 2, axis=-1)
        if second.any() or not (first.any() or all(node.op_type in always for node, _ in uses)):
            continue
        name = value.name or ""
        zeros = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(second))], name=f"{name}/zeros")
        zeros.outputs[0].name = f"{name}/zeros"
        kept = ir.Value(
            name=name, type=value.type, shape=ir.Shape(first.shape), const_value=ir.tensor(first, name=name)
        )
        both = ir.Node("", "Concat", [kept, zeros.outputs[0]], [ir.AttrInt64("axis", 1)], name=f"{name}/both")
        both.outputs[0].name = f"{name}/both"
        for made, shape in ((zeros.outputs[0], second.shape), (both.outputs[0], tensor.shape.numpy())):
            made.type, made.shape = value.type, ir.Shape(shape)
        value.replace_all_uses_with(both.outputs[0])
        graph.initializers.pop(name)
        graph.register_initializer(kept)
        graph.insert_before(next(iter(graph)), [zeros, both])
