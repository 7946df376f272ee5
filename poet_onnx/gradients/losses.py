"""Losses behind a forward model: cross-entropy and the mean square as ONNX Runtime's artifact generator writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.errors import InputError, shown
from poet_onnx.gradients.class_weights import ClassWeights, read_weights
from poet_onnx.gradients.doubtful_scores import doubt_of
from poet_onnx.gradients.loss_builder import CAUSAL, LAST, SECOND, LossBuilder, dims_of
from poet_onnx.gradients.paths import REAL
from poet_onnx.quantities import is_number, is_whole

CAUSAL_IGNORED = -100
"""The label that does not count in it, where none is given: that of torch, and of language models' prompts."""

_OF_LABELS = (SECOND, LAST, CAUSAL)

_TERM = re.compile(r"(?:(?P<factor>[^*+:]+)\*)?(?P<kind>[a-z0-9-]+)(?::(?P<output>.+))?")
_KINDS = "cross-entropy(?:-last)?|causal-lm|mse|l1|bce-logits|output"
_BETWEEN_TERMS = re.compile(rf"\+(?=(?:[^*+:]+\*)?(?:{_KINDS})(?:[:+]|$))")
"""A plus sign that no name of an output has: a loss follows."""


@dataclass(frozen=True)
class Term:
    """A loss of one output.

    Attributes:
        kind: one of `LOSSES`; "output" is a number that the model computes itself.
        output: the model's output that it is of, or another tensor that the model computes; None for the first one.
        factor: by which it is multiplied.
    """

    kind: str
    output: str | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in LOSSES:
            raise InputError(f"There is no loss '{self.kind}': give one of {', '.join(LOSSES)}.")
        if self.kind == "output" and self.output is None:
            raise InputError("Name the output that is the loss, as in output:loss.")
        if not 0.0 < self.factor < float("inf"):
            raise InputError(f"A loss cannot be multiplied by {self.factor}: give a number above 0.")


@dataclass(frozen=True)
class Loss:
    """What is minimized.

    Attributes:
        terms: losses that are added up.
        ignore_index: a label that does not count, of cross-entropy.
        label_smoothing: what of a label is shared among all classes, of cross-entropy.
        class_weights: by which a sample counts, by its label; None where all count alike.
    """

    terms: tuple[Term, ...]
    ignore_index: int | None = None
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        smoothing, ignored = self.label_smoothing, self.ignore_index
        if not is_number(smoothing) or not 0.0 <= smoothing < 1.0:
            raise InputError(f"The label smoothing cannot be {shown(smoothing)}: give at least 0 and less than 1.")
        if ignored is not None and (not is_whole(ignored) or not -(2**63) <= ignored < 2**63):
            raise InputError(
                f"The label that does not count cannot be {shown(ignored)}: give a whole number of 64 bits."
            )
        object.__setattr__(self, "label_smoothing", float(smoothing))
        object.__setattr__(self, "ignore_index", None if ignored is None else int(ignored))
        of_labels = self.ignore_index is not None or self.label_smoothing or self.class_weights is not None
        if of_labels and all(term.kind not in _OF_LABELS for term in self.terms):
            kinds = ", ".join(dict.fromkeys(term.kind for term in self.terms))
            raise InputError(
                f"A loss '{kinds}' has no labels to ignore, to weigh or to smooth: only cross-entropy has."
            )


def parse_loss(
    text: str,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    class_weights: ClassWeights | None = None,
) -> Loss:
    """Return the loss that a text names: a kind, and behind a colon the output that it is of; or a sum of such.

    Args:
        text: such as "cross-entropy", "mse:depth", "output:loss" or "cross-entropy:scores+0.5*mse:depth".
        ignore_index: a label that does not count.
        label_smoothing: what of a label is shared among all classes.
        class_weights: numbers, text of them with commas between, or a file of them.

    Raises:
        InputError: there is no such loss, or the weights cannot be read.
    """
    weights = None if class_weights is None else read_weights(class_weights)
    terms = tuple(_term(part.strip()) for part in _BETWEEN_TERMS.split(text))
    return Loss(terms, ignore_index, label_smoothing, weights)


