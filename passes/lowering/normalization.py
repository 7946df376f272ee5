"""Normalization in training: batch statistics, and the gradients of batch and layer normalization."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN, UNBIASED_KEY
from poet_onnx.passes.lowering.builder import FLOAT, LoweringBuilder, Rules, UnsupportedError


def _per_channel(builder: LoweringBuilder, value: ir.Value, rank: int) -> ir.Value:
    """View one number for each channel so that it spreads over an image of `rank` dimensions, batch included."""
    return builder.reshape(value, -1, *(1,) * (rank - 2))


def _has_kernel(builder: LoweringBuilder) -> bool:
    return builder.kernels and all(builder.type(index).dtype == FLOAT for index in range(5))


def _by_kernel(builder: LoweringBuilder, op_type: str) -> None:
    """Let the operator library's kernel compute a gradient, from the same inputs."""
    for index, value in enumerate(builder.ops(op_type, builder.node.inputs[:5], 3, domain=POET_DOMAIN)):
        builder.give(index, value)


def _batch_norm(builder: LoweringBuilder) -> None:
    """BatchNormInternal(X, scale, bias, mean, variance) -> (Y, new mean, new variance, batch mean, 1 / deviation).

    The running statistics are old x momentum + new x (1 - momentum). The new variance is the mean over all n elements,
    as in ONNX; in a model of torch it is taken n / (n - 1) times, as torch does.
    """
    shape = builder.shape(0)
    epsilon = float(builder.attributes.get("epsilon", 1e-5))
    momentum = float(builder.attributes.get("momentum", 0.9))
    axes = (0, *range(2, len(shape)))
    count = math.prod(shape[axis] for axis in axes)
    correction = count / (count - 1) if UNBIASED_KEY in builder.node.metadata_props and count > 1 else 1.0
    if _has_kernel(builder):
        if builder.wants(1) or builder.wants(2):
            raise UnsupportedError("its running statistics are read in the same step")
        rates = builder.constant(np.array([epsilon, momentum, correction], np.float32))
        results = builder.ops("BatchNormalize", [*builder.node.inputs[:5], rates], 3, domain=POET_DOMAIN)
        for index, value in zip((0, 3, 4), results, strict=True):
            builder.give(index, value)
        return
    share = builder.number(1 / count)
    mean = builder.op("Mul", builder.sum(builder.input(0), *axes, keep=False), share)
    centred = builder.op("Sub", builder.input(0), _per_channel(builder, mean, len(shape)))
    squares = builder.sum(builder.op("Mul", centred, centred), *axes, keep=False)
    variance = builder.op("Mul", squares, share)
    y = builder.op("BatchNormalization", *builder.node.inputs[:3], mean, variance, epsilon=epsilon)
    builder.give(0, y)
    if len(builder.node.outputs) > 4:
        deviation = builder.op("Sqrt", builder.op("Add", variance, builder.number(epsilon)))
        builder.give(4, builder.op("Reciprocal", deviation))
    for index, statistic, factor in ((1, mean, 1.0), (2, variance, correction)):
        if builder.wants(index):
            _update(builder, index, statistic, momentum, factor)
    if len(builder.node.outputs) > 3:
        builder.give(3, mean)


def _update(builder: LoweringBuilder, index: int, statistic: ir.Value, momentum: float, factor: float) -> None:
    """Move a running statistic towards the batch's, taken so many times."""
    old = builder.op("Mul", builder.input(2 + index), builder.number(momentum, 2 + index))
    new = builder.op("Add", old, builder.op("Mul", statistic, builder.number((1 - momentum) * factor, 2 + index)))
    builder.give(index, new)


