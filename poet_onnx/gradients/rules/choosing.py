"""Gradients of operators that choose among operands, and of activations with a bend."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import Site


def as_real(site: Site, mask: ir.Value, like: ir.Value) -> ir.Value:
    """Return ones and zeros for a mask, of the element type of a value of the forward graph."""
    return site.op("Cast", mask, to=int(site.type(like).dtype))


@gradient_of("Max", "Min")
def extreme(site: Site) -> None:
    """Send the gradient to the operand that was chosen; operands that tie share it evenly, as in torch."""
    y, gradient = site.output(), site.gradient()
    if len(site.node.inputs) == 1:
        site.send(0, gradient)
        return
    chosen = [as_real(site, site.op("Equal", site.input(i), y), y) for i in range(len(site.node.inputs))]
    share = site.op("Div", gradient, site.op("Sum", *chosen))
    for index, mask in enumerate(chosen):
        if site.wants(index):
            part = site.op("Mul", share, mask)
            site.send(index, site.unbroadcast(part, site.shape(y), site.shape(site.input(index))))


@gradient_of("Mean")
def mean(site: Site) -> None:
    """Divide the gradient among the operands."""
    y = site.output()
    share = site.op("Div", site.gradient(), site.number(len(site.node.inputs), y))
    for index in range(len(site.node.inputs)):
        if site.wants(index):
            site.send(index, site.unbroadcast(share, site.shape(y), site.shape(site.input(index))))


@gradient_of("PRelu")
def parametric_relu(site: Site) -> None:
    """Multiply the gradient by the slope where the input is not positive; the slope's by the input there."""
    x, slope, gradient = site.input(0), site.input(1), site.gradient()
    positive = site.op("Greater", x, site.number(0, x))
    if site.wants(0):
        site.send(0, site.op("Where", positive, gradient, site.op("Mul", gradient, slope)))
    if site.wants(1):
        below = site.op("Where", positive, site.number(0, x), site.op("Mul", gradient, x))
        site.send(1, site.unbroadcast(below, site.shape(x), site.shape(slope)))


@gradient_of("ThresholdedRelu")
def thresholded_relu(site: Site) -> None:
    """Let the gradient pass where the input is above the threshold."""
    x = site.input(0)
    above = site.op("Greater", x, site.number(site.attributes.get("alpha", 1.0), x))
    site.send(0, site.op("Mul", site.gradient(), as_real(site, above, x)))


@gradient_of("HardSigmoid")
def hard_sigmoid(site: Site) -> None:
    """Scale the gradient where the output is at neither end."""
    y = site.output()
    inside = site.op("And", site.op("Greater", y, site.number(0, y)), site.op("Less", y, site.number(1, y)))
    scaled = site.op("Mul", site.gradient(), site.number(site.attributes.get("alpha", 0.2), y))
    site.send(0, site.op("Mul", scaled, as_real(site, inside, y)))


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""ONNX's constants of Selu where a node names none."""


@gradient_of("Elu", "Selu")
def exponential_below_zero(site: Site) -> None:
    """Scale the gradient above zero; below, where y = scale * alpha * (exp(x) - 1), multiply by y + scale * alpha."""
    x, y, gradient = site.input(0), site.output(), site.gradient()
    selu = site.node.op_type == "Selu"
    alpha = site.attributes.get("alpha", SELU_ALPHA if selu else 1.0)
    scale = site.attributes.get("gamma", SELU_GAMMA) if selu else 1.0
    slope = site.op("Add", y, site.number(scale * alpha, y))
    positive = site.op("Greater", x, site.number(0, x))
    site.send(0, site.op("Mul", gradient, site.op("Where", positive, site.number(scale, y), slope)))


@gradient_of("Softsign")
def softsign(site: Site) -> None:
    """Divide the gradient by the square of 1 + |x|."""
    x = site.input(0)
    root = site.op("Add", site.op("Abs", x), site.number(1, x))
    site.send(0, site.op("Div", site.gradient(), site.op("Mul", root, root)))
