"""Gradients of gathers whose bits do not depend on threads, and of tables that other nodes read, too."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.passes.views import only_maker, replace_node, sizes_of


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


class AddGatheredRows(InPlacePass):
    """Let the rows of a gather's gradient be added to the gradient of another reader of the table.

    Example: an embedding that is the output layer, too. Without it both gradients and their sum, each as large as the
    table, are there at once. The bits are those of the sum.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Replace the sums, and remove the gradients."""
        modified = False
        for node in list(model.graph):
            if node.op_type in ("Sum", "Add") and node.domain in ONNX_DOMAINS and len(node.inputs) == 2:
                modified |= _add_rows(node)
        return PassResult(model, modified=modified)


def _add_rows(total: ir.Node) -> bool:
    """Write the node for a sum; nothing where none of its two terms is a gather's gradient of the sum's shape."""
    for base, gathered in (total.inputs, total.inputs[::-1]):
        maker = only_maker(gathered)
        if base is None or maker is None or maker.op_type != "GatherGradient" or maker.domain != POET_DOMAIN:
            continue
        is_table = maker.attributes.get_int("axis", 0) == 0 and base.shape == maker.outputs[0].shape
        if not is_table or base.dtype != ir.DataType.FLOAT:
            continue
        attributes = [ir.AttrInt64("first", 0), ir.AttrInt64("rows", sizes_of(base)[0])]
        replace_node(total, "AddRows", [base, *maker.inputs], attributes, [total.outputs[0]])
        assert maker.graph is not None
        maker.graph.remove(maker, safe=True)
        return True
    return False


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
