"""Normalization in training: batch statistics, and the gradients of batch and layer normalization."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from poet_onnx.description.metadata import UNBIASED_KEY
from poet_onnx.passes.lowering.site import FLOAT, POET, Rules, Site, UnsupportedError


def _per_channel(site: Site, value: ir.Value, rank: int) -> ir.Value:
    """View one number for each channel so that it spreads over an image of `rank` dimensions, batch included."""
    return site.reshape(value, -1, *(1,) * (rank - 2))


def _has_kernel(site: Site) -> bool:
    return site.kernels and all(site.type(index).dtype == FLOAT for index in range(5))


def _by_kernel(site: Site, op_type: str) -> None:
    """Let the operator library's kernel compute a gradient, from the same inputs."""
    for index, value in enumerate(site.ops(op_type, site.node.inputs[:5], 3, domain=POET)):
        site.give(index, value)


def _batch_norm(site: Site) -> None:
    """BatchNormInternal(X, scale, bias, mean, variance) -> (Y, new mean, new variance, batch mean, 1 / deviation).

    The running statistics are old x momentum + new x (1 - momentum). The new variance is the mean over all n elements,
    as in ONNX; in a model of torch it is taken n / (n - 1) times, as torch does.
    """
    shape = site.shape(0)
    epsilon = float(site.attributes.get("epsilon", 1e-5))
    momentum = float(site.attributes.get("momentum", 0.9))
    axes = (0, *range(2, len(shape)))
    count = math.prod(shape[axis] for axis in axes)
    correction = count / (count - 1) if UNBIASED_KEY in site.node.metadata_props and count > 1 else 1.0
    if _has_kernel(site):
        if site.wants(1) or site.wants(2):
            raise UnsupportedError("its running statistics are read in the same step")
        rates = site.constant(np.array([epsilon, momentum, correction], np.float32))
        results = site.ops("BatchNormalize", [*site.node.inputs[:5], rates], 3, domain=POET)
        for index, value in zip((0, 3, 4), results, strict=True):
            site.give(index, value)
        return
    share = site.number(1 / count)
    mean = site.op("Mul", site.sum(site.input(0), *axes, keep=False), share)
    centred = site.op("Sub", site.input(0), _per_channel(site, mean, len(shape)))
    squares = site.sum(site.op("Mul", centred, centred), *axes, keep=False)
    variance = site.op("Mul", squares, share)
    y = site.op("BatchNormalization", *site.node.inputs[:3], mean, variance, epsilon=epsilon)
    site.give(0, y)
    if len(site.node.outputs) > 4:
        deviation = site.op("Sqrt", site.op("Add", variance, site.number(epsilon)))
        site.give(4, site.op("Reciprocal", deviation))
    for index, statistic, factor in ((1, mean, 1.0), (2, variance, correction)):
        if site.wants(index):
            _update(site, index, statistic, momentum, factor)
    if len(site.node.outputs) > 3:
        site.give(3, mean)


def _update(site: Site, index: int, statistic: ir.Value, momentum: float, factor: float) -> None:
    """Move a running statistic towards the batch's, taken so many times."""
    old = site.op("Mul", site.input(2 + index), site.number(momentum, 2 + index))
    new = site.op("Add", old, site.op("Mul", statistic, site.number((1 - momentum) * factor, 2 + index)))
    site.give(index, new)


