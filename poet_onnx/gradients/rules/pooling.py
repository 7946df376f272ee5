"""Gradients of pooling."""

from __future__ import annotations

import math

import numpy as np

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("MaxPool")
def max_pool(builder: GradientBuilder) -> None:
    """Send the gradient to where the forward node found each maximum."""
    if builder.attributes.get("storage_order"):
        raise NoGradientError("its indices are column-major; export it with storage_order 0")
    builder.send(0, builder.op("MaxPoolGrad", builder.gradient(), builder.output(1), **builder.attributes))


@gradient_of("AveragePool")
def average_pool(builder: GradientBuilder) -> None:
    """Share the gradient among each window's elements."""
    builder.send(0, builder.op("AveragePoolGrad", builder.gradient(), **builder.attributes))


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
