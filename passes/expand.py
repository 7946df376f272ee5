"""Expansion: operators that ONNX Runtime has no kernel for, but a function body, become the nodes of that body.

ONNX Runtime would inline them while it loads the model, and run the new nodes out of the file's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError
from onnx_ir.passes.common import InlinePass

from poet_onnx.errors import InputError
from poet_onnx.graph.extract import check_structure
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.graph.operators.reduction import broadcast_gradient_axes
from poet_onnx.graph.shapes import TensorType, infer
from poet_onnx.graph.shapes.declared import describe
from poet_onnx.passes.node_builder import Replacement
from poet_onnx.passes.structured import StructuredPass

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
BODIES = "poet.bodies"
"""Domain of the functions while they are inlined."""


WITHOUT_KERNEL = frozenset(
    (
        *("Bernoulli", "CastLike", "CenterCropPad", "GroupNormalization", "HardSwish", "Mish"),
        *("NegativeLogLikelihoodLoss", "SwiGLU", "Swish"),
    )
)
"""Operators of ONNX that both ONNX Runtimes inline on the CPU."""


def has_no_kernel(node: ir.Node) -> bool:
    """Return whether both ONNX Runtimes inline a node's operator."""
    return node.domain in ONNX_DOMAINS and node.op_type in WITHOUT_KERNEL


class ExpandFunctions(InPlacePass):
    """Replace operators of ONNX, such as those that have no kernel, by the nodes of their function body in ONNX."""

    def __init__(self, wanted: Callable[[ir.Node], bool] = has_no_kernel) -> None:
        """Set which nodes are expanded, if their operators have a body."""
        super().__init__()
        self._wanted = wanted

    def call(self, model: ir.Model) -> PassResult:
        """Expand every such operator where it stands."""
        nodes = [node for node in model.graph if self._wanted(node)]
        if not nodes:
            return PassResult(model, modified=False)
        check_structure(model)
        types = infer(model).types
        expanded = False
        for number, node in enumerate(nodes):
            function = _body(node, types, model.opset_imports.get("", 1))
            if function is None:
                continue
            expanded = True
            function.domain, function.name = BODIES, f"{node.op_type}_{number}"
            node.domain, node.op_type = function.domain, function.name
            model.functions[function.identifier()] = function
        InlinePass()(model)
        model.opset_imports.pop(BODIES, None)
        return PassResult(model, modified=expanded)


def _body(node: ir.Node, types: Mapping[str, TensorType], version: int) -> ir.Function | None:
    """Return the nodes that stand for a node, as a function; None where this version of the operator has none."""
    if not onnx.defs.has(node.op_type, version, ""):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, version, "")  # the stubs lack what it says of functions
    if schema.has_context_dependent_function:
        names = [value.name if value is not None else None for value in node.inputs]
        kinds = [
            onnx.helper.make_tensor_type_proto(int(types[name].dtype), types[name].shape).SerializeToString()
            if name
            else onnx.TypeProto().SerializeToString()
            for name in names
        ]
        versions = [known for known in schema.context_dependent_function_opset_versions if known <= version]
        if not versions:
            return None
        written = schema.get_context_dependent_function_with_opset_version(
            max(versions), ir.to_proto(node).SerializeToString(), kinds
        )
    else:
        versions = [known for known in schema.function_opset_versions if known <= version]
        if not versions:
            return None
        written = schema.get_function_with_opset_version(max(versions))
        _write_defaults(node, schema)  # a body refers to attributes, and knows no defaults
    proto = onnx.FunctionProto.FromString(written)
    if len(proto.input) < len(node.inputs):  # what onnx returns where it cannot write the body
        raise InputError(f"The {describe(node)} has inputs or attributes that do not fit it: export the model again.")
    del proto.output[len(node.outputs) :]  # those that nobody wants may have no maker
    if not {name for each in proto.node for name in each.output}.issuperset(proto.output):
        return None
    body = ir.serde.deserialize_function(proto)
    body.opset_imports[""] = version
    return body


def _write_defaults(node: ir.Node, schema: Any) -> None:
    """Give a node the attributes that it leaves to their defaults."""
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
            node.attributes[name] = ir.serde.deserialize_attribute(attribute.default_value)


