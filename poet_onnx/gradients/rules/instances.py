"""Gradients of normalizations of single instances and of vectors."""

from __future__ import annotations

import math

import onnx_ir as ir

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import NoGradientError, Site
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("InstanceNormalization")
def instance_normalization(site: Site) -> None:
    """Differentiate as a batch normalization of one image that has a channel for each channel of each instance."""
    x, scale = site.input(0), site.input(1)
    instances, channels, *pixels = site.shape(x)
    rows = [1, instances * channels, math.prod(pixels)]
    image, gradient = site.reshape(x, rows), site.reshape(site.gradient(), rows)
    mean = _mean(site, image, rows[2])
    centred = site.op("Sub", image, mean)
    variance = _mean(site, site.op("Mul", centred, centred), rows[2])
    shifted = site.op("Add", variance, site.number(site.attributes.get("epsilon", 1e-5), x))
    inverse = site.op("Div", site.number(1, x), site.op("Sqrt", shifted))
    scales = site.reshape(site.expand(scale, (instances, channels)), rows[1:2])
    statistics = [site.reshape(value, rows[1:2]) for value in (mean, inverse)]
    results = site.ops(
        "BatchNormalizationGrad", [gradient, image, scales, *statistics], 3, domain=MICROSOFT_DOMAIN, epsilon=0.0
    )
    site.send(0, site.reshape(results[0], site.shape(x)))
    for index, result in enumerate(results[1:], 1):
        if site.wants(index):
            site.send(index, site.reduce_sum(site.reshape(result, (instances, channels)), (0,), keep=False))


def _mean(site: Site, image: ir.Value, count: int) -> ir.Value:
    return site.op("Mul", site.reduce_sum(image, (2,), keep=True), site.number(1 / count, site.input(0)))


@gradient_of("LpNormalization")
def vector_normalization(site: Site) -> None:
    """Take from the gradient its part along the norm's slope, and divide by the norm; zeros have the gradient 0."""
    x, y, gradient = site.input(0), site.output(), site.gradient()
    order = site.attributes.get("p", 2)
    axis = site.attributes.get("axis", -1) % len(site.shape(x))
    zero, one = site.number(0, x), site.number(1, x)
    if order == 1:
        norm, slope = site.reduce_sum(site.op("Abs", x), (axis,), keep=True), site.op("Sign", x)
    elif order == 2:
        norm, slope = site.op("Sqrt", site.reduce_sum(site.op("Mul", x, x), (axis,), keep=True)), y
    else:
        raise NoGradientError(f"p is {order}, not 1 or 2")
    along = site.reduce_sum(site.op("Mul", gradient, y), (axis,), keep=True)
    across = site.op("Sub", gradient, site.op("Mul", slope, along))
    vanishes = site.op("Equal", norm, zero)
    share = site.op("Div", across, site.op("Where", vanishes, one, norm))
    site.send(0, site.op("Where", vanishes, zero, share))
