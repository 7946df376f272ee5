"""Gradients of reductions that are no sums: extremes, products, norms and logarithms of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.rules.choosing import as_real
from poet_onnx.gradients.rules.reduction import reduced_axes
from poet_onnx.gradients.site import NoGradientError, Site


def _axes(site: Site) -> list[int]:
    axes = reduced_axes(site)
    if not axes:
        raise NoGradientError("it reduces no axis, which ONNX Runtime's kernels take for an error or for a copy")
    return axes


def _kept_shape(site: Site, axes: Sequence[int]) -> list[int]:
    """Return the output's shape as if the reduced dimensions were kept."""
    return [1 if axis in axes else size for axis, size in enumerate(site.shape(site.input(0)))]


def _kept(site: Site, axes: Sequence[int], value: ir.Value) -> ir.Value:
    """View the output or its gradient so that it fits beside the input."""
    return value if site.attributes.get("keepdims", 1) else site.reshape(value, _kept_shape(site, axes))


def _with_slopes(*op_types: str) -> Callable[[Callable[[Site, ir.Value], ir.Value]], None]:
    """Register reductions whose gradient is the repeated one times a slope that is computed of the kept output."""

    def register(slope: Callable[[Site, ir.Value], ir.Value]) -> None:
        def rule(site: Site) -> None:
            axes = _axes(site)
            factor = slope(site, _kept(site, axes, site.output()))
            site.send(0, site.op("Mul", _kept(site, axes, site.gradient()), factor))

        gradient_of(*op_types, stops=(1,))(rule)

    return register


@gradient_of("ReduceMax", "ReduceMin", stops=(1,))
def extreme(site: Site) -> None:
    """Share the gradient among the elements that are the extreme."""
    x, axes = site.input(0), _axes(site)
    chosen = as_real(site, site.op("Equal", x, _kept(site, axes, site.output())), x)
    share = site.op("Div", _kept(site, axes, site.gradient()), site.reduce_sum(chosen, axes, keep=True))
    site.send(0, site.op("Mul", chosen, share))


@gradient_of("ReduceProd", stops=(1,))
def product(site: Site) -> None:
    """Multiply the gradient by the product of all other elements, which may be zeros."""
    x, axes = site.input(0), _axes(site)
    zero, one = site.number(0, x), site.number(1, x)
    is_zero = site.op("Equal", x, zero)
    zeros = site.reduce_sum(as_real(site, is_zero, x), axes, keep=True)
    filled = site.op("Where", is_zero, one, x)
    if site.opset < 18:
        whole = site.op("ReduceProd", filled, axes=list(axes), keepdims=1)
    else:
        whole = site.op("ReduceProd", filled, site.ints(*axes), keepdims=1)
    single = as_real(site, site.op("Equal", zeros, one), x)
    none = as_real(site, site.op("Equal", zeros, zero), x)
    share = site.op("Mul", _kept(site, axes, site.gradient()), whole)
    others = site.op("Where", is_zero, single, site.op("Div", none, filled))
    site.send(0, site.op("Mul", share, others))


@_with_slopes("ReduceL1")
def _sum_of_magnitudes(site: Site, y: ir.Value) -> ir.Value:
    return site.op("Sign", site.input(0))


@_with_slopes("ReduceL2")
def _length(site: Site, y: ir.Value) -> ir.Value:
    # The slope at the origin is 0, as in torch.
    at_origin = site.op("Equal", y, site.number(0, site.output()))
    return site.op("Div", site.input(0), site.op("Where", at_origin, site.number(1, site.output()), y))


@_with_slopes("ReduceSumSquare")
def _sum_of_squares(site: Site, y: ir.Value) -> ir.Value:
    return site.op("Mul", site.input(0), site.number(2, site.output()))


@_with_slopes("ReduceLogSumExp")
def _log_of_sum_of_powers(site: Site, y: ir.Value) -> ir.Value:
    return site.op("Exp", site.op("Sub", site.input(0), y))


@gradient_of("ReduceLogSum", stops=(1,))
def log_of_sum(site: Site) -> None:
    """Divide the gradient by the sum, and repeat it."""
    axes = _axes(site)
    share = site.op("Div", site.gradient(), site.op("Exp", site.output()))
    site.send(0, site.expand(_kept(site, axes, share), site.shape(site.input(0))))
