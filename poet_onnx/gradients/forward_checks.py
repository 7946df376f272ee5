"""What a forward model may be, whose training graph is made: plain nodes, which nobody has quantized or rewritten."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.graph.extract import check_derivative, is_step
from poet_onnx.graph.extract.artifacts import is_accumulator
from poet_onnx.graph.rewrites import in_torch
from poet_onnx.passes.lowering.builder import list_nodes
from poet_onnx.passes.metadata import VERSION_KEY

_WITHOUT_GRADIENT = ("Quantize", "Dequantize", "DynamicQuantize", "QLinear", "ConvInteger", "MatMulInteger")
"""How the names of operators on quantized numbers begin; of weights that are constants these may be."""


def check_forward(model: ir.Model) -> None:
    """Check that a model is a forward graph of plain nodes.

    Raises:
        InputError: if it is not.
    """
    if VERSION_KEY in model.metadata_props:
        raise InputError("The model was rewritten by poet-onnx already: give the forward model that it was made from.")
    check_derivative(model)
    if is_step(model.graph) or any(is_accumulator(node) for node in model.graph):
        raise InputError("The model computes gradients already: `poet-onnx rewrite` takes it as it is, without --loss.")
    found: dict[str, list[str]] = {}
    for node in model.graph.all_nodes():
        if is_op(node, "Celu") and node.attributes.get_float("alpha", 1.0) < 0:
            raise InputError(
                f"Celu '{node.name or node.outputs[0].name}' has a negative alpha, with which ONNX Runtime computes "
                "another function than ONNX defines: give a positive one."
            )
        control = any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
        if control or (node.op_type.startswith(_WITHOUT_GRADIENT) and not _is_of_constants(node)):
            found.setdefault(node.op_type, []).append(node.name or "")
    if found:
        raise InputError(
            f"Control flow and quantized operators cannot be differentiated: {list_nodes(found)}."
            f" Export the model with fixed shapes and unrolled loops, before it is quantized.{in_torch(found)}"
        )


def _is_of_constants(node: ir.Node) -> bool:
    """Return whether a node makes floats of a frozen weight."""
    given = [value for value in node.inputs if value is not None]
    are_constant = all(value.is_initializer() or ir.convenience.get_const_tensor(value) is not None for value in given)
    return node.op_type == "DequantizeLinear" and are_constant
