"""Gradients of matrix products."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import NoGradientError, Site, broadcast_axes


@gradient_of("Gemm")
def gemm(site: Site) -> None:
    """Write a Gemm for each matrix and a sum for the bias."""
    alpha, beta = site.attributes.get("alpha", 1.0), site.attributes.get("beta", 1.0)
    first, second = bool(site.attributes.get("transA", 0)), bool(site.attributes.get("transB", 0))
    a, b, gradient = site.input(0), site.input(1), site.gradient()
    shared: dict[str, Any] = {"beta": 0.0, "alpha": alpha}
    if site.wants(0):
        left, right = (b, gradient) if first else (gradient, b)
        transposed = (second, True) if first else (False, not second)
        site.send(0, _product(site, left, right, transposed, shared))
    if site.wants(1):
        left, right = (gradient, a) if second else (a, gradient)
        transposed = (True, first) if second else (not first, False)
        site.send(1, _product(site, left, right, transposed, shared))
    if site.wants(2):
        reduced = site.unbroadcast(gradient, site.shape(site.output()), site.shape(site.input(2)))
        site.send(2, reduced if beta == 1.0 else site.op("Mul", reduced, site.number(beta, site.input(2))))


def _product(
    site: Site, left: ir.Value, right: ir.Value, transposed: tuple[bool, bool], shared: dict[str, Any]
) -> ir.Value:
    return site.op("Gemm", left, right, transA=int(transposed[0]), transB=int(transposed[1]), **shared)


@gradient_of("MatMul")
def matmul(site: Site) -> None:
    """Write a Gemm where both are matrices or the second one is a weight, otherwise a product of stacks of matrices."""
    a, b = site.shape(site.input(0)), site.shape(site.input(1))
    if len(a) < 2 or len(b) < 2:
        raise NoGradientError("an operand is a vector; export it as a matrix of one row or column")
    if len(a) == 2 and len(b) == 2:
        if site.wants(0):
            site.send(0, site.op("Gemm", site.gradient(), site.input(1), beta=0.0, transB=1))
        if site.wants(1):
            site.send(1, site.op("Gemm", site.input(0), site.gradient(), beta=0.0, transA=1))
        return
    if site.wants(0):
        _stacked_first(site, a, b)
    if site.wants(1) and len(b) == 2:
        rows = site.reshape(site.input(0), (-1, b[0]))
        columns = site.reshape(site.gradient(), (-1, b[1]))
        site.send(1, site.op("Gemm", rows, columns, transA=1))
    elif site.wants(1):
        _stacked_second(site, a, b)


def _stacked_first(site: Site, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    product = site.own("FusedMatMul", site.gradient(), site.input(1), transB=1)
    axes = broadcast_axes(a, (*site.shape(site.output())[:-1], b[-2]))
    site.send(0, site.reshape(site.reduce_sum(product, axes, keep=True), a) if axes else product)


def _stacked_second(site: Site, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    product = site.own("FusedMatMul", site.input(0), site.gradient(), transA=1)
    shape = site.shape(site.output())
    axes = broadcast_axes(b, (*shape[:-2], a[-1], shape[-1]))
    site.send(1, site.reshape(site.reduce_sum(product, axes, keep=False), b) if axes else product)
