"""Gradients of convolutions: the data's half is a transposed convolution, the weight's half a matrix product.

The weight's gradient is dY (output channels x pixels) times the columns of X (input channels and taps x pixels),
transposed. Three expansions make it; which is the quickest, and which needs the least memory, the shape decides
(choice.py):

    taps     for each tap one product with the pixels under it; the products are interleaved at the end
    columns  all columns at once, made by a convolution whose filters each pick one tap, and one product
    kernel   the convolution of X with dY as its kernel; for few input channels under a large kernel

With the operator library one node makes either half for images of two dimensions: of a strip of windows at a time, some
rows of one image or several small images. So no image is padded or turned, and what a half takes beside its result is
about as large as X, where all columns are as large as X for each tap.

A depthwise convolution's gradients have operators of their own. Of the weight: the columns of one channel fit into a
cache, those of all channels, which plain nodes need, do not. Of the data: the runtime's kernel runs on one thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from poet_onnx.description.metadata import POET_DOMAIN
from poet_onnx.passes.lowering.builder import FLOAT, MICROSOFT, LoweringBuilder, Rules
from poet_onnx.passes.lowering.windows import Window, read_window

# What the expansions differ in, as measured on an x86-64: it decides where no device is known.
_INTERLEAVED_NANOSECONDS = 1.05  # for each element of the weight: written by its tap's product, moved to its place
_SLICED_NANOSECONDS = 0.2  # for each element of the columns, where every tap is sliced
_COLUMN_NANOSECONDS = 0.7  # for each element of the columns, where a convolution makes them
_LEAST_WINDOWS, _MOST_WINDOWS = 256, 1024  # of a strip: enough for products of matrices, few enough for caches
_LEAST_COLUMNS = 16  # that a product has of the weight, and a multiple of them: those of a vector, or several
_LEAST_PRODUCT = 1 << 18  # floats that a part of the weight's columns may have: not so few that products are narrow
_LEAST_FLOATS = 1 << 15  # of a strip's columns, even where X is smaller
_KERNEL_CHANNELS, _KERNEL_TAPS = 4, 25  # most channels and fewest taps with which `kernel` is the quickest


@dataclass(frozen=True)
class _Shapes:
    """Sizes of a convolution's gradient; `x` has [batch, channels, image], `d_y` has [batch, filters, pixels]."""

    batch: int
    channels: int
    filters: int
    group: int
    image: tuple[int, ...]
    pixels: tuple[int, ...]
    window: Window

    @property
    def taps(self) -> int:
        return math.prod(self.window.kernel)

    @property
    def samples(self) -> int:
        """Return all pixels of the batch."""
        return self.batch * math.prod(self.pixels)

    @property
    def weight(self) -> tuple[int, ...]:
        return (self.filters, self.channels // self.group, *self.window.kernel)

    @property
    def depth(self) -> int:
        """Return the columns' rows in a group."""
        return self.channels // self.group * self.taps

    @property
    def strip(self) -> dict[str, int]:
        """Return how many images the library's kernels take at a time or, of one image, how many rows of windows."""
        height, width = self.pixels
        wanted = min(max(self._floats // self.depth, _LEAST_WINDOWS), _MOST_WINDOWS)
        if self.window.is_point or height * width <= wanted:
            return {"images": _evenly(self.batch, -(-_LEAST_WINDOWS // (height * width))), "rows": height}
        return {"images": 1, "rows": _evenly(height, max(1, wanted // width))}

    @property
    def columns(self) -> int:
        """Return how many rows of a strip's columns the weight's kernel makes at a time."""
        strip = self.strip
        windows = strip["images"] * strip["rows"] * self.pixels[1]
        filters = self.filters // self.group
        most = max(min(self._floats // windows, max(self._floats, _LEAST_PRODUCT) // filters), _LEAST_COLUMNS)
        if self.depth * windows <= max(self._floats, most * (windows + filters)):
            return self.depth  # what they make needs no copy then
        return math.ceil(_evenly(self.depth, most) / _LEAST_COLUMNS) * _LEAST_COLUMNS

    @property
    def _floats(self) -> int:
        """Return what columns may take: as much as a group's channels."""
        return max(self.batch * self.channels // self.group * math.prod(self.image), _LEAST_FLOATS)

    @property
    def expansions(self) -> tuple[str, ...]:
        """Return the expansions that these sizes may take; a choice where there are several."""
        if self.window.is_point:
            return ("columns",)
        if self.batch == self.group == 1 and self.channels <= _KERNEL_CHANNELS and self.taps >= _KERNEL_TAPS:
            return ("kernel",)
        return ("taps", "columns")

    @property
    def usual_expansion(self) -> str:
        """Return the quickest expansion on an x86-64."""
        if len(self.expansions) == 1:
            return self.expansions[0]
        if self.group > 1:
            return "columns"
        columns = self.channels * self.taps * self.samples
        interleaved = _INTERLEAVED_NANOSECONDS * math.prod(self.weight) + _SLICED_NANOSECONDS * columns
        return "taps" if interleaved < _COLUMN_NANOSECONDS * columns else "columns"


def _evenly(count: int, most: int) -> int:
    """Return how many to take at a time: at most so many, and the last time about as many as before."""
    times = -(-count // min(count, most))
    return -(-count // times)


def _conv(builder: LoweringBuilder) -> None:
    """ConvGrad(dY, X, W) -> (dX, dW, dB)."""
    weight = builder.shape(2)
    sizes = _sizes(builder, builder.shape(1), builder.shape(0), weight)
    if builder.wants(0):
        builder.give(0, _data_gradient(builder, sizes))
    if builder.wants(1):
        builder.give(1, _weight_gradient(builder, builder.input(1), builder.input(0), sizes))
    if builder.wants(2):
        builder.give(2, builder.sum(builder.input(0), 0, *range(2, len(weight)), keep=False))


def _conv_transpose(builder: LoweringBuilder) -> None:
    """ConvTransposeGrad(dY, X, W) -> (dX, dW, dB): a ConvTranspose is the convolution from Y's image to X's, turned."""
    weight = builder.shape(2)
    sizes = _sizes(builder, builder.shape(0), builder.shape(1), weight)
    window = sizes.window
    if builder.wants(0):
        d_x = builder.op(
            "Conv",
            builder.input(0),
            builder.input(2),
            kernel_shape=window.kernel,
            strides=window.strides,
            dilations=window.dilations,
            pads=[*window.begins, *window.ends],
            group=sizes.group,
        )
        builder.give(0, d_x)
    if builder.wants(1):
        builder.give(1, _weight_gradient(builder, builder.input(0), builder.input(1), sizes))
    if builder.wants(2):
        builder.give(2, builder.sum(builder.input(0), 0, *range(2, len(weight)), keep=False))


def _sizes(builder: LoweringBuilder, x: tuple[int, ...], d_y: tuple[int, ...], weight: tuple[int, ...]) -> _Shapes:
    window = read_window(builder, x[2:], d_y[2:], weight[2:])
    return _Shapes(x[0], x[1], d_y[1], int(builder.attributes.get("group", 1)), x[2:], d_y[2:], window)


def _data_gradient(builder: LoweringBuilder, sizes: _Shapes) -> ir.Value:
    """Return dX: the transposed convolution of dY, or for single pixels the product with the transposed weight."""
    window = sizes.window
    if window.is_point and sizes.batch == sizes.group == 1:
        weight = builder.reshape(builder.input(2), sizes.filters, sizes.channels)
        d_y = builder.reshape(builder.input(0), sizes.filters, sizes.samples)
        return builder.reshape(builder.op("Gemm", weight, d_y, transA=1), 1, sizes.channels, *sizes.image)
    if _has_images(builder, sizes):
        attributes: dict[str, int | tuple[int, ...]] = {"image": sizes.image, **_window_attributes(window)}
        is_depthwise = _is_depthwise(builder, sizes) and sizes.filters == sizes.channels
        if not is_depthwise:
            attributes |= {"pixels": sizes.pixels, "group": sizes.group, **sizes.strip}
        operator = "DepthwiseDataGradient" if is_depthwise else "ConvDataGradient"
        return builder.op(operator, builder.input(0), builder.input(2), domain=POET_DOMAIN, **attributes)
    begins, ends, extra = window.transposed(sizes.image, sizes.pixels)
    return builder.op(
        "ConvTranspose",
        builder.input(0),
        builder.input(2),
        kernel_shape=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        pads=[*begins, *ends],
        output_padding=extra,
        group=sizes.group,
    )


def _weight_gradient(builder: LoweringBuilder, x: ir.Value, d_y: ir.Value, sizes: _Shapes) -> ir.Value:
    window = sizes.window
    if _is_depthwise(builder, sizes):
        return builder.op(
            "DepthwiseWeightGradient",
            d_y,
            x,
            domain=POET_DOMAIN,
            **_window_attributes(window),
        )
    if _has_kernel(builder, sizes):
        return builder.op(
            "ConvWeightGradient",
            d_y,
            x,
            domain=POET_DOMAIN,
            **_window_attributes(window),
            pixels=sizes.pixels,
            group=sizes.group,
            **sizes.strip,
            columns=sizes.columns,
        )
    write = {"taps": _by_taps, "columns": _by_columns, "kernel": _by_kernel}
    return write[builder.expansion or sizes.usual_expansion](builder, x, d_y, sizes)


def _window_attributes(window: Window) -> dict[str, tuple[int, ...]]:
    return {
        "kernel": window.kernel,
        "strides": window.strides,
        "dilations": window.dilations,
        "begins": window.begins,
    }


def _is_depthwise(builder: LoweringBuilder, sizes: _Shapes) -> bool:
    """Return whether the operator library has a kernel for a half of the gradient."""
    return sizes.group == sizes.channels > 1 and _has_images(builder, sizes)


def _filters_first(builder: LoweringBuilder, value: ir.Value, sizes: _Shapes, *, channels: int) -> ir.Value:
    """View or turn dY to [channels, all pixels of the batch]."""
    if sizes.batch > 1:
        value = builder.op("Transpose", value, perm=[1, 0, *range(2, 2 + len(sizes.pixels))])
    return builder.reshape(value, channels, sizes.samples)


def _by_taps(builder: LoweringBuilder, x: ir.Value, d_y: ir.Value, sizes: _Shapes) -> ir.Value:
    window, rank = sizes.window, len(sizes.image)
    if any((*window.begins, *window.ends)):
        x = builder.op("Pad", x, builder.ints(0, 0, *window.begins, 0, 0, *window.ends))
    if sizes.batch > 1:
        x = builder.op("Transpose", x, perm=[1, 0, *range(2, 2 + rank)])
    turned = _filters_first(builder, d_y, sizes, channels=sizes.filters)
    products = []
    for tap in np.ndindex(*window.kernel):
        starts = [place * dilation for place, dilation in zip(tap, window.dilations, strict=True)]
        ends = [
            start + (count - 1) * stride + 1
            for start, count, stride in zip(starts, sizes.pixels, window.strides, strict=True)
        ]
        axes, strides = builder.ints(*range(2, 2 + rank)), builder.ints(*window.strides)
        under = builder.op("Slice", x, builder.ints(*starts), builder.ints(*ends), axes, strides)
        products.append(_group_products(builder, turned, under, sizes, depth=sizes.channels // sizes.group))
    rows = builder.reshape(builder.op("Concat", *products, axis=0), sizes.taps, -1)
    interleaved = builder.op("Transpose", rows, perm=[1, 0])
    return builder.reshape(interleaved, *sizes.weight)


def _has_images(builder: LoweringBuilder, sizes: _Shapes) -> bool:
    """Return whether the operator library has kernels for images of so many dimensions."""
    return builder.kernels and len(sizes.window.kernel) == 2 and builder.type(0).dtype == FLOAT


def _has_kernel(builder: LoweringBuilder, sizes: _Shapes) -> bool:
    """Return whether the operator library has a kernel for the weight's gradient: one image's pixels need none."""
    return _has_images(builder, sizes) and not (sizes.window.is_point and sizes.batch == sizes.group == 1)


def _by_columns(builder: LoweringBuilder, x: ir.Value, d_y: ir.Value, sizes: _Shapes) -> ir.Value:
    columns = _columns(builder, x, sizes)
    turned = _filters_first(builder, d_y, sizes, channels=sizes.filters)
    return builder.reshape(_group_products(builder, turned, columns, sizes, depth=sizes.depth), *sizes.weight)


def _group_products(builder: LoweringBuilder, d_y: ir.Value, x: ir.Value, sizes: _Shapes, *, depth: int) -> ir.Value:
    """Return, for each group, its rows of dY [filters, all pixels] times the transpose of X [depth, all pixels]."""
    if sizes.group == 1:
        return builder.op("Gemm", d_y, builder.reshape(x, depth, sizes.samples), transB=1)
    left = builder.reshape(d_y, sizes.group, sizes.filters // sizes.group, sizes.samples)
    right = builder.reshape(x, sizes.group, depth, sizes.samples)
    return builder.op("FusedMatMul", left, right, domain=MICROSOFT, transB=1)


def _columns(builder: LoweringBuilder, x: ir.Value, sizes: _Shapes) -> ir.Value:
    """Return [channels, taps, pixels of the batch]: under every tap, the pixel of X at each window."""
    window, rank = sizes.window, len(sizes.image)
    if window.is_point:
        if sizes.batch > 1:
            return builder.op("Transpose", x, perm=[1, 0, *range(2, 2 + rank)])
        return x
    filters = np.eye(sizes.taps, dtype=builder.type(0).dtype.numpy()).reshape(sizes.taps, 1, *window.kernel)
    picked = builder.op(
        "Conv",
        builder.reshape(x, sizes.batch * sizes.channels, 1, *sizes.image),
        builder.constant(filters),
        kernel_shape=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        pads=[*window.begins, *window.ends],
    )
    if sizes.batch == 1:
        return picked
    pixels = math.prod(sizes.pixels)
    return builder.op(
        "Transpose", builder.reshape(picked, sizes.batch, sizes.channels * sizes.taps, pixels), perm=[1, 0, 2]
    )


def _by_kernel(builder: LoweringBuilder, x: ir.Value, d_y: ir.Value, sizes: _Shapes) -> ir.Value:
    """Slide dY over X: each channel of X is an image, each filter's dY a kernel, a step is a tap."""
    window, rank = sizes.window, len(sizes.image)
    images = builder.reshape(x, sizes.channels, 1, *sizes.image)
    kernels = builder.reshape(d_y, sizes.filters, 1, *sizes.pixels)
    reached = [
        extent + (count - 1) * stride - begin
        for extent, count, stride, begin in zip(window.extent, sizes.pixels, window.strides, window.begins, strict=True)
    ]
    if any(size > reach for size, reach in zip(sizes.image, reached, strict=True)):
        limits = [min(size, reach) for size, reach in zip(sizes.image, reached, strict=True)]
        axes = builder.ints(*range(2, 2 + rank))
        images = builder.op("Slice", images, builder.ints(*(0,) * rank), builder.ints(*limits), axes)
    ends = [max(0, reach - size) for size, reach in zip(sizes.image, reached, strict=True)]
    turned = builder.op(
        "Conv",
        images,
        kernels,
        kernel_shape=sizes.pixels,
        strides=window.dilations,
        dilations=window.strides,
        pads=[*window.begins, *ends],
    )
    return builder.op("Transpose", turned, perm=[1, 0, *range(2, 2 + rank)])


RULES: Rules = {"ConvGrad": _conv, "ConvTransposeGrad": _conv_transpose}


def weight_expansions(builder: LoweringBuilder) -> tuple[str, ...]:
    """Return the expansions of the weight's gradient of a builder's node; none if it computes no such."""
    if builder.node.op_type not in RULES or not builder.wants(1):
        return ()
    image, pixels = (1, 0) if builder.node.op_type == "ConvGrad" else (0, 1)
    sizes = _sizes(builder, builder.shape(image), builder.shape(pixels), builder.shape(2))
    return () if _is_depthwise(builder, sizes) or _has_kernel(builder, sizes) else sizes.expansions
