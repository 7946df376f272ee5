"""Arithmetic, comparisons and choices, element by element."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.graph.operators.fitting import expect_count, same
from poet_onnx.graph.operators.rules import BOOL, broadcast, like, nothing, per_output, shape_bytes, together
from poet_onnx.graph.operators.shape_context import Array, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import BUFFER, MICROSOFT_DOMAIN, Call, Evaluator, OpSpec, family


def _unary(function: Callable[[Array], Any]) -> Evaluator:
    return lambda context, inputs: [function(inputs[0])]


def _binary(function: Callable[[Array, Array], Any]) -> Evaluator:
    return lambda context, inputs: [function(inputs[0], inputs[1])]


def _variadic(function: Any) -> Evaluator:
    return lambda context, inputs: [function.reduce(np.broadcast_arrays(*inputs))]


def _divide(a: Array, b: Array) -> Any:
    """Divide as C++ does: integers towards zero."""
    if np.issubdtype(a.dtype, np.floating):
        return a / b
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) == (b < 0), quotient, -quotient).astype(a.dtype)


def _remainder(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    """Return what division leaves: with the divisor's sign, or with `fmod` the dividend's, as C's fmod."""
    return [(np.fmod if context.attributes.get("fmod", 0) else np.mod)(*inputs)]


def _cast(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    return [inputs[0].astype(ir.DataType(context.attributes["to"]).numpy())]


def _clip(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    """Return what lies between bounds, those of inputs, or of attributes before opset 11."""
    clipped, *bounds = inputs
    low, high = (
        bounds[index] if index < len(bounds) else context.attributes.get(name)
        for index, name in enumerate(("min", "max"))
    )
    if low is not None:
        clipped = np.maximum(clipped, low)
    return [clipped if high is None else np.minimum(clipped, high)]


def _comparison(context: ShapeContext) -> list[TensorType]:
    return [TensorType(BOOL, broadcast(context.type(0).shape, context.type(1).shape))]


def _one_factor(context: ShapeContext) -> None:
    expect_count(context, 1, 1)


def _variadic_workspace(call: Call) -> int:
    # Operands are combined two at a time: the last result and the new one are alive together, the output comes last.
    operands = [tensor for tensor in call.inputs if tensor]
    y = call.output(0)
    if len(operands) < 3:
        return 0
    shape, sizes = operands[0].shape, []
    for operand in operands[1:]:
        shape = broadcast(shape, operand.shape)
        sizes.append(shape_bytes(shape, y))
    return max(first + second for first, second in pairwise(sizes)) - y.size_bytes


def _variadic_buffers(call: Call) -> tuple[int]:
    # More operands take turns with two buffers, of which the output is one.
    return (_variadic_workspace(call) if sum(1 for tensor in call.inputs if tensor) == 3 else 0,)


def _where_buffers(call: Call) -> tuple[int, int]:
    # What is chosen from each branch, broadcast with the condition only.
    condition, y = call.input(0), call.output(0)
    first, second = (broadcast(condition.shape, call.input(branch).shape) for branch in (1, 2))
    return shape_bytes(first, y), shape_bytes(second, y)


def _exact(name: str, value: Evaluator, flops: int = 1, **facts: Any) -> OpSpec:
    """Return an operator whose values are computed where its inputs are small constants."""
    return OpSpec(name, value=value, work=per_output(flops), **({"workspace": nothing} | facts))


_COMBINING: dict[str, Any] = {
    "workspace": _variadic_workspace,
    "allocation_order": (BUFFER, 0),  # UntypedBroadcastVariadic in element_wise_ops.cc
    "buffers": _variadic_buffers,
}

SPECS = [
    _exact("Add", _binary(np.add)),
    _exact("Sub", _binary(np.subtract)),
    _exact("Mul", _binary(np.multiply)),
    _exact("Div", _binary(_divide), 4),
    _exact("Mod", _remainder, 4),
    _exact("Neg", _unary(np.negative)),
    _exact("Abs", _unary(np.abs)),
    _exact("Floor", _unary(np.floor), 2),
    _exact("Ceil", _unary(np.ceil), 2),
    _exact("Not", _unary(np.logical_not)),
    _exact("And", _binary(np.logical_and)),
    _exact("Or", _binary(np.logical_or)),
    _exact("Equal", _binary(np.equal)),
    _exact("Less", _binary(np.less)),
    _exact("Greater", _binary(np.greater)),
    # ONNX has no shape inference for some versions of these two.
    _exact("LessOrEqual", _binary(np.less_equal), shape=_comparison),
    _exact("GreaterOrEqual", _binary(np.greater_equal), shape=_comparison),
    _exact("Max", _variadic(np.maximum), **_COMBINING),
    _exact("Min", _variadic(np.minimum), **_COMBINING),
    _exact(
        "Where",
        lambda context, inputs: [np.where(*inputs)],
        workspace=together(_where_buffers),
        allocation_order=(BUFFER, BUFFER, 0),  # where_op.cc
        buffers=_where_buffers,
    ),
    _exact("Cast", _cast, inplace=((0, 0),)),
    OpSpec("Sum", work=per_output(1), **_COMBINING),
    OpSpec("Mean", work=per_output(2), **_COMBINING),
    _exact("Clip", _clip, inplace=((0, 0),)),
    OpSpec("Sign", work=per_output(1), workspace=nothing),
    OpSpec("Round", work=per_output(2), workspace=nothing),
    *family("Reciprocal Sqrt", work=per_output(4), workspace=nothing),
    *family("Cos Erf Exp Log Sin", work=per_output(10), workspace=nothing),
    OpSpec("Pow", work=per_output(20), workspace=nothing),
    *family("Acos Acosh Asin Asinh Atan Atanh Cosh Sinh Tan IsInf IsNaN Xor", workspace=nothing),
    *family("BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor", workspace=nothing),
    OpSpec("Scale", MICROSOFT_DOMAIN, shape=like(0), check=_one_factor, work=per_output(1), workspace=nothing),
    OpSpec("SinGrad", MICROSOFT_DOMAIN, check=same(0, 1)),
    OpSpec("DivGrad", MICROSOFT_DOMAIN, shape=like(1, 2)),
    OpSpec("ScaledSum", MICROSOFT_DOMAIN, cpu_kernel=False),
]
"""Elementwise operators."""
