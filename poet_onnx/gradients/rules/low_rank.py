"""The gradient of a low-rank adapter beside a frozen product."""

from __future__ import annotations

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import low_rank


@gradient_of(low_rank.ADD, domain=POET_DOMAIN)
def add_low_rank(builder: GradientBuilder) -> None:
    """Let one node make all gradients; that of the sum is that of the product beside it, too."""
    gradient, low = builder.gradient(), builder.output(1)
    x, first, second, scale = (builder.input(index) for index in range(1, 5))
    if builder.wants(1):
        inputs = [gradient, x, low, first, second, scale]
        by_x, by_first, by_second = builder.ops(low_rank.GRADIENT, inputs, 3, domain=POET_DOMAIN, added=0)
        builder.send(1, by_x)
    else:
        inputs = [gradient, x, low, second, scale]
        by_first, by_second = builder.ops(low_rank.WEIGHT_GRADIENT, inputs, 2, domain=POET_DOMAIN)
    builder.send(2, by_first)
    builder.send(3, by_second)
    builder.send(0, gradient)
