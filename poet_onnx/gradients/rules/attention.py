"""Gradients of attention."""

from __future__ import annotations

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators.attention import ATTEND, GRADIENT, MASK, NUMBERS


@gradient_of(ATTEND, domain=POET_DOMAIN, stops=(NUMBERS, MASK))
def attend(builder: GradientBuilder) -> None:
    """Make the scores again, and the gradients of all three operands in one pass over them."""
    inputs = [builder.gradient(), *builder.node.inputs]
    made = builder.ops(GRADIENT, inputs, 3, domain=POET_DOMAIN, **builder.attributes)
    for index, gradient in enumerate(made):
        builder.send(index, gradient)
