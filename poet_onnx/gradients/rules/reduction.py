"""Gradients of reductions."""

from __future__ import annotations

import math

import numpy as np

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import Site


def reduced_axes(site: Site) -> list[int]:
    """Return the axes that a reduction sums over, counted from the front."""
    rank = len(site.shape(site.input(0)))
    listed = site.attributes.get("axes")
    axes = site.integers(1) if listed is None and site.has(1) else tuple(listed or ())
    if not axes:
        return [] if site.attributes.get("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


@gradient_of("ReduceMean", stops=(1,))
def mean(site: Site) -> None:
    """Divide the gradient among the elements that were averaged."""
    source, axes = site.input(0), reduced_axes(site)
    shape = site.shape(source)
    gradient = site.gradient()
    if not site.attributes.get("keepdims", 1) and len(axes) < len(shape):
        gradient = site.unsqueeze(gradient, axes)
    count = site.constant(np.array(math.prod(shape[axis] for axis in axes), np.int64))
    site.send(0, site.expand(site.own("Scale", gradient, count, scale_down=1), shape))


@gradient_of("ReduceSum", stops=(1,))
def total(site: Site) -> None:
    """Repeat the gradient for each element that was added."""
    axes, shape = reduced_axes(site), site.shape(site.input(0))
    gradient = site.gradient()
    if not site.attributes.get("keepdims", 1) and len(axes) < len(shape):
        gradient = site.unsqueeze(gradient, axes)
    site.send(0, site.expand(gradient, shape))
