"""Gradients of convolutions."""

from __future__ import annotations

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import Site
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("Conv")
def convolution(site: Site) -> None:
    """Write one node for input, weight and bias; a gradient that nobody wants is left out and not computed."""
    count = len(site.node.inputs)
    gradients = site.ops(
        "ConvGrad",
        [site.gradient(), site.input(0), site.input(1)],
        [site.wants(index) for index in range(count)],
        domain=MICROSOFT_DOMAIN,
        **site.attributes,
    )
    for index, gradient in enumerate(gradients):
        site.send(index, gradient)
