"""Gradients of activations: products with the derivative, written with the fewest passes over the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.activations import ACTIVATION_GRADIENT, ACTIVATIONS, SOFTMAX_GRADIENT
from poet_onnx.passes.lowering.builder import FLOAT, LoweringBuilder, Rule, Rules

_RowsGradient: TypeAlias = Callable[[LoweringBuilder, ir.Value, ir.Value, int], ir.Value]
"""Writes the gradient of what normalizes along an axis, which is counted from the last, -1, of dY and Y."""


def _rectified(builder: LoweringBuilder, op_type: str) -> ir.Value | None:
    """Return the output of the activation whose gradient this is, or None if neither it nor its input is given.

    ONNX Runtime's gradients read the activation's input, but its output has the same sign and is needed anyway by
    whatever comes next; the input can go.
    """
    maker = builder.input(1).producer()
    if maker is not None and maker.op_type == op_type:
        return builder.input(1)
    for reader in builder.input(1).uses():
        if reader.node.op_type == op_type and reader.idx == 0:
            return reader.node.outputs[0]
    return None


def _relu(builder: LoweringBuilder) -> None:
    """ReluGrad(dY, X or Y): the derivative is 1 where Y is positive, 0 elsewhere: the sign of Y."""
    y = _rectified(builder, "Relu")
    if _has_kernel(builder):
        builder.give(0, _rectifier(builder, y, 0))
        return
    if y is not None:
        slope = builder.op("Sign", y)
    else:
        slope = builder.op("Clip", builder.op("Sign", builder.input(1)), builder.number(0), builder.number(1))
    builder.give(0, builder.op("Mul", builder.input(0), slope))


def _leaky_relu(builder: LoweringBuilder) -> None:
    """LeakyReluGrad(dY, X or Y): the derivative is 1 where Y is positive, alpha elsewhere."""
    alpha = float(builder.attributes.get("alpha", 0.01))
    y = _rectified(builder, "LeakyRelu") if alpha > 0 else None
    if _has_kernel(builder):
        builder.give(0, _rectifier(builder, y, alpha))
        return
    y = builder.input(1) if y is None else y
    if 0 <= alpha <= 1:
        slope = builder.op("Clip", builder.op("Sign", y), builder.number(alpha), builder.number(1))
    else:
        slope = builder.op(
            "Where", builder.op("Greater", y, builder.number(0)), builder.number(1), builder.number(alpha)
        )
    builder.give(0, builder.op("Mul", builder.input(0), slope))


def _has_kernel(builder: LoweringBuilder) -> bool:
    return builder.kernels and builder.type(0).dtype == FLOAT


def _rectifier(builder: LoweringBuilder, y: ir.Value | None, slope: float) -> ir.Value:
    """Return the gradient by the operator library's kernel, from the rectifier's output or else its input."""
    y = builder.input(1) if y is None else y
    return builder.op("RectifierGradient", builder.input(0), y, builder.number(slope), domain=POET_DOMAIN)


def _sigmoid(builder: LoweringBuilder) -> None:
    """SigmoidGrad(dY, Y) = dY Y (1 - Y)."""
    y = builder.input(1)
    builder.give(0, builder.op("Mul", builder.op("Mul", builder.input(0), y), builder.op("Sub", builder.number(1), y)))


def _tanh(builder: LoweringBuilder) -> None:
    """TanhGrad(dY, Y) = dY (1 - Y Y)."""
    y = builder.input(1)
    builder.give(0, builder.op("Mul", builder.input(0), builder.op("Sub", builder.number(1), builder.op("Mul", y, y))))


def _gelu_slope(builder: LoweringBuilder, x: ir.Value) -> ir.Value:
    """Return the derivative of x Phi(x): Phi(x) + x phi(x), with Phi and phi of the normal distribution."""
    erf = builder.op("Erf", builder.op("Mul", x, builder.number(math.sqrt(0.5))))
    cumulative = builder.op("Mul", builder.op("Add", erf, builder.number(1)), builder.number(0.5))
    exponent = builder.op("Mul", builder.op("Mul", x, x), builder.number(-0.5))
    density = builder.op("Mul", builder.op("Exp", exponent), builder.number(1 / math.sqrt(2 * math.pi)))
    return builder.op("Add", cumulative, builder.op("Mul", x, density))


def _fast_gelu_slope(builder: LoweringBuilder, x: ir.Value) -> ir.Value:
    """Return the derivative of x / 2 (1 + tanh(a x + b x^3)), a = sqrt(2 / pi), b = 0.044715 a."""
    a = math.sqrt(2 / math.pi)
    b = 0.044715 * a
    square = builder.op("Mul", x, x)
    inner = builder.op("Mul", x, builder.op("Add", builder.op("Mul", square, builder.number(b)), builder.number(a)))
    tanh = builder.op("Tanh", inner)
    slope = builder.op("Add", builder.op("Mul", square, builder.number(3 * b)), builder.number(a))
    bell = builder.op("Sub", builder.number(1), builder.op("Mul", tanh, tanh))
    rest = builder.op("Mul", builder.op("Mul", x, slope), bell)
    return builder.op("Mul", builder.op("Add", builder.op("Add", tanh, rest), builder.number(1)), builder.number(0.5))


def _quick_gelu_slope(builder: LoweringBuilder, x: ir.Value) -> ir.Value:
    """Return the derivative of x s(alpha x): s (1 + alpha x (1 - s)), with the logistic function s."""
    scaled = builder.op("Mul", x, builder.number(float(builder.attributes.get("alpha", 1.702))))
    s = builder.op("Sigmoid", scaled)
    rest = builder.op("Mul", scaled, builder.op("Sub", builder.number(1), s))
    return builder.op("Mul", s, builder.op("Add", rest, builder.number(1)))


def _by(
    slope: Callable[[LoweringBuilder, ir.Value], ir.Value], kernel: str | None = None, *, biased: bool = False
) -> Rule:
    """Return the rule of a gradient (dY, X) that is dY times a slope at X, or (dY, X, B) with one at X + B.

    Args:
        slope: writes it with plain nodes.
        kernel: the activation of ActivationGradient, if it is one of those.
        biased: whether there is B.
    """

    def rule(builder: LoweringBuilder) -> None:
        if kernel is not None and _has_kernel(builder):
            given = [builder.input(index) for index in range(3 if biased else 2)]
            which = {"activation": ACTIVATIONS.index(kernel), "biased": int(biased)}
            builder.give(0, builder.op(ACTIVATION_GRADIENT, *given, domain=POET_DOMAIN, **which))
            return
        x = builder.op("Add", builder.input(1), builder.input(2)) if biased else builder.input(1)
        builder.give(0, builder.op("Mul", builder.input(0), slope(builder, x)))

    return rule


def _softmax_gradient(builder: LoweringBuilder, d_y: ir.Value, y: ir.Value, axis: int) -> ir.Value:
    """Return (dY - sum(dY Y)) Y."""
    if _has_kernel(builder) and axis == -1:
        return builder.op(SOFTMAX_GRADIENT, d_y, y, domain=POET_DOMAIN)
    total = builder.sum(builder.op("Mul", d_y, y), axis)
    return builder.op("Mul", builder.op("Sub", d_y, total), y)


def _log_softmax_gradient(builder: LoweringBuilder, d_y: ir.Value, y: ir.Value, axis: int) -> ir.Value:
    """Return dY - exp(Y) sum(dY)."""
    return builder.op("Sub", d_y, builder.op("Mul", builder.op("Exp", y), builder.sum(d_y, axis)))


def _along_axis(gradient: _RowsGradient) -> Rule:
    """Return the rule of a gradient (dY, Y) along one axis."""

    def rule(builder: LoweringBuilder) -> None:
        rank = len(builder.shape(0))
        from_last = int(builder.attributes.get("axis", -1)) % rank - rank
        builder.give(0, gradient(builder, builder.input(0), builder.input(1), from_last))

    return rule


def _of_matrices(gradient: _RowsGradient) -> Rule:
    """Return the rule of a gradient (dY, Y) before version 13, where rows begin at `axis` and have all that follows."""

    def rule(builder: LoweringBuilder) -> None:
        shape = builder.shape(0)
        axis = int(builder.attributes.get("axis", 1)) % len(shape)
        rows, columns = math.prod(shape[:axis]), math.prod(shape[axis:])
        d_y, y = (builder.reshape(builder.input(index), rows, columns) for index in (0, 1))
        builder.give(0, builder.reshape(gradient(builder, d_y, y, -1), *shape))

    return rule


RULES: Rules = {
    "ReluGrad": _relu,
    "LeakyReluGrad": _leaky_relu,
    "SigmoidGrad": _sigmoid,
    "TanhGrad": _tanh,
    "GeluGrad": _by(_gelu_slope, "gelu"),
    "BiasGeluGrad_dX": _by(_gelu_slope, "gelu", biased=True),
    "FastGeluGrad": _by(_fast_gelu_slope, "gelu_tanh"),
    "BiasFastGeluGrad_dX": _by(_fast_gelu_slope, "gelu_tanh", biased=True),
    "QuickGeluGrad": _by(_quick_gelu_slope),
    "SoftmaxGrad": _of_matrices(_softmax_gradient),
    "SoftmaxGrad_13": _along_axis(_softmax_gradient),
    "LogSoftmaxGrad": _of_matrices(_log_softmax_gradient),
    "LogSoftmaxGrad_13": _along_axis(_log_softmax_gradient),
}