def _batch_norm_gradient(site: Site) -> None:
    """BatchNormalizationGrad(dY, X, scale, mean, 1 / deviation) -> (dX, dScale, dBias).

    dX = a (dY - mean(dY)) - a (X - mean) mean(dY (X - mean)) / variance, with a = scale / deviation: what multiplies
    X - mean and what stands alone are one number for each channel, which BatchNormalization, told that mean and
    deviation are 0 and 1, applies in a single pass.
    """
    shape = site.shape(0)
    if _has_kernel(site):
        _by_kernel(site, "BatchNormalizeGradient")
        return
    d_y, x, scale, mean, inverse = (site.input(index) for index in range(5))
    axes = (0, *range(2, len(shape)))
    count, dtype = math.prod(shape[axis] for axis in axes), site.type(0).dtype.numpy()
    d_bias = site.sum(d_y, *axes, keep=False)
    centred = site.op("Sub", x, _per_channel(site, mean, len(shape)))
    product = site.sum(site.op("Mul", d_y, centred), *axes, keep=False)
    d_scale = site.op("Mul", product, inverse)
    if site.wants(0):
        factor = site.op("Mul", scale, inverse)
        share = site.op("Mul", factor, site.number(-1 / count))
        slope = site.op("Mul", site.op("Mul", share, inverse), d_scale)
        offset = site.op("Mul", share, d_bias)
        zeros, ones = site.zeros((shape[1],), site.type(0).dtype), site.constant(np.ones(shape[1], dtype))
        affine = site.op("BatchNormalization", centred, slope, offset, zeros, ones, epsilon=0.0)
        site.give(0, site.op("Add", affine, site.op("Mul", d_y, _per_channel(site, factor, len(shape)))))
    site.give(1, d_scale)
    site.give(2, d_bias)


def _layer_norm_gradient(site: Site) -> None:
    """LayerNormalizationGrad(dY, X, scale, mean, 1 / deviation) -> (dX, dScale, dBias)."""
    if _has_kernel(site):
        _by_kernel(site, "LayerNormalizeGradient")
        return
    normalized = site.op("Mul", site.op("Sub", site.input(1), site.input(3)), site.input(4))
    _normalized_gradient(site, normalized, site.input(4), rank=len(site.shape(1)), centred=True)


def _simplified_layer_norm_gradient(site: Site) -> None:
    """SimplifiedLayerNormalizationGrad(dY, X, scale, 1 / root mean square) -> (dX, dScale)."""
    normalized = site.op("Mul", site.input(1), site.input(3))
    _normalized_gradient(site, normalized, site.input(3), rank=len(site.shape(1)), centred=False)


def _invertible_layer_norm_gradient(site: Site) -> None:
    """InvertibleLayerNormalizationGrad(dY, Y, scale, bias, 1 / deviation): X is found from Y."""
    normalized = site.op("Div", site.op("Sub", site.input(1), site.input(3)), site.input(2))
    _normalized_gradient(site, normalized, site.input(4), rank=len(site.shape(1)), centred=True)


def _normalized_gradient(site: Site, normalized: ir.Value, inverse: ir.Value, *, rank: int, centred: bool) -> None:
    """Write dX = (G - mean(G) - n mean(G n)) / deviation with G = dY scale, and n the normalized input.

    Without centring mean(G) is left out.
    """
    axis = int(site.attributes.get("axis", -1)) % rank
    rows, columns = tuple(range(axis)), tuple(range(axis, rank))
    share = site.number(1 / math.prod(site.shape(1)[axis:]))
    d_y, scale = site.input(0), site.input(2)
    product = site.op("Mul", d_y, normalized)
    if site.wants(0):
        gradient = site.op("Mul", d_y, scale)
        along = site.op("Mul", site.sum(site.op("Mul", gradient, normalized), *columns), share)
        if centred:
            mean = site.op("Mul", site.sum(gradient, *columns), share)
            gradient = site.op("Sub", gradient, mean)
        d_x = site.op("Sub", gradient, site.op("Mul", normalized, along))
        site.give(0, site.op("Mul", d_x, inverse))
    site.give(1, site.sum(product, *rows, keep=False))
    if centred:
        site.give(2, site.sum(d_y, *rows, keep=False))


RULES: Rules = {
    "BatchNormInternal": _batch_norm,
    "BatchNormalizationGrad": _batch_norm_gradient,
    "LayerNormalizationGrad": _layer_norm_gradient,
    "SimplifiedLayerNormalizationGrad": _simplified_layer_norm_gradient,
    "InvertibleLayerNormalizationGrad": _invertible_layer_norm_gradient,
}
