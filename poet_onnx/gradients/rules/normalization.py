"""Gradients of normalizations; those of operators that are functions of ONNX come from their bodies."""

from __future__ import annotations

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.graph.operators.normalization import RMS_NORMALIZE


@gradient_of("BatchNormInternal", domain=MICROSOFT_DOMAIN, stops=(3, 4))
def batch_normalization(builder: GradientBuilder) -> None:
    """Differentiate through the batch's own statistics, which the forward node saved."""
    gradients = builder.ops(
        "BatchNormalizationGrad",
        [builder.gradient(), builder.input(0), builder.input(1), builder.output(3), builder.output(4)],
        3,
        domain=MICROSOFT_DOMAIN,
        epsilon=builder.attributes.get("epsilon", 1e-5),
    )
    for index, gradient in enumerate(gradients):
        builder.send(index, gradient)


@gradient_of("BatchNormalization")
def frozen_batch_normalization(builder: GradientBuilder) -> None:
    """Differentiate a normalization by given statistics: running ones, or what the model computes of the batch."""
    if builder.attributes.get("training_mode", 0):
        raise NoGradientError("in training mode it must be prepared first")
    shape = builder.shape(builder.input(0))
    column = (-1, *(1,) * (len(shape) - 2))
    axes = [axis for axis in range(len(shape)) if axis != 1]
    statistics = builder.input(4)
    shifted = builder.op("Add", statistics, builder.number(builder.attributes.get("epsilon", 1e-5), statistics))
    deviation = builder.op("Sqrt", shifted)
    gradient = builder.gradient()
    if builder.wants(0):
        slope = builder.reshape(builder.op("Div", builder.input(1), deviation), column)
        builder.send(0, builder.op("Mul", gradient, slope))
    if builder.wants(1):
        centred = builder.op("Sub", builder.input(0), builder.reshape(builder.input(3), column))
        total = builder.reduce_sum(builder.op("Mul", gradient, centred), axes, keep=False)
        builder.send(1, builder.op("Div", total, deviation))
    if builder.wants(2):
        builder.send(2, builder.reduce_sum(gradient, axes, keep=False))
    if builder.wants(3):
        slope = builder.op("Div", builder.input(1), deviation)
        builder.send(3, builder.op("Neg", builder.op("Mul", builder.reduce_sum(gradient, axes, keep=False), slope)))
    if builder.wants(4):
        centred = builder.op("Sub", builder.input(0), builder.reshape(builder.input(3), column))
        total = builder.reduce_sum(builder.op("Mul", gradient, centred), axes, keep=False)
        slope = builder.op("Div", builder.op("Div", builder.input(1), deviation), shifted)
        builder.send(4, builder.op("Mul", builder.op("Mul", total, slope), builder.number(-0.5, statistics)))


@gradient_of("LayerNormalization")
def layer_normalization(builder: GradientBuilder) -> None:
    """Differentiate with the mean and the inverse deviation that the forward node saved."""
    gradients = builder.ops(
        "LayerNormalizationGrad",
        [builder.gradient(), builder.input(0), builder.input(1), builder.output(1), builder.output(2)],
        3,
        domain=MICROSOFT_DOMAIN,
        **{name: builder.attributes[name] for name in ("axis", "epsilon", "stash_type") if name in builder.attributes},
    )
    for index, gradient in enumerate(gradients):
        builder.send(index, gradient)


@gradient_of(RMS_NORMALIZE, domain=POET_DOMAIN)
def rms_normalization(builder: GradientBuilder) -> None:
    """Differentiate with the inverse root mean square that the forward node saved."""
    gradient, x, inverse = builder.gradient(), builder.input(0), builder.output(1)
    if builder.wants(1):
        builder.send(1, builder.op("RmsNormalizeScaleGradient", gradient, x, inverse, domain=POET_DOMAIN))
    if builder.wants(0):
        made = builder.op("RmsNormalizeGradient", gradient, x, builder.input(1), inverse, domain=POET_DOMAIN)
        builder.send(0, made)
