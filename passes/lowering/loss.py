"""Cross entropy and its gradient, with class weights, ignored labels and every reduction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.passes.lowering.builder import FLOAT, LoweringBuilder, Rules


@dataclass(frozen=True)
class _Labels:
    """What the labels of a batch mean.

    Attributes:
        classes: label of each sample; a label to be ignored became class 0.
        weights: of each sample, in the labels' shape: 0 for an ignored one; None where all weigh 1.
        count: of all samples.
    """

    classes: ir.Value
    weights: ir.Value | None
    count: int

    def places(self, builder: LoweringBuilder) -> ir.Value:
        """Return the classes as indices along the scores' axis of classes."""
        return builder.op("Unsqueeze", self.classes, builder.ints(1))


def _read_labels(
    builder: LoweringBuilder, labels: int, weights: int, ignored: ir.Value | None, dtype: ir.DataType
) -> _Labels:
    """Write the nodes that understand the labels.

    Args:
        builder: the node.
        labels: input that holds them.
        weights: optional input with a weight for each class.
        ignored: the label to be ignored, if any.
        dtype: of the scores.
    """
    label = builder.input(labels)
    kept: ir.Value | None = None
    if ignored is not None:
        kept = builder.op("Not", builder.op("Equal", label, ignored))
        label = builder.op("Mul", label, builder.op("Cast", kept, to=int(builder.type(labels).dtype)))
    weight: ir.Value | None = None
    if builder.has(weights):
        weight = builder.op("Gather", builder.input(weights), label)
    if kept is not None:
        keep = builder.op("Cast", kept, to=int(dtype))
        weight = keep if weight is None else builder.op("Mul", weight, keep)
    return _Labels(label, weight, int(np.prod(builder.shape(labels))))


def _ignored(builder: LoweringBuilder, index: int, labels: int) -> ir.Value | None:
    """Return the label to be ignored: an input of the internal operators, an attribute of ONNX's."""
    dtype = builder.type(labels).dtype
    if builder.node.op_type.startswith("SoftmaxCrossEntropyLossInternal"):
        if not builder.has(index):
            return None
        return builder.op("Cast", builder.reshape(builder.input(index)), to=int(dtype))
    ignored = builder.attributes.get("ignore_index")
    return None if ignored is None else builder.constant(np.array(int(ignored), dtype.numpy()))


def _divisor(builder: LoweringBuilder, labels: _Labels, like: int) -> ir.Value:
    """Return what the mean divides by: the samples' weights together, 1 where that is 0."""
    if labels.weights is None:
        return builder.number(labels.count, like)
    total = builder.op("ReduceSum", labels.weights, keepdims=0)
    return builder.op("Where", builder.op("Equal", total, builder.number(0, like)), builder.number(1, like), total)


def _reduction(builder: LoweringBuilder) -> str:
    return str(builder.attributes.get("reduction", "mean"))


def _cross_entropy(builder: LoweringBuilder) -> None:
    """SoftmaxCrossEntropyLoss(scores, labels, weights?) -> (loss, log_probabilities)."""
    labels = _read_labels(builder, 1, 2, _ignored(builder, 3, 1), builder.type(0).dtype)
    log_probabilities = builder.op("LogSoftmax", builder.input(0), axis=1)
    chosen = builder.op("GatherElements", log_probabilities, labels.places(builder), axis=1)
    loss = builder.op("Neg", builder.op("Squeeze", chosen, builder.ints(1)))
    if labels.weights is not None:
        loss = builder.op("Mul", loss, labels.weights)
    if _reduction(builder) != "none":
        loss = builder.op("ReduceSum", loss, keepdims=0)
    if _reduction(builder) == "mean":
        loss = builder.op("Div", loss, _divisor(builder, labels, 0))
    builder.give(0, loss)
    builder.give(1, log_probabilities)


def _cross_entropy_gradient(builder: LoweringBuilder) -> None:
    """SoftmaxCrossEntropyLossGrad(dY, log_probabilities, labels, weights?, bias?) -> dX.

    A row of dX is (probabilities - one at the label) times the sample's weight and dY, over the divisor of the mean.
    """
    internal = builder.node.op_type == "SoftmaxCrossEntropyLossInternalGrad"
    labels = _read_labels(builder, 2, 3, _ignored(builder, 4, 2), builder.type(1).dtype)
    scale = builder.input(0) if _reduction(builder) == "none" else builder.reshape(builder.input(0))
    if _reduction(builder) == "mean":
        scale = builder.op("Div", scale, _divisor(builder, labels, 1))
    if labels.weights is not None:
        scale = builder.op("Mul", scale, labels.weights)
    if builder.kernels and builder.type(1).dtype == FLOAT:  # both in place; ScatterElements copies the labels besides
        probabilities = builder.op("Exponentiate", builder.input(1), domain=POET_DOMAIN)
        d_x = builder.op("CrossEntropyGradient", probabilities, labels.classes, scale, domain=POET_DOMAIN)
    else:
        probabilities = builder.op("Exp", builder.input(1))
        chosen = builder.op("GatherElements", probabilities, labels.places(builder), axis=1)
        less_one = builder.op("Sub", chosen, builder.number(1, 1))
        difference = builder.op("ScatterElements", probabilities, labels.places(builder), less_one, axis=1)
        if labels.weights is not None or _reduction(builder) == "none":
            scale = builder.op("Unsqueeze", scale, builder.ints(1))
        d_x = builder.op("Mul", difference, scale)
    bias = 5 if internal else 4
    if builder.has(bias):
        d_x = builder.op("Add", d_x, builder.reshape(builder.input(bias), *builder.shape(1)))
    builder.give(0, d_x)


def _dense_cross_entropy(builder: LoweringBuilder) -> None:
    """SoftmaxCrossEntropy(scores, targets) -> (loss, log_probabilities); targets are a distribution for each row."""
    log_probabilities = builder.op("LogSoftmax", builder.input(0), axis=-1)
    total = builder.op("ReduceSum", builder.op("Mul", log_probabilities, builder.input(1)), keepdims=0)
    loss = builder.op("Neg", total)
    if _reduction(builder) == "mean":
        loss = builder.op("Div", loss, builder.number(int(np.prod(builder.shape(0)[:-1]))))
    builder.give(0, loss)
    builder.give(1, log_probabilities)


def _dense_cross_entropy_gradient(builder: LoweringBuilder) -> None:
    """SoftmaxCrossEntropyGrad(dY, log_probabilities, targets) -> dX."""
    scale = builder.reshape(builder.input(0))
    if _reduction(builder) == "mean":
        scale = builder.op("Div", scale, builder.number(int(np.prod(builder.shape(1)[:-1])), 1))
    difference = builder.op("Sub", builder.op("Exp", builder.input(1)), builder.input(2))
    builder.give(0, builder.op("Mul", difference, scale))


RULES: Rules = {
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "SoftmaxCrossEntropyLossInternal": _cross_entropy,
    "SoftmaxCrossEntropyLossGrad": _cross_entropy_gradient,
    "SoftmaxCrossEntropyLossInternalGrad": _cross_entropy_gradient,
    "SoftmaxCrossEntropy": _dense_cross_entropy,
    "SoftmaxCrossEntropyGrad": _dense_cross_entropy_gradient,
}