class _Expansion(Replacement):
    refused = InputError

    def reduced(self, part: ir.Value, axes: Sequence[int], shape: Sequence[int]) -> ir.Value:
        """Sum over the axes that were broadcast and give the result the operand's shape."""
        if not axes:
            return part
        summed = self.op("ReduceSumTraining", part, self.ints(*axes), domain=MICROSOFT_DOMAIN, keepdims=1)
        return self.reshape(summed, *shape)


class ChainOperands(StructuredPass):
    """Replace a Sum, Mean, Max or Min of three operands or more by nodes of two, in its kernel's order: the same bits.

    A gradient of what many nodes read, such as a weight of an unrolled recurrence, is such a Sum. It keeps every part
    of the gradient until the last is there; of a chain each part dies as soon as it is added. And the kernel of four
    operands or more keeps its results in two buffers of its own in turns (UntypedBroadcastVariadic in
    element_wise_ops.cc), for which a plan has no place.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Replace every such node where it stands."""
        nodes = [node for node in model.graph if _has_many_operands(node)]
        if nodes:
            inferred = infer(model)
            # A Sum of halves is rounded once, the additions in its place would be rounded each.
            nodes = [
                node
                for node in nodes
                if inferred.types[node.outputs[0].name or ""].dtype in (FLOAT, DOUBLE) or _PAIRS[node.op_type] != "Add"
            ]
            for node in nodes:
                _chain(_Expansion(model.graph, node, inferred))
        return PassResult(model, modified=bool(nodes))


_PAIRS = {"Sum": "Add", "Mean": "Add", "Max": "Max", "Min": "Min"}
"""What combines two operands."""


def _has_many_operands(node: ir.Node) -> bool:
    return node.domain in ONNX_DOMAINS and node.op_type in _PAIRS and len(node.inputs) > 2


def _chain(expansion: _Expansion) -> None:
    total, *operands = (operand for operand in expansion.node.inputs if operand is not None)
    for operand in operands:
        total = expansion.op(_PAIRS[expansion.node.op_type], total, operand)
    if expansion.node.op_type == "Mean":  # the kernel multiplies by the rounded reciprocal
        count = np.float32(1 + len(operands))
        total = expansion.op("Mul", total, expansion.constant(np.array(np.float32(1) / count)))
    expansion.give(0, total)
    expansion.finish()


class ExpandDivGrad(StructuredPass):
    """Replace DivGrad(dY, A, B) by divisions, products and sums; a gradient that nothing reads is left out.

    dA = sum(dY / B) and dB = sum(dY * (-A / (B * B))), each summed over the axes that were broadcast: the body that
    ONNX Runtime gives the operator (orttraining/orttraining/core/graph/training_op_defs.cc), hence the same bits.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Expand every DivGrad where it stands."""
        nodes = [node for node in model.graph if _is_div_grad(node)]
        if nodes:
            inferred = infer(model)
            for node in nodes:
                _expand_div_grad(_Expansion(model.graph, node, inferred))
        return PassResult(model, modified=bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """No DivGrad is left."""
        if any(_is_div_grad(node) for node in model.graph):
            raise PostconditionError("a DivGrad is left")


def _is_div_grad(node: ir.Node) -> bool:
    return node.domain == MICROSOFT_DOMAIN and node.op_type == "DivGrad"


def _expand_div_grad(expansion: _Expansion) -> None:
    gradient, dividend, divisor = (expansion.input(index) for index in range(3))
    shapes = [expansion.shape(index) for index in (1, 2)]
    axes = broadcast_gradient_axes(*shapes)
    if expansion.wants(0):
        part = expansion.op("Div", gradient, divisor)
        expansion.give(0, expansion.reduced(part, axes[0], shapes[0]))
    if expansion.wants(1):
        square = expansion.op("Mul", divisor, divisor)
        part = expansion.op("Mul", gradient, expansion.op("Div", expansion.op("Neg", dividend), square))
        expansion.give(1, expansion.reduced(part, axes[1], shapes[1]))
    expansion.finish()
