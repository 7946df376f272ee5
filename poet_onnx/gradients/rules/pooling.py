"""Gradients of pooling."""

from __future__ import annotations

import math

import numpy as np

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.passes.lowering.pooling import shares_of, sum_windows
from poet_onnx.passes.lowering.runnable import shares_averages
from poet_onnx.passes.lowering.windows import read_window


@gradient_of("MaxPool")
def max_pool(builder: GradientBuilder) -> None:
    """Send the gradient to where the forward node found each maximum."""
    if builder.attributes.get("storage_order"):
        raise NoGradientError("its indices are column-major; export it with storage_order 0")
    builder.send(0, builder.op("MaxPoolGrad", builder.gradient(), builder.output(1), **builder.attributes))


@gradient_of("AveragePool")
def average_pool(builder: GradientBuilder) -> None:
    """Share the gradient among each window's elements.

    That is an AveragePoolGrad where the kernel of onnxruntime-training 1.19 is right.
    """
    attributes = builder.attributes
    shape, pixels = builder.shape(builder.input(0)), builder.shape(builder.output())[2:]
    if shares_averages(len(shape), attributes.get("dilations") or ()):
        builder.send(0, builder.op("AveragePoolGrad", builder.gradient(), **attributes))
        return
    window, dtype = read_window(builder, shape[2:], pixels), builder.type(builder.output()).dtype
    d_y = builder.op("Mul", builder.gradient(), shares_of(builder, window, shape[2:], pixels, dtype))
    builder.send(0, sum_windows(builder, d_y, window, (shape, pixels), dtype))


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
