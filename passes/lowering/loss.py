"""Cross entropy and its gradient, with class weights, ignored labels and every reduction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from poet_onnx.passes.lowering.site import FLOAT, POET, Rules, Site


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

    def places(self, site: Site) -> ir.Value:
        """Return the classes as indices along the scores' axis of classes."""
        return site.op("Unsqueeze", self.classes, site.ints(1))


def _read_labels(site: Site, labels: int, weights: int, ignored: ir.Value | None, dtype: ir.DataType) -> _Labels:
    """Write the nodes that understand the labels.

    Args:
        site: the node.
        labels: input that holds them.
        weights: optional input with a weight for each class.
        ignored: the label to be ignored, if any.
        dtype: of the scores.
    """
    label = site.input(labels)
    kept: ir.Value | None = None
    if ignored is not None:
        kept = site.op("Not", site.op("Equal", label, ignored))
        label = site.op("Mul", label, site.op("Cast", kept, to=int(site.type(labels).dtype)))
    weight: ir.Value | None = None
    if site.has(weights):
        weight = site.op("Gather", site.input(weights), label)
    if kept is not None:
        keep = site.op("Cast", kept, to=int(dtype))
        weight = keep if weight is None else site.op("Mul", weight, keep)
    return _Labels(label, weight, int(np.prod(site.shape(labels))))


def _ignored(site: Site, index: int, labels: int) -> ir.Value | None:
    """Return the label to be ignored: an input of the internal operators, an attribute of ONNX's."""
    dtype = site.type(labels).dtype
    if site.node.op_type.startswith("SoftmaxCrossEntropyLossInternal"):
        if not site.has(index):
            return None
        return site.op("Cast", site.reshape(site.input(index)), to=int(dtype))
    ignored = site.attributes.get("ignore_index")
    return None if ignored is None else site.constant(np.array(int(ignored), dtype.numpy()))


def _divisor(site: Site, labels: _Labels, like: int) -> ir.Value:
    """Return what the mean divides by: the samples' weights together, 1 where that is 0."""
    if labels.weights is None:
        return site.number(labels.count, like)
    total = site.op("ReduceSum", labels.weights, keepdims=0)
    return site.op("Where", site.op("Equal", total, site.number(0, like)), site.number(1, like), total)


def _reduction(site: Site) -> str:
    return str(site.attributes.get("reduction", "mean"))


def _cross_entropy(site: Site) -> None:
    """SoftmaxCrossEntropyLoss(scores, labels, weights?) -> (loss, log_probabilities)."""
    labels = _read_labels(site, 1, 2, _ignored(site, 3, 1), site.type(0).dtype)
    log_probabilities = site.op("LogSoftmax", site.input(0), axis=1)
    chosen = site.op("GatherElements", log_probabilities, labels.places(site), axis=1)
    loss = site.op("Neg", site.op("Squeeze", chosen, site.ints(1)))
    if labels.weights is not None:
        loss = site.op("Mul", loss, labels.weights)
    if _reduction(site) != "none":
        loss = site.op("ReduceSum", loss, keepdims=0)
    if _reduction(site) == "mean":
        loss = site.op("Div", loss, _divisor(site, labels, 0))
    site.give(0, loss)
    site.give(1, log_probabilities)


def _cross_entropy_gradient(site: Site) -> None:
    """SoftmaxCrossEntropyLossGrad(dY, log_probabilities, labels, weights?, bias?) -> dX.

    A row of dX is (probabilities - one at the label) times the sample's weight and dY, over the divisor of the mean.
    """
    internal = site.node.op_type == "SoftmaxCrossEntropyLossInternalGrad"
    labels = _read_labels(site, 2, 3, _ignored(site, 4, 2), site.type(1).dtype)
    scale = site.input(0) if _reduction(site) == "none" else site.reshape(site.input(0))
    if _reduction(site) == "mean":
        scale = site.op("Div", scale, _divisor(site, labels, 1))
    if labels.weights is not None:
        scale = site.op("Mul", scale, labels.weights)
    probabilities = site.op("Exp", site.input(1))
    if site.kernels and site.type(1).dtype == FLOAT:  # ScatterElements takes a copy of the labels besides
        d_x = site.op("CrossEntropyGradient", probabilities, labels.classes, scale, domain=POET)
    else:
        chosen = site.op("GatherElements", probabilities, labels.places(site), axis=1)
        less_one = site.op("Sub", chosen, site.number(1, 1))
        difference = site.op("ScatterElements", probabilities, labels.places(site), less_one, axis=1)
        if labels.weights is not None or _reduction(site) == "none":
            scale = site.op("Unsqueeze", scale, site.ints(1))
        d_x = site.op("Mul", difference, scale)
    bias = 5 if internal else 4
    if site.has(bias):
        d_x = site.op("Add", d_x, site.reshape(site.input(bias), *site.shape(1)))
    site.give(0, d_x)


def _dense_cross_entropy(site: Site) -> None:
    """SoftmaxCrossEntropy(scores, targets) -> (loss, log_probabilities); targets are a distribution for each row."""
    log_probabilities = site.op("LogSoftmax", site.input(0), axis=-1)
    total = site.op("ReduceSum", site.op("Mul", log_probabilities, site.input(1)), keepdims=0)
    loss = site.op("Neg", total)
    if _reduction(site) == "mean":
        loss = site.op("Div", loss, site.number(int(np.prod(site.shape(0)[:-1]))))
    site.give(0, loss)
    site.give(1, log_probabilities)


def _dense_cross_entropy_gradient(site: Site) -> None:
    """SoftmaxCrossEntropyGrad(dY, log_probabilities, targets) -> dX."""
    scale = site.reshape(site.input(0))
    if _reduction(site) == "mean":
        scale = site.op("Div", scale, site.number(int(np.prod(site.shape(1)[:-1])), 1))
    difference = site.op("Sub", site.op("Exp", site.input(1)), site.input(2))
    site.give(0, site.op("Mul", difference, scale))


RULES: Rules = {
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "SoftmaxCrossEntropyLossInternal": _cross_entropy,
    "SoftmaxCrossEntropyLossGrad": _cross_entropy_gradient,
    "SoftmaxCrossEntropyLossInternalGrad": _cross_entropy_gradient,
    "SoftmaxCrossEntropy": _dense_cross_entropy,
    "SoftmaxCrossEntropyGrad": _dense_cross_entropy_gradient,
}
