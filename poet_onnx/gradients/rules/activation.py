"""Gradients of activations."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.graph.operators.activations import GATED_ACTIVATE


@gradient_of("Relu", "Sigmoid", "Tanh")
def of_the_output(builder: GradientBuilder) -> None:
    """Differentiate an activation whose slope follows from its output."""
    builder.send(0, builder.own(f"{builder.node.op_type}Grad", builder.gradient(), builder.output()))


@gradient_of("LeakyRelu")
def leaky_relu(builder: GradientBuilder) -> None:
    """Differentiate by the sign of the output, which is the input's unless a negative slope turns it."""
    alpha = builder.attributes.get("alpha", 0.01)
    signed = builder.output() if alpha >= 0 else builder.input(0)
    builder.send(0, builder.own("LeakyReluGrad", builder.gradient(), signed, alpha=alpha))


@gradient_of("Softmax", "LogSoftmax")
def softmax(builder: GradientBuilder) -> None:
    """Differentiate along one axis."""
    axis = builder.attributes.get("axis", -1)
    made = _without_masked_rows(builder, axis) if builder.node.op_type == "Softmax" else builder.output()
    builder.send(0, builder.own(f"{builder.node.op_type}Grad_13", builder.gradient(), made, axis=axis))


def _without_masked_rows(builder: GradientBuilder, axis: int) -> ir.Value:
    """Return a softmax, or what stands for it behind a Where that alone reads it and replaces whole rows.

    A row of scores that are all masked has no number, and attention of torch and of ONNX takes zeros there. What Where
    hands on as its gradient is zero in such rows, but zero times NaN is NaN.
    """
    made = builder.output()
    read = _behind_casts(made)
    readers = {node for node, _ in read.uses()}
    tests = {node for node in readers if node.op_type == "IsNaN"}
    choice = next(iter(readers - tests), None)
    if len(readers - tests) != 1 or choice is None or choice.op_type != "Where" or read.is_graph_output():
        return made
    condition, chosen, sizes = choice.inputs[0], choice.outputs[0], builder.shape(made)
    if condition is None or builder.shape(chosen) != sizes:  # it repeats the softmax
        return made
    rows = (1,) * len(sizes) + builder.shape(condition)
    is_whole = condition.producer() in tests or rows[axis % len(sizes) - len(sizes)] == 1
    if not is_whole:
        return made
    return chosen if read.dtype == made.dtype else builder.op("Cast", chosen, to=int(made.dtype or 0))


def _behind_casts(value: ir.Value) -> ir.Value:
    """Return a value behind casts that alone read it, such as ONNX's function of Attention has."""
    readers = [node for node, _ in value.uses()]
    while len(readers) == 1 and readers[0].op_type == "Cast" and not value.is_graph_output():
        value = readers[0].outputs[0]
        readers = [node for node, _ in value.uses()]
    return value


@gradient_of("Gelu", domain=MICROSOFT_DOMAIN)
def gelu(builder: GradientBuilder) -> None:
    """Differentiate the exact form, with the error function, or the one with a hyperbolic tangent."""
    is_exact = builder.attributes.get("approximate", "none") == "none"
    builder.send(0, builder.own("GeluGrad" if is_exact else "FastGeluGrad", builder.gradient(), builder.input(0)))


@gradient_of("FastGelu", "BiasGelu", domain=MICROSOFT_DOMAIN)
def gelu_of_sum(builder: GradientBuilder) -> None:
    """Differentiate a form behind a sum with a bias; FastGelu, with a hyperbolic tangent, may have none."""
    form = builder.node.op_type.removeprefix("Bias")
    if not builder.has(1):
        builder.send(0, builder.own(f"{form}Grad", builder.gradient(), builder.input(0)))
        return
    gradient = builder.own(f"Bias{form}Grad_dX", builder.gradient(), builder.input(0), builder.input(1))
    builder.send(0, gradient)
    if builder.wants(1):
        builder.send(1, builder.reduced(gradient, 1))


@gradient_of("Softplus")
def softplus(builder: GradientBuilder) -> None:
    """Multiply the gradient by the sigmoid of the input."""
    builder.send(0, builder.op("Mul", builder.gradient(), builder.op("Sigmoid", builder.input(0))))


@gradient_of("PRelu")
def parametric_relu(builder: GradientBuilder) -> None:
    """Multiply the gradient by the slope where the input is not positive; the slope's by the input there."""
    x, slope, gradient = builder.input(0), builder.input(1), builder.gradient()
    positive = builder.op("Greater", x, builder.number(0, x))
    if builder.wants(0):
        builder.send(0, builder.op("Where", positive, gradient, builder.op("Mul", gradient, slope)))
    if builder.wants(1):
        below = builder.op("Where", positive, builder.number(0, x), builder.op("Mul", gradient, x))
        builder.send(1, builder.reduced(below, 1))


@gradient_of("ThresholdedRelu")
def thresholded_relu(builder: GradientBuilder) -> None:
    """Let the gradient pass where the input is above the threshold."""
    x = builder.input(0)
    above = builder.op("Greater", x, builder.number(builder.attributes.get("alpha", 1.0), x))
    builder.send(0, builder.op("Mul", builder.gradient(), builder.as_real(above, x)))


@gradient_of("HardSigmoid")
def hard_sigmoid(builder: GradientBuilder) -> None:
    """Scale the gradient where the output is at neither end."""
    y = builder.output()
    inside = builder.op(
        "And", builder.op("Greater", y, builder.number(0, y)), builder.op("Less", y, builder.number(1, y))
    )
    scaled = builder.op("Mul", builder.gradient(), builder.number(builder.attributes.get("alpha", 0.2), y))
    builder.send(0, builder.op("Mul", scaled, builder.as_real(inside, y)))


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


@gradient_of(GATED_ACTIVATE, domain=POET_DOMAIN)
def gated_activation(builder: GradientBuilder) -> None:
    """Differentiate by both factors, of which the activation is computed again."""
    given = [builder.gradient(), builder.input(0), builder.input(1)]
    made = builder.ops("GatedActivateGradient", given, 2, domain=POET_DOMAIN, **builder.attributes)
    for index, gradient in enumerate(made):
        builder.send(index, gradient)
