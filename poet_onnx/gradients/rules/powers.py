"""Gradients of powers, roots and logarithms, whose slope at 0 has no bound.

torch gives the `std` of equal numbers and the `norm` of zeros no gradient (FunctionsManual.cpp of
github.com/pytorch/pytorch: `std_backward`, `norm_backward`), nor has `binary_cross_entropy` an infinite one. Exporters
write them as arithmetic, of which infinity times 0 is left.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.forward.patterns import is_op, readers
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.passes.fused.reading import number_in

_SCALES = ("Mul", "Div", "Identity", "Reshape", "Squeeze", "Unsqueeze")


@gradient_of("Log")
def logarithm(builder: GradientBuilder) -> None:
    """Divide the gradient by the input; where that is 0 and the output has a bound, as in `BCELoss`, there is none."""
    source = builder.input(0)
    if any(is_op(node, "Clip", "Max") for node in readers(builder.output())):
        zero = builder.op("Equal", source, builder.number(0, source))
        source = builder.op("Where", zero, builder.number(1, source), source)
    builder.send(0, builder.op("Div", builder.gradient(), source))


@gradient_of("Sqrt")
def square_root(builder: GradientBuilder) -> None:
    """Divide the gradient by twice the output."""
    half = builder.number(0.5, builder.output())
    slope = builder.op("Div", half, builder.output())
    if _is_sum_of_powers(builder.input(0)):
        slope = _still_at_zero(builder, slope)
    builder.send(0, builder.op("Mul", builder.gradient(), slope))


@gradient_of("Pow")
def power(builder: GradientBuilder) -> None:
    """Differentiate by the base, and by an exponent that is trained, as torch does."""
    base, exponent = builder.input(0), builder.input(1)
    if builder.type(exponent).dtype != builder.type(base).dtype:
        if builder.wants(1):
            raise NoGradientError("its trained exponent has another type than its base")
        exponent = builder.op("Cast", exponent, to=int(builder.type(base).dtype))
    if builder.wants(0):
        less = builder.op("Sub", exponent, builder.number(1, base))
        given = builder.node.inputs[1]
        constant = None if builder.wants(1) or given is None else ir.convenience.get_const_tensor(given)
        if constant is None or not np.all(constant.numpy()):  # x ** 0 has no slope where x is 0 either
            zero = builder.number(0, base)
            less = builder.op("Where", builder.op("Equal", exponent, zero), zero, less)
        slope = builder.op("Mul", builder.op("Pow", base, less), exponent)
        if not builder.wants(1) and (number_in(builder.node.inputs[1]) or 0) < 1 and _is_sum_of_powers(base):
            slope = _still_at_zero(builder, slope)
        builder.send(0, builder.reduced(builder.op("Mul", slope, builder.gradient()), 0))
    if builder.wants(1):
        zero = builder.number(0, base)
        still = builder.op("And", builder.op("Equal", base, zero), builder.op("GreaterOrEqual", exponent, zero))
        rise = builder.op("Mul", builder.output(), builder.op("Log", base))
        rise = builder.op("Where", still, zero, rise)  # torch's rule for a base of 0, whose logarithm is infinite
        builder.send(1, builder.reduced(builder.op("Mul", rise, builder.gradient()), 1))


def _is_sum_of_powers(value: ir.Value) -> bool:
    """Return whether a value is a sum or mean of squares or other powers, or a product of such, scaled or not."""
    node = value.producer()
    while node is not None and is_op(node, *_SCALES):
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if is_op(node, "ReduceSum", "ReduceMean") and node is not None:
        power = node.inputs[0].producer() if node.inputs[0] is not None else None
        is_square = is_op(power, "Mul") and power is not None and power.inputs[0] is power.inputs[1]
        return is_square or is_op(power, "Pow", "Abs")
    return is_op(node, "ReduceSumSquare")


def _still_at_zero(builder: GradientBuilder, slope: ir.Value) -> ir.Value:
    """Return a slope that is 0 where the output is."""
    zero = builder.number(0, builder.output())
    return builder.op("Where", builder.op("Equal", builder.output(), zero), zero, slope)
