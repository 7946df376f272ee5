"""Gradients of operators that choose among operands, and of activations with a bend."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.registry import gradient_of


def as_real(builder: GradientBuilder, mask: ir.Value, like: ir.Value) -> ir.Value:
    """Return ones and zeros for a mask, of the element type of a value of the forward graph."""
    return builder.op("Cast", mask, to=int(builder.type(like).dtype))


@gradient_of("Max", "Min")
def extreme(builder: GradientBuilder) -> None:
    """Send the gradient to the operand that was chosen; operands that tie share it evenly, as in torch."""
    y, gradient = builder.output(), builder.gradient()
    if len(builder.node.inputs) == 1:
        builder.send(0, gradient)
        return
    chosen = [as_real(builder, builder.op("Equal", builder.input(i), y), y) for i in range(len(builder.node.inputs))]
    share = builder.op("Div", gradient, builder.op("Sum", *chosen))
    for index, mask in enumerate(chosen):
        if builder.wants(index):
            part = builder.op("Mul", share, mask)
            builder.send(index, builder.unbroadcast(part, builder.shape(y), builder.shape(builder.input(index))))


@gradient_of("Mean")
def mean(builder: GradientBuilder) -> None:
    """Divide the gradient among the operands."""
    y = builder.output()
    share = builder.op("Div", builder.gradient(), builder.number(len(builder.node.inputs), y))
    for index in range(len(builder.node.inputs)):
        if builder.wants(index):
            builder.send(index, builder.unbroadcast(share, builder.shape(y), builder.shape(builder.input(index))))


@gradient_of("PRelu")
def parametric_relu(builder: GradientBuilder) -> None:
    """Multiply the gradient by the slope where the input is not positive; the slope's by the input there."""
    x, slope, gradient = builder.input(0), builder.input(1), builder.gradient()
    positive = builder.op("Greater", x, builder.number(0, x))
    if builder.wants(0):
        builder.send(0, builder.op("Where", positive, gradient, builder.op("Mul", gradient, slope)))
    if builder.wants(1):
        below = builder.op("Where", positive, builder.number(0, x), builder.op("Mul", gradient, x))
        builder.send(1, builder.unbroadcast(below, builder.shape(x), builder.shape(slope)))


@gradient_of("ThresholdedRelu")
def thresholded_relu(builder: GradientBuilder) -> None:
    """Let the gradient pass where the input is above the threshold."""
    x = builder.input(0)
    above = builder.op("Greater", x, builder.number(builder.attributes.get("alpha", 1.0), x))
    builder.send(0, builder.op("Mul", builder.gradient(), as_real(builder, above, x)))


@gradient_of("HardSigmoid")
def hard_sigmoid(builder: GradientBuilder) -> None:
    """Scale the gradient where the output is at neither end."""
    y = builder.output()
    inside = builder.op(
        "And", builder.op("Greater", y, builder.number(0, y)), builder.op("Less", y, builder.number(1, y))
    )
    scaled = builder.op("Mul", builder.gradient(), builder.number(builder.attributes.get("alpha", 0.2), y))
    builder.send(0, builder.op("Mul", scaled, as_real(builder, inside, y)))


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""ONNX's constants of Selu where a node names none."""


@gradient_of("Elu", "Selu")
def exponential_below_zero(builder: GradientBuilder) -> None:
    """Scale the gradient above zero; below, where y = scale * alpha * (exp(x) - 1), multiply by y + scale * alpha."""
    x, y, gradient = builder.input(0), builder.output(), builder.gradient()
    selu = builder.node.op_type == "Selu"
    alpha = builder.attributes.get("alpha", SELU_ALPHA if selu else 1.0)
    scale = builder.attributes.get("gamma", SELU_GAMMA) if selu else 1.0
    slope = builder.op("Add", y, builder.number(scale * alpha, y))
    positive = builder.op("Greater", x, builder.number(0, x))
    builder.send(0, builder.op("Mul", gradient, builder.op("Where", positive, builder.number(scale, y), slope)))


@gradient_of("Softsign")
def softsign(builder: GradientBuilder) -> None:
    """Divide the gradient by the square of 1 + |x|."""
    x = builder.input(0)
    root = builder.op("Add", builder.op("Abs", x), builder.number(1, x))
    builder.send(0, builder.op("Div", builder.gradient(), builder.op("Mul", root, root)))
