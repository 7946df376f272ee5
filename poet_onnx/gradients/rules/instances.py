"""Gradients of normalizations of single instances, of vectors and of neighbouring channels."""

from __future__ import annotations

import math

import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("InstanceNormalization")
def instance_normalization(builder: GradientBuilder) -> None:
    """Differentiate as a batch normalization of one image that has a channel for each channel of each instance."""
    x, scale = builder.input(0), builder.input(1)
    instances, channels, *pixels = builder.shape(x)
    rows = [1, instances * channels, math.prod(pixels)]
    image, gradient = builder.reshape(x, rows), builder.reshape(builder.gradient(), rows)
    mean = _mean(builder, image, rows[2])
    centred = builder.op("Sub", image, mean)
    variance = _mean(builder, builder.op("Mul", centred, centred), rows[2])
    shifted = builder.op("Add", variance, builder.number(builder.attributes.get("epsilon", 1e-5), x))
    inverse = builder.op("Div", builder.number(1, x), builder.op("Sqrt", shifted))
    scales = builder.reshape(builder.expand(scale, (instances, channels)), rows[1:2])
    statistics = [builder.reshape(value, rows[1:2]) for value in (mean, inverse)]
    results = builder.ops(
        "BatchNormalizationGrad", [gradient, image, scales, *statistics], 3, domain=MICROSOFT_DOMAIN, epsilon=0.0
    )
    builder.send(0, builder.reshape(results[0], builder.shape(x)))
    for index, result in enumerate(results[1:], 1):
        if builder.wants(index):
            builder.send(index, builder.reduce_sum(builder.reshape(result, (instances, channels)), (0,), keep=False))


def _mean(builder: GradientBuilder, image: ir.Value, count: int) -> ir.Value:
    return builder.op("Mul", builder.reduce_sum(image, (2,), keep=True), builder.number(1 / count, builder.input(0)))


@gradient_of("LpNormalization")
def vector_normalization(builder: GradientBuilder) -> None:
    """Take from the gradient its part along the norm's slope, and divide by the norm; zeros have the gradient 0."""
    x, y, gradient = builder.input(0), builder.output(), builder.gradient()
    order = builder.attributes.get("p", 2)
    axis = builder.attributes.get("axis", -1) % len(builder.shape(x))
    zero, one = builder.number(0, x), builder.number(1, x)
    if order == 1:
        norm, slope = builder.reduce_sum(builder.op("Abs", x), (axis,), keep=True), builder.op("Sign", x)
    elif order == 2:
        norm, slope = builder.op("Sqrt", builder.reduce_sum(builder.op("Mul", x, x), (axis,), keep=True)), y
    else:
        raise NoGradientError(f"p is {order}, not 1 or 2")
    along = builder.reduce_sum(builder.op("Mul", gradient, y), (axis,), keep=True)
    across = builder.op("Sub", gradient, builder.op("Mul", slope, along))
    vanishes = builder.op("Equal", norm, zero)
    share = builder.op("Div", across, builder.op("Where", vanishes, one, norm))
    builder.send(0, builder.op("Where", vanishes, zero, share))


@gradient_of("LRN")
def local_response_normalization(builder: GradientBuilder) -> None:
    """Differentiate x / s^beta, where s is bias + alpha times the mean square of `size` neighbouring channels."""
    x, y, gradient = builder.input(0), builder.output(), builder.gradient()
    given, shape = builder.attributes, builder.shape(x)
    alpha, beta, size = given.get("alpha", 1e-4), given.get("beta", 0.75), given["size"]
    before, after = (size - 1) // 2, size // 2

    def mean(value: ir.Value, before: int, after: int) -> ir.Value:
        columns = builder.reshape(value, (shape[0], 1, shape[1], math.prod(shape[2:])))
        pads = [before, 0, after, 0]
        means = builder.op("AveragePool", columns, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
        return builder.reshape(means, shape)

    squares = builder.op("Mul", mean(builder.op("Mul", x, x), before, after), builder.number(alpha, x))
    spread = builder.op("Add", squares, builder.number(given.get("bias", 1.0), x))
    own = builder.op("Mul", gradient, builder.op("Pow", spread, builder.number(-beta, x)))
    share = builder.op("Div", builder.op("Mul", gradient, y), spread)
    others = builder.op("Mul", mean(share, after, before), builder.number(2 * alpha * beta, x))
    builder.send(0, builder.op("Sub", own, builder.op("Mul", x, others)))
