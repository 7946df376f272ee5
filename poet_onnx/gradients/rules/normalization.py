"""Gradients of normalizations; those of operators that are functions of ONNX come from their bodies."""

from __future__ import annotations

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import NoGradientError, Site
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("BatchNormInternal", domain=MICROSOFT_DOMAIN, stops=(3, 4))
def batch_normalization(site: Site) -> None:
    """Differentiate through the batch's own statistics, which the forward node saved."""
    gradients = site.ops(
        "BatchNormalizationGrad",
        [site.gradient(), site.input(0), site.input(1), site.output(3), site.output(4)],
        3,
        domain=MICROSOFT_DOMAIN,
        epsilon=site.attributes.get("epsilon", 1e-5),
    )
    for index, gradient in enumerate(gradients):
        site.send(index, gradient)


@gradient_of("BatchNormalization")
def frozen_batch_normalization(site: Site) -> None:
    """Differentiate a normalization by given statistics: running ones, or what the model computes of the batch."""
    if site.attributes.get("training_mode", 0):
        raise NoGradientError("in training mode it must be prepared first")
    shape = site.shape(site.input(0))
    column = (-1, *(1,) * (len(shape) - 2))
    axes = [axis for axis in range(len(shape)) if axis != 1]
    statistics = site.input(4)
    shifted = site.op("Add", statistics, site.number(site.attributes.get("epsilon", 1e-5), statistics))
    deviation = site.op("Sqrt", shifted)
    gradient = site.gradient()
    if site.wants(0):
        slope = site.reshape(site.op("Div", site.input(1), deviation), column)
        site.send(0, site.op("Mul", gradient, slope))
    if site.wants(1):
        centred = site.op("Sub", site.input(0), site.reshape(site.input(3), column))
        total = site.reduce_sum(site.op("Mul", gradient, centred), axes, keep=False)
        site.send(1, site.op("Div", total, deviation))
    if site.wants(2):
        site.send(2, site.reduce_sum(gradient, axes, keep=False))
    if site.wants(3):
        slope = site.op("Div", site.input(1), deviation)
        site.send(3, site.op("Neg", site.op("Mul", site.reduce_sum(gradient, axes, keep=False), slope)))
    if site.wants(4):
        centred = site.op("Sub", site.input(0), site.reshape(site.input(3), column))
        total = site.reduce_sum(site.op("Mul", gradient, centred), axes, keep=False)
        slope = site.op("Div", site.op("Div", site.input(1), deviation), shifted)
        site.send(4, site.op("Mul", site.op("Mul", total, slope), site.number(-0.5, statistics)))


@gradient_of("LayerNormalization")
def layer_normalization(site: Site) -> None:
    """Differentiate with the mean and the inverse deviation that the forward node saved."""
    gradients = site.ops(
        "LayerNormalizationGrad",
        [site.gradient(), site.input(0), site.input(1), site.output(1), site.output(2)],
        3,
        domain=MICROSOFT_DOMAIN,
        **{name: site.attributes[name] for name in ("axis", "epsilon", "stash_type") if name in site.attributes},
    )
    for index, gradient in enumerate(gradients):
        site.send(index, gradient)
