"""Gradients of gathers whose bits do not depend on threads."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.metadata import POET_DOMAIN, POET_VERSION
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.passes.views import replace_node


class SumGathersInOrder(InPlacePass):
    """Let an operator of poet-onnx sum what GatherGrad sums, such as an embedding's gradient.

    The kernel of onnxruntime-training adds rows in the order in which its threads come, so that with several of them no
    two steps are alike. This operator has the bits that it has with one. A gradient of unknown shape, or not of float,
    stays as it is.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Replace the nodes."""
        found = [node for node in model.graph if node.op_type == "GatherGrad" and node.domain == MICROSOFT_DOMAIN]
        replaced = [node for node in found if _replace(node)]
        if replaced:
            model.graph.opset_imports[POET_DOMAIN] = POET_VERSION
        return PassResult(model, modified=bool(replaced))


def _replace(node: ir.Node) -> bool:
    output, shape = node.outputs[0], _shape_of(node.outputs[0])
    dtype = output.dtype or (node.inputs[2].dtype if node.inputs[2] is not None else None)
    axis = node.attributes.get_int("axis", 0)
    if shape is None or dtype is not ir.DataType.FLOAT or not -len(shape) <= axis < len(shape):
        return False
    output.type, output.shape = ir.TensorType(dtype), ir.Shape(shape)
    attributes = [ir.AttrInt64s("shape", shape), ir.AttrInt64("axis", axis % len(shape))]
    replace_node(node, "GatherGradient", node.inputs[1:3], attributes, [output])
    return True


def _shape_of(value: ir.Value) -> tuple[int, ...] | None:
    """Return a gradient's shape, or its buffer's, if it is known."""
    shape = _known(value)
    while shape is None and len(value.uses()) == 1:
        reader, index = next(iter(value.uses()))
        if reader.op_type == "InPlaceAccumulatorV2" and index == 1:
            return _known(reader.inputs[0])
        if reader.op_type != "Identity":
            return None
        value = reader.outputs[0]
        shape = _known(value)
    return shape


def _known(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return value.shape.numpy()
