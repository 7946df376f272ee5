"""Gradients of pooling."""

from __future__ import annotations

import math

import numpy as np

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import NoGradientError, Site
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("MaxPool")
def max_pool(site: Site) -> None:
    """Send the gradient to where the forward node found each maximum."""
    if site.attributes.get("storage_order"):
        raise NoGradientError("its indices are column-major; export it with storage_order 0")
    site.send(0, site.op("MaxPoolGrad", site.gradient(), site.output(1), **site.attributes))


@gradient_of("AveragePool")
def average_pool(site: Site) -> None:
    """Share the gradient among each window's elements."""
    site.send(0, site.op("AveragePoolGrad", site.gradient(), **site.attributes))


@gradient_of("GlobalAveragePool")
def global_average_pool(site: Site) -> None:
    """Divide the gradient among all elements of a channel."""
    source = site.input(0)
    shape = site.shape(source)
    count = np.array([math.prod(shape[2:])], site.type(source).dtype.numpy())
    scaled = site.ops("Scale", [site.gradient(), site.constant(count)], 1, domain=MICROSOFT_DOMAIN, scale_down=1)[0]
    site.send(0, site.expand(scaled, shape))
