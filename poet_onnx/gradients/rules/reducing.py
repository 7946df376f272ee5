"""Gradients of reductions that are no sums: extremes, products, norms and logarithms of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.rules.reduction import reduced_axes
from poet_onnx.gradients.torch_calls import is_of_first


def _axes(builder: GradientBuilder) -> list[int]:
    axes = reduced_axes(builder)
    if not axes:
        raise NoGradientError("it reduces no axis, which ONNX Runtime's kernels take for an error or for a copy")
    return axes


def _kept_shape(builder: GradientBuilder, axes: Sequence[int]) -> list[int]:
    """Return the output's shape as if the reduced dimensions were kept."""
    return [1 if axis in axes else size for axis, size in enumerate(builder.shape(builder.input(0)))]


def _kept(builder: GradientBuilder, axes: Sequence[int], value: ir.Value) -> ir.Value:
    """View the output or its gradient so that it fits beside the input."""
    return value if builder.attributes.get("keepdims", 1) else builder.reshape(value, _kept_shape(builder, axes))


def _with_slopes(*op_types: str) -> Callable[[Callable[[GradientBuilder, ir.Value], ir.Value]], None]:
    """Register reductions whose gradient is the repeated one times a slope that is computed of the kept output."""

    def register(slope: Callable[[GradientBuilder, ir.Value], ir.Value]) -> None:
        def rule(builder: GradientBuilder) -> None:
            axes = _axes(builder)
            factor = slope(builder, _kept(builder, axes, builder.output()))
            builder.send(0, builder.op("Mul", _kept(builder, axes, builder.gradient()), factor))

        gradient_of(*op_types, stops=(1,))(rule)

    return register


@gradient_of("ReduceMax", "ReduceMin", stops=(1,))
def extreme(builder: GradientBuilder) -> None:
    """Share the gradient among the elements that are the extreme; one of torch's `max(dim)` goes to the first."""
    x, axes = builder.input(0), _axes(builder)
    if is_of_first(builder.node) and len(axes) == 1:
        chosen = builder.as_real(_is_first(builder, axes[0]), x)
        builder.send(0, builder.op("Mul", chosen, _kept(builder, axes, builder.gradient())))
        return
    chosen = builder.as_real(builder.op("Equal", x, _kept(builder, axes, builder.output())), x)
    share = builder.op("Div", _kept(builder, axes, builder.gradient()), builder.reduce_sum(chosen, axes, keep=True))
    builder.send(0, builder.op("Mul", chosen, share))


def _is_first(builder: GradientBuilder, axis: int) -> ir.Value:
    """Return where the first of the extremes along an axis is."""
    x = builder.input(0)
    shape = [size if each == axis else 1 for each, size in enumerate(builder.shape(x))]
    op_type = "ArgMax" if builder.node.op_type == "ReduceMax" else "ArgMin"
    places = builder.constant(np.arange(shape[axis], dtype=np.int64).reshape(shape))
    return builder.op("Equal", builder.op(op_type, x, axis=axis, keepdims=1), places)


@gradient_of("ReduceProd", stops=(1,))
def product(builder: GradientBuilder) -> None:
    """Multiply the gradient by the product of all other elements, which may be zeros."""
    x, axes = builder.input(0), _axes(builder)
    zero, one = builder.number(0, x), builder.number(1, x)
    is_zero = builder.op("Equal", x, zero)
    zeros = builder.reduce_sum(builder.as_real(is_zero, x), axes, keep=True)
    filled = builder.op("Where", is_zero, one, x)
    if builder.opset < 18:
        whole = builder.op("ReduceProd", filled, axes=list(axes), keepdims=1)
    else:
        whole = builder.op("ReduceProd", filled, builder.ints(*axes), keepdims=1)
    single = builder.as_real(builder.op("Equal", zeros, one), x)
    none = builder.as_real(builder.op("Equal", zeros, zero), x)
    share = builder.op("Mul", _kept(builder, axes, builder.gradient()), whole)
    others = builder.op("Where", is_zero, single, builder.op("Div", none, filled))
    builder.send(0, builder.op("Mul", share, others))


@_with_slopes("ReduceL1")
def _sum_of_magnitudes(builder: GradientBuilder, y: ir.Value) -> ir.Value:
    return builder.op("Sign", builder.input(0))


@_with_slopes("ReduceL2")
def _length(builder: GradientBuilder, y: ir.Value) -> ir.Value:
    # The slope at the origin is 0, as in torch.
    at_origin = builder.op("Equal", y, builder.number(0, builder.output()))
    return builder.op("Div", builder.input(0), builder.op("Where", at_origin, builder.number(1, builder.output()), y))


@_with_slopes("ReduceSumSquare")
def _sum_of_squares(builder: GradientBuilder, y: ir.Value) -> ir.Value:
    return builder.op("Mul", builder.input(0), builder.number(2, builder.output()))


@_with_slopes("ReduceLogSumExp")
def _log_of_sum_of_powers(builder: GradientBuilder, y: ir.Value) -> ir.Value:
    return builder.op("Exp", builder.op("Sub", builder.input(0), y))


@gradient_of("ReduceLogSum", stops=(1,))
def log_of_sum(builder: GradientBuilder) -> None:
    """Divide the gradient by the sum, and repeat it."""
    axes = _axes(builder)
    share = builder.op("Div", builder.gradient(), builder.op("Exp", builder.output()))
    builder.send(0, builder.expand(_kept(builder, axes, share), builder.shape(builder.input(0))))