def _term(text: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise InputError(f"There is no loss '{text}': give one of {', '.join(LOSSES)}.")
    try:
        factor = float(match["factor"] or 1.0)
    except ValueError:
        raise InputError(f"A loss cannot be multiplied by '{match['factor']}': give a number above 0.") from None
    return Term(match["kind"], match["output"], factor)


def add_loss(model: ir.Model, loss: Loss, warn: Callable[[str], None] = lambda _: None) -> str:
    """Add a loss and its labels or targets to a model, and return the name of the loss.

    The inputs are `labels` and `target`; of a sum they are named after their outputs, such as `depth_target`. With y
    the output, and torch.nn.functional as F, the losses are:

        cross-entropy       F.cross_entropy(y, labels, weight=class_weights, ignore_index=ignore_index,
                            label_smoothing=label_smoothing); y is [N, C, ...] and labels [N, ...]
        cross-entropy-last  the same of y.reshape(-1, C) and labels.reshape(-1); y is [N, ..., C] and labels [N, ...]
        causal-lm           the same of y[:, :-1] and labels[:, 1:], where -100 does not count, or `ignore_index`; y is
                            [N, tokens, C] and labels [N, tokens], the tokens themselves
        mse, l1             F.mse_loss(y, target) and F.l1_loss(y, target), the mean of all elements
        bce-logits          F.binary_cross_entropy_with_logits(y, target)
        output              y

    Without `ignore_index` every label counts, also torch's default of -100, but in causal-lm.

    Args:
        model: whose shapes are known; changed in place.
        loss: what to add.
        warn: called with a sentence about what may not be meant so.

    Raises:
        InputError: there is no such output, or it is none that the loss can be of.
    """
    graph = model.graph
    if not graph.outputs:
        raise InputError("The model has no outputs: export it again.")
    computed = [value for node in graph for value in node.outputs]
    tensors = {value.name: value for value in (*computed, *graph.outputs)}
    sources = []
    for term in loss.terms:
        name = term.output if term.output is not None else graph.outputs[0].name
        source = tensors.get(name)
        if source is None:
            listed = ", ".join(f"'{output.name}'" for output in graph.outputs)
            raise InputError(f"The model has no output '{name}', and no other tensor: its outputs are {listed}.")
        if source.dtype not in REAL or source.shape is None:
            raise InputError(f"'{name}' holds no real numbers: a loss cannot be of it.")
        if 0 in source.shape:
            raise InputError(
                f"'{name}' has shape {dims_of(source)}, no numbers: choose a batch and classes of at least 1."
            )
        sources.append(source)
        if doubt := doubt_of(term.kind, source):
            warn(doubt)
    builder = LossBuilder(graph, sources[0].dtype or ir.DataType.FLOAT, named=len(sources) > 1)
    values = [LOSSES[term.kind](builder, source, loss) for term, source in zip(loss.terms, sources, strict=True)]
    if len(values) == 1 and loss.terms[0].factor == 1.0:
        return values[0].name or ""
    scaled = [
        value if term.factor == 1.0 else builder.op("Mul", value, builder.number(term.factor))
        for term, value in zip(loss.terms, values, strict=True)
    ]
    return (scaled[0] if len(scaled) == 1 else builder.op("Sum", *scaled, name="total_loss")).name or ""


def _cross_entropy(builder: LossBuilder, scores: ir.Value, loss: Loss) -> ir.Value:
    dims = _score_dims(scores)
    labels = builder.input("labels", scores, ir.DataType.INT64, [dims[0], *dims[2:]])
    return _of_second(builder, scores, labels, dims, loss)


def _cross_entropy_last(builder: LossBuilder, scores: ir.Value, loss: Loss) -> ir.Value:
    dims = _score_dims(scores)
    labels = builder.input("labels", scores, ir.DataType.INT64, dims[:-1])
    return _of_last(builder, scores, labels, dims, loss)


def _causal(builder: LossBuilder, scores: ir.Value, loss: Loss) -> ir.Value:
    dims = dims_of(scores)
    if len(dims) != 3 or dims[1] < 2:
        raise InputError(
            f"The scores '{scores.name}' have shape {dims}: {CAUSAL} needs some of each word at two tokens or more, "
            "[batch, tokens, words]."
        )
    ignored = CAUSAL_IGNORED if loss.ignore_index is None else loss.ignore_index
    labels = builder.input("labels", scores, ir.DataType.INT64, dims[:-1])
    bounds = (("second", [1]), ("end", [np.iinfo(np.int64).max]), ("tokens", [1]))
    following = builder.op("Slice", labels, *(builder.constant(name, np.array(at, np.int64)) for name, at in bounds))
    behind = builder.constant("behind", np.array([0, 0, 0, 1], np.int64))  # nothing follows the last one
    following = builder.op("Pad", following, behind, builder.constant("nothing", np.array(ignored, np.int64)))
    return _of_last(builder, scores, following, dims, replace(loss, ignore_index=ignored))


def _of_last(builder: LossBuilder, scores: ir.Value, labels: ir.Value, dims: Sequence[int], loss: Loss) -> ir.Value:
    """Return the cross-entropy of scores whose last dimension is the class."""
    if len(dims) > 2:
        scores = builder.op("Reshape", scores, builder.constant("rows", np.array([-1, dims[-1]], np.int64)))
        labels = builder.op("Reshape", labels, builder.constant("all", np.array([-1], np.int64)))
    return _of_second(builder, scores, labels, [-1, dims[-1]], loss)


def _score_dims(scores: ir.Value) -> list[int]:
    dims = dims_of(scores)
    if len(dims) < 2:
        raise InputError(f"The scores '{scores.name}' have shape {dims}: cross-entropy needs a row of them a sample.")
    return dims


def _of_second(builder: LossBuilder, scores: ir.Value, labels: ir.Value, dims: Sequence[int], loss: Loss) -> ir.Value:
    """Return the cross-entropy of scores whose dimension 1 is the class."""
    weights = None if loss.class_weights is None else _class_weights(builder, loss.class_weights, dims[1])
    ignored: dict[str, Any] = {} if loss.ignore_index is None else {"ignore_index": loss.ignore_index}
    name = "" if loss.label_smoothing else "loss"
    given = [scores, labels, *([] if weights is None else [weights])]
    hard = builder.op("SoftmaxCrossEntropyLoss", *given, name=name, outputs=2, reduction="mean", **ignored)
    if not loss.label_smoothing:
        return hard
    each = _surprise(builder, scores, weights, dims)
    spread = _mean(builder, each, labels, weights, loss.ignore_index)
    sharp = builder.op("Mul", hard, builder.number(1.0 - loss.label_smoothing))
    smooth = builder.op("Mul", spread, builder.number(loss.label_smoothing / dims[1]))
    return builder.op("Add", sharp, smooth, name="loss")


def _class_weights(builder: LossBuilder, weights: Sequence[float], classes: int) -> ir.Value:
    if len(weights) != classes:
        raise InputError(f"There are {len(weights)} class weights, but {classes} classes: give one for each.")
    return builder.constant("class_weights", np.array(weights, builder.dtype.numpy()))


def _surprise(builder: LossBuilder, scores: ir.Value, weights: ir.Value | None, dims: Sequence[int]) -> ir.Value:
    """Return each sum of the cross-entropies with all classes, as torch weighs it."""
    surprise = builder.op("Neg", builder.op("LogSoftmax", scores, axis=1))
    if weights is not None:
        columns = builder.constant("columns", np.array([1, dims[1], *[1] * (len(dims) - 2)], np.int64))
        surprise = builder.op("Mul", surprise, builder.op("Reshape", weights, columns))
    return builder.op("ReduceSum", surprise, builder.constant("classes", np.array([1], np.int64)), keepdims=0)


def _mean(
    builder: LossBuilder, each: ir.Value, labels: ir.Value, weights: ir.Value | None, ignore_index: int | None
) -> ir.Value:
    """Return the mean over the labels that count, each as much as its class."""
    if ignore_index is None and weights is None:
        return builder.op("ReduceMean", each, keepdims=0)
    counted: ir.Value | None = None
    if ignore_index is not None:
        ignored = builder.op("Equal", labels, builder.constant("ignored", np.array(ignore_index, np.int64)))
        counted = builder.op("Cast", builder.op("Not", ignored), to=int(builder.dtype))
        each = builder.op("Mul", each, counted)
        known = builder.op("Cast", counted, to=int(ir.DataType.INT64))
        labels = builder.op("Mul", labels, known)  # a label that does not count may be no class
    share = counted
    if weights is not None:
        share = builder.op("Gather", weights, labels)
        share = share if counted is None else builder.op("Mul", share, counted)
    assert share is not None
    return builder.op("Div", builder.op("ReduceSum", each, keepdims=0), builder.op("ReduceSum", share, keepdims=0))


def _difference(builder: LossBuilder, output: ir.Value) -> ir.Value:
    return builder.op("Sub", output, _target(builder, output))


def _target(builder: LossBuilder, output: ir.Value) -> ir.Value:
    return builder.input("target", output, builder.dtype, dims_of(output))


def _mean_square(builder: LossBuilder, output: ir.Value, _: Loss) -> ir.Value:
    return builder.mean(builder.op("Pow", _difference(builder, output), builder.number(2.0)))


def _mean_distance(builder: LossBuilder, output: ir.Value, _: Loss) -> ir.Value:
    return builder.mean(builder.op("Abs", _difference(builder, output)))


def _binary_cross_entropy(builder: LossBuilder, scores: ir.Value, _: Loss) -> ir.Value:
    """Add log(1 + exp(x)) - x t, which overflows for no score."""
    hit = builder.op("Mul", scores, _target(builder, scores))
    return builder.mean(builder.op("Sub", builder.op("Softplus", scores), hit))


def _own(_: LossBuilder, output: ir.Value, __: Loss) -> ir.Value:
    return output


LOSSES: Mapping[str, Callable[[LossBuilder, ir.Value, Loss], ir.Value]] = {
    SECOND: _cross_entropy,
    LAST: _cross_entropy_last,
    CAUSAL: _causal,
    "mse": _mean_square,
    "l1": _mean_distance,
    "bce-logits": _binary_cross_entropy,
    "output": _own,
}
