"""Gradients of pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.operators.windows import taps_within
from poet_onnx.passes.lowering.builder import FLOAT, LoweringBuilder, Rules
from poet_onnx.passes.lowering.windows import Window, read_window
from poet_onnx.passes.node_builder import NodeBuilder
from poet_onnx.passes.views import replace_node

_MOST_DIMENSIONS, _MOST_TAPS = 3, 255
"""Of a window whose maximum a node of ours finds."""


def _max_pool(builder: LoweringBuilder) -> None:
    """MaxPoolGrad(dY, indices): dY goes where the maxima were; indices count through the whole of X.

    Where nobody else asks for them, the forward node is one of ours, and tells of the taps with a byte for each window.
    """
    shape = builder.output_shape()
    window = read_window(builder, shape[2:], builder.shape(0)[2:])
    taps = _taps(builder, window) if builder.kernels and builder.type(0).dtype == FLOAT else None
    if taps is not None:
        how: dict[str, Any] = {"image": shape[2:], **window.attributes}
        builder.give(0, builder.op("MaxPoolGradient", builder.input(0), taps, domain=POET_DOMAIN, **how))
        return
    apart = all(stride >= size for stride, size in zip(window.strides, window.extent, strict=True))
    total = math.prod(shape)
    places, d_y = builder.reshape(builder.input(1), -1), builder.reshape(builder.input(0), -1)
    zeros = builder.zeros((total,), builder.type(0).dtype)
    reduction = "none" if apart else "add"
    scattered = builder.op("ScatterElements", zeros, places, d_y, axis=0, reduction=reduction)
    builder.give(0, builder.reshape(scattered, *shape))


def _taps(builder: LoweringBuilder, window: Window) -> ir.Value | None:
    """Return the taps at which the forward node finds its maxima; None where its places must be what they are."""
    places = builder.input(1)
    pool = places.producer()
    if pool is None or len(window.kernel) > _MOST_DIMENSIONS or math.prod(window.kernel) > _MOST_TAPS:
        return None
    if (pool.domain, pool.op_type) == (POET_DOMAIN, "MaxPoolTaps"):
        return places
    others = [node for node, _ in places.uses() if node.op_type != "MaxPoolGrad"]
    is_pool = pool.op_type == "MaxPool" and pool.domain in ONNX_DOMAINS
    how = plain_attributes(pool)
    if others or places.is_graph_output() or not is_pool or how.get("storage_order", 0):
        return None
    if how != plain_attributes(builder.node):  # then the window that was read is another one
        return None
    lists = {**window.attributes, "pixels": builder.shape(0)[2:]}
    places.type = ir.TensorType(ir.DataType.UINT8)
    attributes = [ir.AttrInt64s(name, numbers) for name, numbers in lists.items()]
    replace_node(pool, "MaxPoolTaps", pool.inputs, attributes, pool.outputs)
    return builder.input(1)


def _average_pool(builder: LoweringBuilder) -> None:
    """AveragePoolGrad(dY): every element of X gets the shares of the windows that it lies in."""
    shape = builder.output_shape()
    batch, pixels = math.prod(shape[:2]), builder.shape(0)[2:]
    window = read_window(builder, shape[2:], pixels)
    d_y = builder.op("Mul", builder.input(0), shares_of(builder, window, shape[2:], pixels, builder.type(0).dtype))
    if window.tiles(shape[2:], pixels):
        between = [size for pair in zip(pixels, (1,) * len(pixels), strict=True) for size in pair]
        spread = [size for pair in zip(pixels, window.kernel, strict=True) for size in pair]
        d_y = builder.op("Expand", builder.reshape(d_y, batch, *between), builder.ints(batch, *spread))
        builder.give(0, builder.reshape(d_y, *shape))
        return
    builder.give(0, sum_windows(builder, d_y, window, (shape, pixels), builder.type(0).dtype))


def sum_windows(
    builder: NodeBuilder, d_y: ir.Value, window: Window, sizes: tuple[Sequence[int], Sequence[int]], dtype: ir.DataType
) -> ir.Value:
    """Return a tensor each of whose elements is the sum of d_y over the windows that it lies in.

    Args:
        builder: writes the nodes.
        d_y: a number for each window of each channel.
        window: slides over the image.
        sizes: those of the result, which has images and channels first, and the windows in each dimension.
        dtype: of d_y.
    """
    shape, pixels = sizes
    begins, ends, extra = window.transposed(shape[2:], pixels)
    d_x = builder.op(
        "ConvTranspose",
        builder.op("Reshape", d_y, builder.ints(math.prod(shape[:2]), 1, *pixels)),
        builder.constant(np.ones((1, 1, *window.kernel), dtype.numpy())),
        kernel_shape=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        pads=[*begins, *ends],
        output_padding=extra,
    )
    return builder.op("Reshape", d_x, builder.ints(*shape))


def shares_of(
    builder: NodeBuilder, window: Window, image: Sequence[int], pixels: Sequence[int], dtype: ir.DataType
) -> ir.Value:
    """Return one divided by the number of elements that each window's mean is of, by the attributes of an average."""
    return builder.constant((1 / _counts(builder, window, image, pixels)).astype(dtype.numpy()))


def _counts(
    builder: NodeBuilder, window: Window, image: Sequence[int], pixels: Sequence[int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return how many elements each window's mean is of."""
    includes = bool(builder.attributes.get("count_include_pad", 0))
    if includes and not builder.attributes.get("ceil_mode", 0):
        return np.full((1,) * len(pixels), float(math.prod(window.kernel)))
    # With ceil_mode a last window may reach behind the padding, and what is there never counts.
    padding = zip(window.begins, window.padded, strict=True)
    counts = np.ones((1,) * len(pixels))
    for axis, (count, (before, behind)) in enumerate(zip(pixels, padding, strict=True)):
        span = (-before, image[axis] + behind) if includes else (0, image[axis])
        starts = np.arange(count) * window.strides[axis] - before
        inside = taps_within(starts, window.kernel[axis], window.dilations[axis], span).astype(np.float64)
        counts = counts * inside.reshape([-1 if place == axis else 1 for place in range(len(pixels))])
    return counts


RULES: Rules = {"MaxPoolGrad": _max_pool, "AveragePoolGrad": _average_pool}
