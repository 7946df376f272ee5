"""Gradients of elementwise arithmetic, whose operands may be repeated along axes."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.registry import gradient_of, without_gradient
from poet_onnx.gradients.site import NoGradientError, Site
from poet_onnx.graph.operators import MICROSOFT_DOMAIN

without_gradient(
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf"
)
without_gradient("Sign", "Floor", "Ceil", "Round", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")


def _reduced(site: Site, gradient: ir.Value, index: int) -> ir.Value:
    return site.unbroadcast(gradient, site.shape(site.output()), site.shape(site.input(index)))


@gradient_of("Add", "Sum")
def add(site: Site) -> None:
    """Hand the gradient on to every operand."""
    for index in range(len(site.node.inputs)):
        if site.wants(index):
            site.send(index, _reduced(site, site.gradient(), index))


@gradient_of("Sub")
def subtract(site: Site) -> None:
    """Hand the gradient on, and its negative."""
    if site.wants(0):
        site.send(0, _reduced(site, site.gradient(), 0))
    if site.wants(1):
        site.send(1, site.op("Neg", _reduced(site, site.gradient(), 1)))


@gradient_of("Mul")
def multiply(site: Site) -> None:
    """Multiply the gradient by the other operand."""
    for index in (0, 1):
        if site.wants(index):
            site.send(index, _reduced(site, site.op("Mul", site.gradient(), site.input(1 - index)), index))


@gradient_of("Div")
def divide(site: Site) -> None:
    """Divide the gradient, with ONNX Runtime's own operator where the divisor has one."""
    gradient = site.gradient()
    if site.wants(1):
        operands = [gradient, site.input(0), site.input(1)]
        first, second = site.ops("DivGrad", operands, 2, domain=MICROSOFT_DOMAIN)
        site.send(0, first)
        site.send(1, second)
    else:
        site.send(0, _reduced(site, site.op("Div", gradient, site.input(1)), 0))


@gradient_of("Neg")
def negate(site: Site) -> None:
    """Negate the gradient."""
    site.send(0, site.op("Neg", site.gradient()))


@gradient_of("Identity")
def identity(site: Site) -> None:
    """Hand the gradient on."""
    site.send(0, site.gradient())


@gradient_of("Abs")
def absolute(site: Site) -> None:
    """Multiply the gradient by the input's sign."""
    site.send(0, site.op("Mul", site.gradient(), site.op("Sign", site.input(0))))


@gradient_of("Log")
def logarithm(site: Site) -> None:
    """Divide the gradient by the input."""
    site.send(0, site.op("Div", site.gradient(), site.input(0)))


@gradient_of("Exp")
def exponential(site: Site) -> None:
    """Multiply the gradient by the output."""
    site.send(0, site.op("Mul", site.gradient(), site.output()))


@gradient_of("Sqrt")
def square_root(site: Site) -> None:
    """Divide the gradient by twice the output."""
    half = site.number(0.5, site.output())
    site.send(0, site.op("Mul", site.gradient(), site.op("Div", half, site.output())))


@gradient_of("Reciprocal")
def reciprocal(site: Site) -> None:
    """Multiply the gradient by the negative square of the output."""
    square = site.op("Mul", site.output(), site.output())
    site.send(0, site.op("Mul", site.gradient(), site.op("Neg", square)))


@gradient_of("Erf")
def error_function(site: Site) -> None:
    """Multiply the gradient by the bell curve."""
    source = site.input(0)
    scale = site.constant(np.array(np.float32(2 / math.sqrt(math.pi)), site.type(source).dtype.numpy()))
    bell = site.op("Exp", site.op("Neg", site.op("Mul", source, source)))
    site.send(0, site.op("Mul", site.gradient(), site.op("Mul", scale, bell)))


@gradient_of("Pow")
def power(site: Site) -> None:
    """Differentiate by the base, and by an exponent that is trained, as torch does."""
    base, exponent = site.input(0), site.input(1)
    if site.type(exponent).dtype != site.type(base).dtype:
        if site.wants(1):
            raise NoGradientError("its trained exponent has another type than its base")
        exponent = site.op("Cast", exponent, to=int(site.type(base).dtype))
    if site.wants(0):
        less = site.op("Sub", exponent, site.number(1, base))
        slope = site.op("Mul", site.op("Pow", base, less), exponent)
        site.send(0, _reduced(site, site.op("Mul", slope, site.gradient()), 0))
    if site.wants(1):
        zero = site.number(0, base)
        still = site.op("And", site.op("Equal", base, zero), site.op("GreaterOrEqual", exponent, zero))
        rise = site.op("Mul", site.output(), site.op("Log", base))
        rise = site.op("Where", still, zero, rise)  # torch's rule for a base of 0, whose logarithm is infinite
        site.send(1, _reduced(site, site.op("Mul", rise, site.gradient()), 1))


@gradient_of("Clip", stops=(1, 2))
def clip(site: Site) -> None:
    """Let the gradient pass where the input lies between the limits, ends included."""
    source = site.input(0)
    masks = []
    if site.has(1):
        masks.append(site.op("GreaterOrEqual", source, site.input(1)))
    if site.has(2):
        masks.append(site.op("LessOrEqual", source, site.input(2)))
    if not masks:
        site.send(0, site.gradient())
        return
    mask = masks[0] if len(masks) == 1 else site.op("And", *masks)
    passed = site.op("Cast", mask, to=int(site.type(source).dtype))
    site.send(0, site.op("Mul", site.gradient(), passed))


@gradient_of("Where", stops=(0,))
def where(site: Site) -> None:
    """Send the gradient to the operand that was chosen, and zero to the other."""
    zero = site.number(0, site.output())
    for index, branches in ((1, (site.gradient(), zero)), (2, (zero, site.gradient()))):
        if site.wants(index):
            site.send(index, _reduced(site, site.op("Where", site.input(0), *branches), index))


@gradient_of("Cast", stops=())
def cast(site: Site) -> None:
    """Convert the gradient back."""
    site.send(0, site.op("Cast", site.gradient(), to=int(site.type(site.input(0)).dtype)))


@gradient_of("Dropout", stops=(1, 2))
def dropout(site: Site) -> None:
    """Drop and scale what the forward node dropped and scaled, by the mask that it saved."""
    rest = [site.node.inputs[index] for index in range(1, len(site.node.inputs))]
    site.send(0, site.own("DropoutGrad", site.gradient(), site.output(1), *rest))
