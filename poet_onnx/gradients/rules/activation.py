"""Gradients of activations."""

from __future__ import annotations

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import Site
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("Relu", "Sigmoid", "Tanh")
def of_the_output(site: Site) -> None:
    """Differentiate an activation whose slope follows from its output."""
    site.send(0, site.own(f"{site.node.op_type}Grad", site.gradient(), site.output()))


@gradient_of("LeakyRelu")
def leaky_relu(site: Site) -> None:
    """Differentiate by the sign of the output, which is the input's."""
    alpha = site.attributes.get("alpha", 0.01)
    site.send(0, site.own("LeakyReluGrad", site.gradient(), site.output(), alpha=alpha))


@gradient_of("Softmax", "LogSoftmax")
def softmax(site: Site) -> None:
    """Differentiate along one axis."""
    axis = site.attributes.get("axis", -1)
    site.send(0, site.own(f"{site.node.op_type}Grad_13", site.gradient(), site.output(), axis=axis))


@gradient_of("Gelu", domain=MICROSOFT_DOMAIN)
def gelu(site: Site) -> None:
    """Differentiate the exact form, with the error function."""
    site.send(0, site.own("GeluGrad", site.gradient(), site.input(0)))


@gradient_of("BiasGelu", domain=MICROSOFT_DOMAIN)
def bias_gelu(site: Site) -> None:
    """Differentiate a sum with a bias and the exact form of Gelu behind it."""
    gradient = site.own("BiasGeluGrad_dX", site.gradient(), site.input(0), site.input(1))
    site.send(0, gradient)
    if site.wants(1):
        shape = site.shape(site.input(0))
        site.send(1, site.unbroadcast(gradient, shape, site.shape(site.input(1))))


@gradient_of("Softplus")
def softplus(site: Site) -> None:
    """Multiply the gradient by the sigmoid of the input."""
    site.send(0, site.op("Mul", site.gradient(), site.op("Sigmoid", site.input(0))))
