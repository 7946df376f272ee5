"""Operators that ONNX's own say as well: the Erfc that tf2onnx leaves as it is, and the Scaler of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.gradients.outputs import ML_DOMAIN
from poet_onnx.passes.node_builder import replace_nodes


def say_in_onnx(model: ir.Model) -> None:
    """Write Erfc, as in Keras's gelu, with Erf, and a Scaler with Sub and Mul; changes the model.

    Their numbers are those of Constant nodes, which are no weights.
    """
    graph = model.graph
    for node in list(graph):
        source = node.inputs[0] if node.inputs else None
        if is_op(node, "Erfc"):
            one = _constant([1.0], ())
            error = ir.Node("", "Erf", [source])
            written = [one, error, ir.Node("", "Sub", [one.outputs[0], error.outputs[0]], name=node.name)]
        elif node.domain == ML_DOMAIN and node.op_type == "Scaler":
            real = ir.Node("", "Cast", [source], [ir.AttrInt64("to", ir.DataType.FLOAT)])
            offset = _constant(node.attributes.get_floats("offset", [0.0]))
            scale = _constant(node.attributes.get_floats("scale", [1.0]))
            moved = ir.Node("", "Sub", [real.outputs[0], offset.outputs[0]])
            scaled = ir.Node("", "Mul", [moved.outputs[0], scale.outputs[0]], name=node.name)
            written = [real, offset, scale, moved, scaled]
        else:
            continue
        replace_nodes(graph, [node], written, [node.outputs[0]])


def _constant(numbers: Sequence[float], shape: tuple[int, ...] = (-1,)) -> ir.Node:
    array = np.array(numbers, np.float32).reshape(shape)
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))])
