"""Gradients of windows beyond the usual: transposed convolutions, folds, norms, global maxima, and pixels of depth."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.passes.lowering.pooling import sum_windows
from poet_onnx.passes.lowering.windows import read_window


@gradient_of("ConvTranspose")
def transposed_convolution(builder: GradientBuilder) -> None:
    """Convolve the gradient; the weight's gradient is that of this convolution."""
    x, weight, gradient = builder.input(0), builder.input(1), builder.gradient()
    spatial = len(builder.shape(x)) - 2
    strides = list(builder.attributes.get("strides") or [1] * spatial)
    if builder.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or builder.attributes.get(
        "output_shape"
    ):
        raise NoGradientError("its padding follows from auto_pad or output_shape; export it with pads")
    extra = builder.attributes.get("output_padding") or [0] * spatial
    if any(more >= stride for more, stride in zip(extra, strides, strict=True)):
        raise NoGradientError("its output_padding is not smaller than its strides")
    window = {
        "kernel_shape": list(builder.shape(weight)[2:]),
        "strides": strides,
        "dilations": list(builder.attributes.get("dilations") or [1] * spatial),
        "pads": list(builder.attributes.get("pads") or [0] * (2 * spatial)),
        "group": builder.attributes.get("group", 1),
    }
    if builder.wants(0):
        builder.send(0, builder.op("Conv", gradient, weight, **window))
    if builder.wants(1):
        wanted = [False, True]
        results = builder.ops("ConvGrad", [x, gradient, weight], wanted, domain=MICROSOFT_DOMAIN, **window)
        builder.send(1, results[1])
    if builder.wants(2):
        builder.send(2, builder.reduce_sum(gradient, [0, *range(2, spatial + 2)], keep=False))


@gradient_of("Col2Im")
def fold(builder: GradientBuilder) -> None:
    """Unfold the gradient: a convolution of each channel with filters that pick one pixel of the block each."""
    x, image, block = builder.input(0), builder.integers(1), builder.integers(2)
    count, pixels = len(block), math.prod(block)
    images, rows, _ = builder.shape(x)
    filters = np.eye(pixels, dtype=builder.type(x).dtype.numpy()).reshape(pixels, 1, *block)
    columns = builder.op(
        "Conv",
        builder.reshape(builder.gradient(), (images * rows // pixels, 1, *image)),
        builder.constant(filters),
        kernel_shape=list(block),
        strides=list(builder.attributes.get("strides") or [1] * count),
        dilations=list(builder.attributes.get("dilations") or [1] * count),
        pads=list(builder.attributes.get("pads") or [0] * (2 * count)),
    )
    builder.send(0, builder.reshape(columns, builder.shape(x)))


@gradient_of("GlobalMaxPool")
def global_max_pool(builder: GradientBuilder) -> None:
    """Send the gradient to the first maximum of each channel, as torch does."""
    x = builder.input(0)
    shape = builder.shape(x)
    rows = [*shape[:2], math.prod(shape[2:])]
    where = builder.op("ArgMax", builder.reshape(x, rows), axis=2, keepdims=1)
    zeros = builder.expand(builder.number(0, x), rows)
    found = builder.op("ScatterElements", zeros, where, builder.reshape(builder.gradient(), [*rows[:2], 1]), axis=2)
    builder.send(0, builder.reshape(found, shape))


@gradient_of("LpPool")
def norm_pool(builder: GradientBuilder) -> None:
    """Multiply the gradient by sign(x) (|x| / y)^(p - 1), with y that of the element's window."""
    x, y = builder.input(0), builder.output()
    order = builder.attributes.get("p", 2)
    share = builder.gradient()
    if order != 1:
        vanishes = builder.op("Equal", y, builder.number(0, y))
        safe = builder.op("Where", vanishes, builder.number(1, y), y)
        share = builder.op("Div", share, _power(builder, safe, order - 1))
        share = builder.op("Mul", share, builder.as_real(builder.op("Not", vanishes), y))
    shape, pixels = builder.shape(x), builder.shape(y)[2:]
    window = read_window(builder, shape[2:], pixels)
    found = sum_windows(builder, share, window, (shape, pixels), builder.type(x).dtype)
    slope = builder.op("Sign", x)
    if order != 1:
        slope = builder.op("Mul", slope, _power(builder, builder.op("Abs", x), order - 1))
    builder.send(0, builder.op("Mul", found, slope))


def _power(builder: GradientBuilder, value: ir.Value, exponent: int) -> ir.Value:
    return value if exponent == 1 else builder.op("Pow", value, builder.number(exponent, builder.output()))


@gradient_of("SpaceToDepth")
def space_to_depth(builder: GradientBuilder) -> None:
    """Put the pixels back."""
    builder.send(0, builder.op("DepthToSpace", builder.gradient(), blocksize=builder.attributes["blocksize"]))


@gradient_of("DepthToSpace")
def depth_to_space(builder: GradientBuilder) -> None:
    """Put the channels back, in the order of the mode."""
    size = builder.attributes["blocksize"]
    if builder.attributes.get("mode", "DCR") == "DCR":
        builder.send(0, builder.op("SpaceToDepth", builder.gradient(), blocksize=size))
        return
    images, depth, height, width = builder.shape(builder.output())
    blocks = builder.reshape(builder.gradient(), (images, depth, height // size, size, width // size, size))
    turned = builder.op("Transpose", blocks, perm=[0, 1, 3, 5, 2, 4])
    builder.send(0, builder.reshape(turned, builder.shape(builder.input(0))))
