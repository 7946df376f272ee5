"""Gradients of pooling."""

from __future__ import annotations

import math

import numpy as np

from poet_onnx.passes.lowering.site import FLOAT, POET, Rules, Site
from poet_onnx.passes.lowering.windows import Window, read_window


def _max_pool(site: Site) -> None:
    """MaxPoolGrad(dY, indices): dY goes where the maxima were; indices count through the whole of X."""
    shape = site.output_shape()
    if site.kernels and site.type(0).dtype == FLOAT:  # ScatterElements takes a copy of the indices besides
        site.give(0, site.op("MaxPoolGradient", site.input(0), site.input(1), shape=shape, domain=POET))
        return
    window = read_window(site, shape[2:], site.shape(0)[2:])
    apart = all(stride >= size for stride, size in zip(window.strides, window.extent, strict=True))
    total = math.prod(shape)
    places, d_y = site.reshape(site.input(1), -1), site.reshape(site.input(0), -1)
    zeros = site.zeros((total,), site.type(0).dtype)
    reduction = "none" if apart else "add"
    scattered = site.op("ScatterElements", zeros, places, d_y, axis=0, reduction=reduction)
    site.give(0, site.reshape(scattered, *shape))


def _average_pool(site: Site) -> None:
    """AveragePoolGrad(dY): every element of X gets the shares of the windows that it lies in."""
    shape = site.output_shape()
    window = read_window(site, shape[2:], site.shape(0)[2:])
    batch, pixels = math.prod(shape[:2]), site.shape(0)[2:]
    dtype = site.type(0).dtype.numpy()
    shares = (1 / _counts(site, window, shape[2:], pixels)).astype(dtype)
    d_y = site.op("Mul", site.input(0), site.constant(shares))
    if window.tiles(shape[2:], pixels):
        between = [size for pair in zip(pixels, (1,) * len(pixels), strict=True) for size in pair]
        spread = [size for pair in zip(pixels, window.kernel, strict=True) for size in pair]
        d_y = site.op("Expand", site.reshape(d_y, batch, *between), site.ints(batch, *spread))
        site.give(0, site.reshape(d_y, *shape))
        return
    ones = site.constant(np.ones((1, 1, *window.kernel), dtype))
    d_y = site.reshape(d_y, batch, 1, *pixels)
    begins, ends, extra = window.transposed(shape[2:], pixels)
    d_x = site.op(
        "ConvTranspose",
        d_y,
        ones,
        kernel_shape=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        pads=[*begins, *ends],
        output_padding=extra,
    )
    site.give(0, site.reshape(d_x, *shape))


def _counts(
    site: Site, window: Window, image: tuple[int, ...], pixels: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return how many elements each window's mean is of."""
    if site.attributes.get("count_include_pad", 0):
        return np.full((1,) * len(pixels), float(math.prod(window.kernel)))
    counts = np.ones((1,) * len(pixels))
    for axis, count in enumerate(pixels):
        first = np.arange(count) * window.strides[axis] - window.begins[axis]
        taps = first[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        inside = ((taps >= 0) & (taps < image[axis])).sum(1).astype(np.float64)
        counts = counts * inside.reshape([-1 if place == axis else 1 for place in range(len(pixels))])
    return counts


RULES: Rules = {"MaxPoolGrad": _max_pool, "AveragePoolGrad": _average_pool}
