"""Gradients of pooling."""

from __future__ import annotations

import math

import numpy as np

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.passes.lowering.pooling import shares_of, sum_windows
from poet_onnx.passes.lowering.windows import read_window

_DIMENSIONS = 3
"""Of an image from which on AveragePoolGrad is wrong."""


@gradient_of("MaxPool")
def max_pool(builder: GradientBuilder) -> None:
    """Send the gradient to where the forward node found each maximum."""
    if builder.attributes.get("storage_order"):
        raise NoGradientError("its indices are column-major; export it with storage_order 0")
    builder.send(0, builder.op("MaxPoolGrad", builder.gradient(), builder.output(1), **builder.attributes))


@gradient_of("AveragePool")
def average_pool(builder: GradientBuilder) -> None:
    """Share the gradient among each window's elements.

    That is an AveragePoolGrad where the kernel of onnxruntime-training 1.19 is right: it knows no dilations and no
    third dimension.
    """
    attributes = builder.attributes
    image, pixels = (builder.shape(value)[2:] for value in (builder.input(0), builder.output()))
    if len(image) < _DIMENSIONS and set(attributes.get("dilations") or (1,)) == {1}:
        builder.send(0, builder.op("AveragePoolGrad", builder.gradient(), **attributes))
        return
    window, dtype = read_window(builder, image, pixels), builder.type(builder.output()).dtype
    d_y = builder.op("Mul", builder.gradient(), shares_of(builder, window, image, pixels, dtype))
    builder.send(0, sum_windows(builder, d_y, window, (builder.shape(builder.input(0)), pixels), dtype))


@gradient_of("GlobalAveragePool")
def global_average_pool(builder: GradientBuilder) -> None:
    """Divide the gradient among all elements of a channel."""
    source = builder.input(0)
    shape = builder.shape(source)
    count = np.array([math.prod(shape[2:])], builder.type(source).dtype.numpy())
    scaled = builder.ops(
        "Scale", [builder.gradient(), builder.constant(count)], 1, domain=MICROSOFT_DOMAIN, scale_down=1
    )[0]
    builder.send(0, builder.expand(scaled, shape))
