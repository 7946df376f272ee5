"""Gradients of matrix products."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError, broadcast_axes
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("Gemm")
def gemm(builder: GradientBuilder) -> None:
    """Write a Gemm for each matrix and a sum for the bias."""
    alpha, beta = builder.attributes.get("alpha", 1.0), builder.attributes.get("beta", 1.0)
    first, second = bool(builder.attributes.get("transA", 0)), bool(builder.attributes.get("transB", 0))
    a, b, gradient = builder.input(0), builder.input(1), builder.gradient()
    shared: dict[str, Any] = {"beta": 0.0, "alpha": alpha}
    if builder.wants(0):
        left, right = (b, gradient) if first else (gradient, b)
        transposed = (second, True) if first else (False, not second)
        builder.send(0, _product(builder, left, right, transposed, shared))
    if builder.wants(1):
        left, right = (gradient, a) if second else (a, gradient)
        transposed = (True, first) if second else (not first, False)
        builder.send(1, _product(builder, left, right, transposed, shared))
    if builder.wants(2):
        reduced = builder.reduced(gradient, 2)
        builder.send(2, reduced if beta == 1.0 else builder.op("Mul", reduced, builder.number(beta, builder.input(2))))


def _product(
    builder: GradientBuilder, left: ir.Value, right: ir.Value, transposed: tuple[bool, bool], shared: dict[str, Any]
) -> ir.Value:
    return builder.op("Gemm", left, right, transA=int(transposed[0]), transB=int(transposed[1]), **shared)


@gradient_of("MatMul")
def matmul(builder: GradientBuilder) -> None:
    """Write a Gemm where both are matrices or the second one is a weight, otherwise a product of stacks of matrices."""
    a, b = builder.shape(builder.input(0)), builder.shape(builder.input(1))
    if len(a) < 2 or len(b) < 2:
        _with_vector(builder, a, b)
        return
    if len(a) == 2 and len(b) == 2:
        if builder.wants(0):
            builder.send(0, builder.op("Gemm", builder.gradient(), builder.input(1), beta=0.0, transB=1))
        if builder.wants(1):
            builder.send(1, builder.op("Gemm", builder.input(0), builder.gradient(), beta=0.0, transA=1))
        return
    if builder.wants(0):
        _stacked_first(builder, a, b)
    if builder.wants(1) and len(b) == 2:
        rows = builder.reshape(builder.input(0), (-1, b[0]))
        columns = builder.reshape(builder.gradient(), (-1, b[1]))
        builder.send(1, builder.op("Gemm", rows, columns, transA=1))
    elif builder.wants(1):
        _stacked_second(builder, a, b)


@gradient_of("FusedMatMul", domain=MICROSOFT_DOMAIN)
def with_transposed(builder: GradientBuilder) -> None:
    """Write products with a matrix that is read transposed, in which way no copy of it is made."""
    a, b = builder.shape(builder.input(0)), builder.shape(builder.input(1))
    how = {name: value for name, value in builder.attributes.items() if value}
    if len(a) < 2 or len(b) != 2 or how not in ({"transB": 1}, {"transB": 1, "alpha": 1.0}):
        raise NoGradientError("FusedMatMul of other operands than rows and one transposed matrix; export a MatMul")
    if builder.wants(0):
        builder.send(0, builder.op("MatMul", builder.gradient(), builder.input(1)))
    if builder.wants(1):
        columns = builder.reshape(builder.gradient(), (-1, b[0]))
        builder.send(1, builder.op("Gemm", columns, builder.reshape(builder.input(0), (-1, b[1])), transA=1))


def _with_vector(builder: GradientBuilder, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Write products of single numbers where the result has them, and of a matrix of one row where a sum is needed."""
    first, second, gradient = builder.input(0), builder.input(1), builder.gradient()
    if len(b) == 1:
        column = gradient if len(a) == 1 else builder.unsqueeze(gradient, [-1])
        if builder.wants(0):
            builder.send(0, builder.op("Mul", column, second))
        if builder.wants(1) and len(a) == 1:
            builder.send(1, builder.op("Mul", gradient, first))
        elif builder.wants(1):
            rows = builder.reshape(first, (-1, b[0]))
            row = builder.reshape(gradient, (1, -1))
            builder.send(1, builder.reshape(builder.op("Gemm", row, rows), b))
        return
    if builder.wants(1):
        builder.send(1, builder.op("Mul", builder.unsqueeze(first, [-1]), builder.unsqueeze(gradient, [-2])))
    if builder.wants(0):
        if len(b) > 2:
            raise NoGradientError("a vector times a stack of matrices; export the vector as a matrix of one row")
        row = builder.reshape(gradient, (1, -1))
        builder.send(0, builder.reshape(builder.op("Gemm", row, second, transB=1), a))


def _stacked_first(builder: GradientBuilder, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    product = builder.own("FusedMatMul", builder.gradient(), builder.input(1), transB=1)
    axes = broadcast_axes(a, (*builder.shape(builder.output())[:-1], b[-2]))
    builder.send(0, builder.reshape(builder.reduce_sum(product, axes, keep=True), a) if axes else product)


def _stacked_second(builder: GradientBuilder, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    product = builder.own("FusedMatMul", builder.input(0), builder.gradient(), transA=1)
    shape = builder.shape(builder.output())
    axes = broadcast_axes(b, (*shape[:-2], a[-1], shape[-1]))
    builder.send(1, builder.reshape(builder.reduce_sum(product, axes, keep=False), b) if axes else product)
