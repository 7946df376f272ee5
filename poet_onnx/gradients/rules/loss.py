"""Gradients of losses that are operators."""

from __future__ import annotations

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import Site
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("SoftmaxCrossEntropyLoss", stops=(1, 2))
def softmax_cross_entropy(site: Site) -> None:
    """Differentiate with the logarithms of the probabilities that the forward node saved."""
    extra = [site.input(2)] if site.has(2) else []
    gradient = site.own(
        "SoftmaxCrossEntropyLossGrad",
        site.gradient(),
        site.output(1),
        site.input(1),
        *extra,
        **site.attributes,
    )
    site.send(0, gradient)


@gradient_of("SoftmaxCrossEntropyLossInternal", domain=MICROSOFT_DOMAIN, stops=(1, 2, 3))
def softmax_cross_entropy_internal(site: Site) -> None:
    """Differentiate ONNX Runtime's own form, whose index to ignore may be an input."""
    rest = [site.node.inputs[index] for index in range(1, len(site.node.inputs))]
    gradient = site.own(
        "SoftmaxCrossEntropyLossInternalGrad", site.gradient(), site.output(1), *rest, **site.attributes
    )
    site.send(0, gradient)
