"""Gradients of circular and hyperbolic functions and of the remainder."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import NoGradientError, Site


def _square(site: Site, value: ir.Value) -> ir.Value:
    return site.op("Mul", value, value)


@gradient_of("Sin", "Cos", "Sinh", "Cosh")
def wave(site: Site) -> None:
    """Multiply the gradient by the sister function of the input, for the cosine by its negative."""
    sister = {"Sin": "Cos", "Cos": "Sin", "Sinh": "Cosh", "Cosh": "Sinh"}[site.node.op_type]
    product = site.op("Mul", site.gradient(), site.op(sister, site.input(0)))
    site.send(0, site.op("Neg", product) if site.node.op_type == "Cos" else product)


@gradient_of("Tan")
def tangent(site: Site) -> None:
    """Multiply the gradient by 1 + y²."""
    slope = site.op("Add", _square(site, site.output()), site.number(1, site.output()))
    site.send(0, site.op("Mul", site.gradient(), slope))


@gradient_of("Atan", "Atanh")
def inverse_tangent(site: Site) -> None:
    """Divide the gradient by 1 + x², for the hyperbolic function by 1 - x²."""
    x = site.input(0)
    sign = "Add" if site.node.op_type == "Atan" else "Sub"
    site.send(0, site.op("Div", site.gradient(), site.op(sign, site.number(1, x), _square(site, x))))


@gradient_of("Asin", "Acos", "Asinh", "Acosh")
def inverse_wave(site: Site) -> None:
    """Divide the gradient by the root of 1 - x², x² + 1 or x² - 1."""
    x, name = site.input(0), site.node.op_type
    square, one = _square(site, x), site.number(1, x)
    if name in ("Asin", "Acos"):
        radicand = site.op("Sub", one, square)
    else:
        radicand = site.op("Add" if name == "Asinh" else "Sub", square, one)
    quotient = site.op("Div", site.gradient(), site.op("Sqrt", radicand))
    site.send(0, site.op("Neg", quotient) if name == "Acos" else quotient)


@gradient_of("Mod")
def remainder(site: Site) -> None:
    """Hand the gradient on; the divisor's is multiplied by the negative whole quotient."""
    if not site.attributes.get("fmod", 0):
        raise NoGradientError("fmod must be 1")
    a, b = site.input(0), site.input(1)
    shape = site.shape(site.output())
    site.send(0, site.unbroadcast(site.gradient(), shape, site.shape(a)))
    if site.wants(1):
        quotient = site.op("Div", a, b)
        whole = site.op("Mul", site.op("Sign", quotient), site.op("Floor", site.op("Abs", quotient)))
        part = site.op("Neg", site.op("Mul", site.gradient(), whole))
        site.send(1, site.unbroadcast(part, shape, site.shape(b)))
