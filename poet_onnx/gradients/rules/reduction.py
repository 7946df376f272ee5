"""Gradients of means, sums and running sums."""

from __future__ import annotations

import math

import numpy as np

from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.registry import gradient_of


def reduced_axes(builder: GradientBuilder) -> list[int]:
    """Return the axes that a reduction sums over, counted from the front."""
    rank = len(builder.shape(builder.input(0)))
    listed = builder.attributes.get("axes")
    axes = builder.integers(1) if listed is None and builder.has(1) else tuple(listed or ())
    if not axes:
        return [] if builder.attributes.get("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


@gradient_of("ReduceMean", stops=(1,))
def mean(builder: GradientBuilder) -> None:
    """Divide the gradient among the elements that were averaged."""
    source, axes = builder.input(0), reduced_axes(builder)
    shape = builder.shape(source)
    gradient = builder.gradient()
    if not builder.attributes.get("keepdims", 1) and len(axes) < len(shape):
        gradient = builder.unsqueeze(gradient, axes)
    count = builder.constant(np.array(math.prod(shape[axis] for axis in axes), np.int64))
    builder.send(0, builder.expand(builder.own("Scale", gradient, count, scale_down=1), shape))


@gradient_of("ReduceSum", stops=(1,))
def total(builder: GradientBuilder) -> None:
    """Repeat the gradient for each element that was added."""
    axes, shape = reduced_axes(builder), builder.shape(builder.input(0))
    gradient = builder.gradient()
    if not builder.attributes.get("keepdims", 1) and len(axes) < len(shape):
        gradient = builder.unsqueeze(gradient, axes)
    builder.send(0, builder.expand(gradient, shape))


@gradient_of("CumSum", stops=(1,))
def running_sum(builder: GradientBuilder) -> None:
    """Sum the gradient from the other end."""
    exclusive, reverse = (builder.attributes.get(name, 0) for name in ("exclusive", "reverse"))
    total = builder.op("CumSum", builder.gradient(), builder.input(1), exclusive=exclusive, reverse=1 - reverse)
    builder.send(0, total)