def _batch_norm_gradient(builder: LoweringBuilder) -> None:
    """BatchNormalizationGrad(dY, X, scale, mean, 1 / deviation) -> (dX, dScale, dBias).

    dX = a (dY - mean(dY)) - a (X - mean) mean(dY (X - mean)) / variance, with a = scale / deviation: what multiplies
    X - mean and what stands alone are one number for each channel, which BatchNormalization, told that mean and
    deviation are 0 and 1, applies in a single pass.
    """
    shape = builder.shape(0)
    if _has_kernel(builder):
        _by_kernel(builder, "BatchNormalizeGradient")
        return
    d_y, x, scale, mean, inverse = (builder.input(index) for index in range(5))
    axes = (0, *range(2, len(shape)))
    count, dtype = math.prod(shape[axis] for axis in axes), builder.type(0).dtype.numpy()
    d_bias = builder.sum(d_y, *axes, keep=False)
    centred = builder.op("Sub", x, _per_channel(builder, mean, len(shape)))
    product = builder.sum(builder.op("Mul", d_y, centred), *axes, keep=False)
    d_scale = builder.op("Mul", product, inverse)
    if builder.wants(0):
        factor = builder.op("Mul", scale, inverse)
        share = builder.op("Mul", factor, builder.number(-1 / count))
        slope = builder.op("Mul", builder.op("Mul", share, inverse), d_scale)
        offset = builder.op("Mul", share, d_bias)
        zeros, ones = builder.zeros((shape[1],), builder.type(0).dtype), builder.constant(np.ones(shape[1], dtype))
        affine = builder.op("BatchNormalization", centred, slope, offset, zeros, ones, epsilon=0.0)
        builder.give(0, builder.op("Add", affine, builder.op("Mul", d_y, _per_channel(builder, factor, len(shape)))))
    builder.give(1, d_scale)
    builder.give(2, d_bias)


def _layer_norm_gradient(builder: LoweringBuilder) -> None:
    """LayerNormalizationGrad(dY, X, scale, mean, 1 / deviation) -> (dX, dScale, dBias)."""
    if _has_kernel(builder):
        _by_kernel(builder, "LayerNormalizeGradient")
        return
    normalized = builder.op("Mul", builder.op("Sub", builder.input(1), builder.input(3)), builder.input(4))
    _normalized_gradient(builder, normalized, builder.input(4), rank=len(builder.shape(1)), centred=True)


def _simplified_layer_norm_gradient(builder: LoweringBuilder) -> None:
    """SimplifiedLayerNormalizationGrad(dY, X, scale, 1 / root mean square) -> (dX, dScale)."""
    normalized = builder.op("Mul", builder.input(1), builder.input(3))
    _normalized_gradient(builder, normalized, builder.input(3), rank=len(builder.shape(1)), centred=False)


def _invertible_layer_norm_gradient(builder: LoweringBuilder) -> None:
    """InvertibleLayerNormalizationGrad(dY, Y, scale, bias, 1 / deviation): X is found from Y."""
    normalized = builder.op("Div", builder.op("Sub", builder.input(1), builder.input(3)), builder.input(2))
    _normalized_gradient(builder, normalized, builder.input(4), rank=len(builder.shape(1)), centred=True)


def _normalized_gradient(
    builder: LoweringBuilder, normalized: ir.Value, inverse: ir.Value, *, rank: int, centred: bool
) -> None:
    """Write dX = (G - mean(G) - n mean(G n)) / deviation with G = dY scale, and n the normalized input.

    Without centring mean(G) is left out.
    """
    axis = int(builder.attributes.get("axis", -1)) % rank
    rows, columns = tuple(range(axis)), tuple(range(axis, rank))
    share = builder.number(1 / math.prod(builder.shape(1)[axis:]))
    d_y, scale = builder.input(0), builder.input(2)
    product = builder.op("Mul", d_y, normalized)
    if builder.wants(0):
        gradient = builder.op("Mul", d_y, scale)
        along = builder.op("Mul", builder.sum(builder.op("Mul", gradient, normalized), *columns), share)
        if centred:
            mean = builder.op("Mul", builder.sum(gradient, *columns), share)
            gradient = builder.op("Sub", gradient, mean)
        d_x = builder.op("Sub", gradient, builder.op("Mul", normalized, along))
        builder.give(0, builder.op("Mul", d_x, inverse))
    builder.give(1, builder.sum(product, *rows, keep=False))
    if centred:
        builder.give(2, builder.sum(d_y, *rows, keep=False))


RULES: Rules = {
    "BatchNormInternal": _batch_norm,
    "BatchNormalizationGrad": _batch_norm_gradient,
    "LayerNormalizationGrad": _layer_norm_gradient,
    "SimplifiedLayerNormalizationGrad": _simplified_layer_norm_gradient,
    "InvertibleLayerNormalizationGrad": _invertible_layer_norm_gradient,
}
