"""Gradients of convolutions."""

from __future__ import annotations

from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("Conv")
def convolution(builder: GradientBuilder) -> None:
    """Write one node for input, weight and bias; a gradient that nobody wants is left out and not computed."""
    count = len(builder.node.inputs)
    gradients = builder.ops(
        "ConvGrad",
        [builder.gradient(), builder.input(0), builder.input(1)],
        [builder.wants(index) for index in range(count)],
        domain=MICROSOFT_DOMAIN,
        **builder.attributes,
    )
    for index, gradient in enumerate(gradients):
        builder.send(index, gradient)
