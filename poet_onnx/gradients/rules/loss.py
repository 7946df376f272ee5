"""Gradients of losses that are operators."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, vocabulary


@gradient_of("SoftmaxCrossEntropyLoss", stops=(1,), unknown=(2,))
def softmax_cross_entropy(builder: GradientBuilder) -> None:
    """Differentiate with the logarithms of the probabilities that the forward node saved."""
    extra = [builder.input(2)] if builder.has(2) else []
    gradient = builder.own(
        "SoftmaxCrossEntropyLossGrad",
        builder.gradient(),
        builder.output(1),
        builder.input(1),
        *extra,
        **builder.attributes,
    )
    builder.send(0, gradient)


@gradient_of("SoftmaxCrossEntropyLossInternal", domain=MICROSOFT_DOMAIN, stops=(1, 3), unknown=(2,))
def softmax_cross_entropy_internal(builder: GradientBuilder) -> None:
    """Differentiate ONNX Runtime's own form, whose index to ignore may be an input."""
    given = (builder.gradient(), builder.output(1), *builder.node.inputs[1:])
    gradient = builder.own("SoftmaxCrossEntropyLossInternalGrad", *given, **builder.attributes)
    builder.send(0, gradient)


@gradient_of(vocabulary.WITH_GRADIENT, domain=POET_DOMAIN, stops=(vocabulary.LABELS,))
def vocabulary_loss(builder: GradientBuilder) -> None:
    """Take the gradient that the node has made, times that of the loss where this is not 1."""
    gradient = builder.output(1)
    builder.send(0, gradient if _is_one(builder.gradient()) else builder.op("Mul", gradient, builder.gradient()))


def _is_one(value: ir.Value) -> bool:
    return value.const_value is not None and bool((value.const_value.numpy() == 1).all())
