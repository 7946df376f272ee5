"""Gradients of convolutions: the data's half is a transposed convolution, the weight's half a matrix product.

The weight's gradient is dY (output channels x pixels) times the columns of X (input channels and taps x pixels),
transposed. Plain nodes make all columns at once, by a convolution whose filters each pick one tap.

The operator library makes either half in one node: of a strip of windows at a time, some rows of one image or several
small images. So no image is padded or turned, and what a half takes beside its result is about as large as X, where all
columns are as large as X for each tap.

A depthwise convolution's gradients have operators of their own. Of the weight: the columns of one channel fit into a
cache, those of all channels, which plain nodes need, do not. Of the data: the runtime's kernel runs on one thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.windows import rows_of
from poet_onnx.passes.lowering.builder import FLOAT, MICROSOFT, LoweringBuilder, Rules
from poet_onnx.passes.lowering.windows import Window, read_window

_LEAST_WINDOWS, _MANY_WINDOWS = 256, 1024  # of a strip: enough for products of matrices, and for any to be quick
_CACHED_FLOATS = 1 << 18  # of a strip's columns; with more windows than many, they are no more than that
_LEAST_COLUMNS = 16  # that a product has of the weight, and a multiple of them: those of a vector, or several
_LEAST_PRODUCT = 1 << 18  # floats that a part of the weight's columns may have: not so few that products are narrow
_LEAST_FLOATS = 1 << 15  # of a strip's columns, even where X is smaller
_MOST_DIMENSIONS = 3  # of images that the library has kernels for

# How windows slide across a line, where it is an image of one row.
_ROW = {"image": 1, "kernel": 1, "strides": 1, "dilations": 1, "begins": 0}


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
        height, width = rows_of(self.pixels)
        most = max(_MANY_WINDOWS, _CACHED_FLOATS // self.depth)
        wanted = min(max(self._floats // self.depth, _LEAST_WINDOWS), most)
        if self.window.is_point or height * width <= wanted:
            return {"images": _evenly(self.batch, -(-_LEAST_WINDOWS // (height * width))), "rows": height}
        return {"images": 1, "rows": _evenly(height, max(1, wanted // width))}

    @property
    def columns(self) -> int:
        """Return how many rows of a strip's columns the weight's kernel makes at a time."""
        strip = self.strip
        windows = strip["images"] * strip["rows"] * rows_of(self.pixels)[1]
        filters = self.filters // self.group
        most = max(min(self._floats // windows, max(self._floats, _LEAST_PRODUCT) // filters), _LEAST_COLUMNS)
        if self.depth * windows <= max(self._floats, most * (windows + filters)):
            return self.depth  # what they make needs no copy then
        return math.ceil(_evenly(self.depth, most) / _LEAST_COLUMNS) * _LEAST_COLUMNS

    @property
    def _floats(self) -> int:
        """Return what columns may take: as much as a group's channels."""
        return max(self.batch * self.channels // self.group * math.prod(self.image), _LEAST_FLOATS)


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
    if _has_depthwise(builder, sizes) and sizes.filters == sizes.channels:
        attributes = {"image": sizes.image, **window.attributes}
        filters = builder.input(2), sizes.weight
        return _depthwise(builder, "DepthwiseDataGradient", builder.input(0), filters, sizes, **attributes)
    if _has_kernels(builder, sizes):
        return builder.op(
            "ConvDataGradient",
            builder.input(0),
            builder.input(2),
            domain=POET_DOMAIN,
            image=sizes.image,
            **window.attributes,
            pixels=sizes.pixels,
            group=sizes.group,
            **sizes.strip,
        )
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
    if _has_depthwise(builder, sizes):
        images = x, (sizes.batch, sizes.channels, *sizes.image)
        return _depthwise(builder, "DepthwiseWeightGradient", d_y, images, sizes, **window.attributes)
    is_product = window.is_point and sizes.batch == sizes.group == 1
    if _has_kernels(builder, sizes) and not is_product:
        return builder.op(
            "ConvWeightGradient",
            d_y,
            x,
            domain=POET_DOMAIN,
            **window.attributes,
            pixels=sizes.pixels,
            group=sizes.group,
            **sizes.strip,
            columns=sizes.columns,
        )
    columns = _columns(builder, x, sizes)
    turned = _filters_first(builder, d_y, sizes)
    return builder.reshape(_group_products(builder, turned, columns, sizes), *sizes.weight)


def _depthwise(
    builder: LoweringBuilder,
    operator: str,
    d_y: ir.Value,
    other: tuple[ir.Value, tuple[int, ...]],
    sizes: _Shapes,
    **attributes: tuple[int, ...],
) -> ir.Value:
    """Write a node of dY and another tensor, which comes with its shape; lines are images of one row."""
    value, shape = other
    if len(sizes.image) == 1:
        d_y = builder.reshape(d_y, sizes.batch, sizes.filters, 1, *sizes.pixels)
        value = builder.reshape(value, *shape[:2], 1, *shape[2:])
        attributes = {name: (_ROW[name], *numbers) for name, numbers in attributes.items()}
    made = builder.op(operator, d_y, value, domain=POET_DOMAIN, **attributes)
    if len(sizes.image) == 2:
        return made
    is_data = "image" in attributes
    return builder.reshape(made, *((sizes.batch, sizes.channels, *sizes.image) if is_data else sizes.weight))


def _has_kernels(builder: LoweringBuilder, sizes: _Shapes) -> bool:
    """Return whether the operator library has kernels for a convolution's gradients."""
    return builder.kernels and len(sizes.image) <= _MOST_DIMENSIONS and builder.type(0).dtype == FLOAT


def _has_depthwise(builder: LoweringBuilder, sizes: _Shapes) -> bool:
    """Return whether it has those for filters that every channel has for itself."""
    return sizes.group == sizes.channels > 1 and len(sizes.image) <= 2 and _has_kernels(builder, sizes)


def _filters_first(builder: LoweringBuilder, value: ir.Value, sizes: _Shapes) -> ir.Value:
    """View or turn dY to [filters, all pixels of the batch]."""
    if sizes.batch > 1:
        value = builder.op("Transpose", value, perm=[1, 0, *range(2, 2 + len(sizes.pixels))])
    return builder.reshape(value, sizes.filters, sizes.samples)


def _group_products(builder: LoweringBuilder, d_y: ir.Value, x: ir.Value, sizes: _Shapes) -> ir.Value:
    """Return, for each group, its rows of dY [filters, all pixels] times the transpose of X [depth, all pixels]."""
    if sizes.group == 1:
        return builder.op("Gemm", d_y, builder.reshape(x, sizes.depth, sizes.samples), transB=1)
    left = builder.reshape(d_y, sizes.group, sizes.filters // sizes.group, sizes.samples)
    right = builder.reshape(x, sizes.group, sizes.depth, sizes.samples)
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


RULES: Rules = {"ConvGrad": _conv, "ConvTransposeGrad": _conv_transpose}
