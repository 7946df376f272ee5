"""Losses behind a forward model: cross-entropy and the mean square as ONNX Runtime's artifact generator writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.gradients.paths import REAL
from poet_onnx.passes.pen import initializer

SEQUENCE_RANK = 3
"""Scores of this rank are of a sequence: batch, place, class. Of more, classes come second: batch, class, pixels."""


@dataclass(frozen=True)
class Loss:
    """What is minimized.

    Attributes:
        kind: "cross-entropy", "mse", "l1", "bce-logits", or "output" for a number that the model computes itself.
        output: the model's output that it is of; None for the first one.
        ignore_index: a label that does not count, of cross-entropy.
        label_smoothing: what of a label is shared among all classes, of cross-entropy.
    """

    kind: str
    output: str | None = None
    ignore_index: int | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in LOSSES:
            raise InputError(f"There is no loss '{self.kind}': give one of {', '.join(LOSSES)}.")
        if self.kind == "output" and self.output is None:
            raise InputError("Name the output that is the loss, as in output:loss.")
        if self.kind != "cross-entropy" and (self.ignore_index is not None or self.label_smoothing):
            raise InputError(f"A loss '{self.kind}' has no labels to ignore or to smooth: only cross-entropy has.")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise InputError(f"The label smoothing cannot be {self.label_smoothing}: give at least 0 and less than 1.")


def parse_loss(text: str, *, ignore_index: int | None = None, label_smoothing: float = 0.0) -> Loss:
    """Return the loss that a text names: a kind, and behind a colon the output that it is of.

    Args:
        text: such as "cross-entropy", "mse:depth" or "output:loss".
        ignore_index: a label that does not count.
        label_smoothing: what of a label is shared among all classes.

    Raises:
        InputError: there is no such loss.
    """
    kind, _, output = text.partition(":")
    return Loss(kind, output or None, ignore_index, label_smoothing)


def add_loss(model: ir.Model, loss: Loss) -> str:
    """Add a loss and its labels or targets to a model, and return the name of the loss.

    Args:
        model: whose shapes are known; changed in place.
        loss: what to add.

    Raises:
        InputError: there is no such output, or it is none that the loss can be of.
    """
    graph = model.graph
    outputs = {value.name: value for value in graph.outputs}
    if not outputs:
        raise InputError("The model has no outputs: export it again.")
    name = loss.output if loss.output is not None else graph.outputs[0].name
    if name not in outputs:
        listed = ", ".join(f"'{output}'" for output in outputs)
        raise InputError(f"The model has no output '{name}': its outputs are {listed}.")
    source = outputs[name]
    if source.dtype not in REAL or source.shape is None:
        raise InputError(f"The output '{name}' holds no real numbers: a loss cannot be of it.")
    return LOSSES[loss.kind](_Pen(graph, source.dtype), source, loss)


class _Pen:
    """Writes nodes behind a graph, under names that are free."""

    def __init__(self, graph: ir.Graph, dtype: ir.DataType) -> None:
        self.graph = graph
        self.dtype = dtype
        self._taken = {value.name for node in graph for value in node.outputs}
        self._taken |= {value.name for value in graph.inputs} | set(graph.initializers)

    def free(self, name: str) -> str:
        number, found = 1, name
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found)
        return found

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        value = ir.Value(name=self.free(name), type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.graph.inputs.append(value)
        return value

    def constant(self, name: str, array: np.ndarray[Any, np.dtype[Any]]) -> ir.Value:
        return initializer(self.graph, self.free(f"loss/{name}"), array)

    def number(self, number: float) -> ir.Value:
        return self.constant("number", np.array(number, self.dtype.numpy()))

    def op(self, op_type: str, *inputs: ir.Value, name: str = "", outputs: int = 1, **attributes: Any) -> ir.Value:
        node = ir.Node(
            "",
            op_type,
            inputs,
            [ir.convenience.convert_attribute(key, value) for key, value in attributes.items()],
            num_outputs=outputs,
            name=self.free(f"loss/{op_type}"),
        )
        node.outputs[0].name = self.free(name or f"{node.name}_output")
        for value, ending in zip(node.outputs[1:], ("log_prob",), strict=False):
            value.name = self.free(ending)
        self.graph.append(node)
        return node.outputs[0]

    def mean(self, value: ir.Value) -> str:
        return self.op("ReduceMean", value, name="loss", keepdims=0).name or ""


def _dims(value: ir.Value) -> list[int]:
    return [int(size) for size in value.shape or () if isinstance(size, int)]


def _cross_entropy(pen: _Pen, scores: ir.Value, loss: Loss) -> str:
    dims = _dims(scores)
    if len(dims) < 2:
        raise InputError(f"The scores '{scores.name}' have shape {dims}: cross-entropy needs a row of them a sample.")
    if len(dims) == SEQUENCE_RANK:
        labels = pen.input("labels", ir.DataType.INT64, dims[:-1])
        scores = pen.op("Reshape", scores, pen.constant("rows", np.array([-1, dims[-1]], np.int64)))
        labels = pen.op("Reshape", labels, pen.constant("all", np.array([-1], np.int64)))
    else:
        labels = pen.input("labels", ir.DataType.INT64, [dims[0], *dims[2:]])
    ignored: dict[str, Any] = {} if loss.ignore_index is None else {"ignore_index": loss.ignore_index}
    name = "" if loss.label_smoothing else "loss"
    hard = pen.op("SoftmaxCrossEntropyLoss", scores, labels, name=name, outputs=2, reduction="mean", **ignored)
    if not loss.label_smoothing:
        return hard.name or ""
    spread = _spread(pen, scores, labels, loss.ignore_index)
    sharp = pen.op("Mul", hard, pen.number(1.0 - loss.label_smoothing))
    return pen.op("Add", sharp, pen.op("Mul", spread, pen.number(loss.label_smoothing)), name="loss").name or ""


def _spread(pen: _Pen, scores: ir.Value, labels: ir.Value, ignore_index: int | None) -> ir.Value:
    """Return the mean cross-entropy of scores with labels that are all classes alike."""
    surprise = pen.op("Neg", pen.op("LogSoftmax", scores, axis=1))
    each = pen.op("ReduceMean", surprise, axes=[1], keepdims=0)
    if ignore_index is None:
        return pen.op("ReduceMean", each, keepdims=0)
    ignored = pen.op("Equal", labels, pen.constant("ignored", np.array(ignore_index, np.int64)))
    counted = pen.op("Cast", pen.op("Not", ignored), to=int(pen.dtype))
    total = pen.op("ReduceSum", pen.op("Mul", each, counted), keepdims=0)
    return pen.op("Div", total, pen.op("ReduceSum", counted, keepdims=0))


def _difference(pen: _Pen, output: ir.Value) -> ir.Value:
    return pen.op("Sub", output, _target(pen, output))


def _target(pen: _Pen, output: ir.Value) -> ir.Value:
    return pen.input("target", pen.dtype, _dims(output))


def _mean_square(pen: _Pen, output: ir.Value, _: Loss) -> str:
    return pen.mean(pen.op("Pow", _difference(pen, output), pen.number(2.0)))


def _mean_distance(pen: _Pen, output: ir.Value, _: Loss) -> str:
    return pen.mean(pen.op("Abs", _difference(pen, output)))


def _binary_cross_entropy(pen: _Pen, scores: ir.Value, _: Loss) -> str:
    """Add log(1 + exp(x)) - x t, which overflows for no score."""
    hit = pen.op("Mul", scores, _target(pen, scores))
    return pen.mean(pen.op("Sub", pen.op("Softplus", scores), hit))


def _own(_: _Pen, output: ir.Value, __: Loss) -> str:
    return output.name or ""


LOSSES: Mapping[str, Callable[[_Pen, ir.Value, Loss], str]] = {
    "cross-entropy": _cross_entropy,
    "mse": _mean_square,
    "l1": _mean_distance,
    "bce-logits": _binary_cross_entropy,
    "output": _own,
}
