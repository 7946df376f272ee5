"""Gradients of circular and hyperbolic functions and of the remainder."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of


def _square(builder: GradientBuilder, value: ir.Value) -> ir.Value:
    return builder.op("Mul", value, value)


@gradient_of("Sin", "Cos", "Sinh", "Cosh")
def wave(builder: GradientBuilder) -> None:
    """Multiply the gradient by the sister function of the input, for the cosine by its negative."""
    sister = {"Sin": "Cos", "Cos": "Sin", "Sinh": "Cosh", "Cosh": "Sinh"}[builder.node.op_type]
    product = builder.op("Mul", builder.gradient(), builder.op(sister, builder.input(0)))
    builder.send(0, builder.op("Neg", product) if builder.node.op_type == "Cos" else product)


@gradient_of("Tan")
def tangent(builder: GradientBuilder) -> None:
    """Multiply the gradient by 1 + y²."""
    slope = builder.op("Add", _square(builder, builder.output()), builder.number(1, builder.output()))
    builder.send(0, builder.op("Mul", builder.gradient(), slope))


@gradient_of("Atan", "Atanh")
def inverse_tangent(builder: GradientBuilder) -> None:
    """Divide the gradient by 1 + x², for the hyperbolic function by 1 - x²."""
    x = builder.input(0)
    sign = "Add" if builder.node.op_type == "Atan" else "Sub"
    builder.send(0, builder.op("Div", builder.gradient(), builder.op(sign, builder.number(1, x), _square(builder, x))))


@gradient_of("Asin", "Acos", "Asinh", "Acosh")
def inverse_wave(builder: GradientBuilder) -> None:
    """Divide the gradient by the root of 1 - x², x² + 1 or x² - 1."""
    x, name = builder.input(0), builder.node.op_type
    square, one = _square(builder, x), builder.number(1, x)
    if name in ("Asin", "Acos"):
        radicand = builder.op("Sub", one, square)
    else:
        radicand = builder.op("Add" if name == "Asinh" else "Sub", square, one)
    quotient = builder.op("Div", builder.gradient(), builder.op("Sqrt", radicand))
    builder.send(0, builder.op("Neg", quotient) if name == "Acos" else quotient)


@gradient_of("Mod")
def remainder(builder: GradientBuilder) -> None:
    """Hand the gradient on; the divisor's is multiplied by the negative whole quotient."""
    if not builder.attributes.get("fmod", 0):
        raise NoGradientError("fmod must be 1")
    a, b = builder.input(0), builder.input(1)
    builder.send(0, builder.reduced(builder.gradient(), 0))
    if builder.wants(1):
        quotient = builder.op("Div", a, b)
        whole = builder.op("Mul", builder.op("Sign", quotient), builder.op("Floor", builder.op("Abs", quotient)))
        part = builder.op("Neg", builder.op("Mul", builder.gradient(), whole))
        builder.send(1, builder.reduced(part, 1))
