"""Gradients of activations."""

from __future__ import annotations

from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("Relu", "Sigmoid", "Tanh")
def of_the_output(builder: GradientBuilder) -> None:
    """Differentiate an activation whose slope follows from its output."""
    builder.send(0, builder.own(f"{builder.node.op_type}Grad", builder.gradient(), builder.output()))


@gradient_of("LeakyRelu")
def leaky_relu(builder: GradientBuilder) -> None:
    """Differentiate by the sign of the output, which is the input's."""
    alpha = builder.attributes.get("alpha", 0.01)
    builder.send(0, builder.own("LeakyReluGrad", builder.gradient(), builder.output(), alpha=alpha))


@gradient_of("Softmax", "LogSoftmax")
def softmax(builder: GradientBuilder) -> None:
    """Differentiate along one axis."""
    axis = builder.attributes.get("axis", -1)
    builder.send(0, builder.own(f"{builder.node.op_type}Grad_13", builder.gradient(), builder.output(), axis=axis))


@gradient_of("Gelu", domain=MICROSOFT_DOMAIN)
def gelu(builder: GradientBuilder) -> None:
    """Differentiate the exact form, with the error function."""
    builder.send(0, builder.own("GeluGrad", builder.gradient(), builder.input(0)))


@gradient_of("BiasGelu", domain=MICROSOFT_DOMAIN)
def bias_gelu(builder: GradientBuilder) -> None:
    """Differentiate a sum with a bias and the exact form of Gelu behind it."""
    gradient = builder.own("BiasGeluGrad_dX", builder.gradient(), builder.input(0), builder.input(1))
    builder.send(0, gradient)
    if builder.wants(1):
        shape = builder.shape(builder.input(0))
        builder.send(1, builder.unbroadcast(gradient, shape, builder.shape(builder.input(1))))


@gradient_of("Softplus")
def softplus(builder: GradientBuilder) -> None:
    """Multiply the gradient by the sigmoid of the input."""
    builder.send(0, builder.op("Mul", builder.gradient(), builder.op("Sigmoid", builder.input(0))))
