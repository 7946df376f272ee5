"""Metrics of an evaluation: means over batches of what functions make of outputs and batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError, shown
from poet_onnx.graph.input_ranges import Ranges
from poet_onnx.quantities import is_number
from poet_onnx.training.batch import Wanted

Array = npt.NDArray[Any]
Metric = Callable[[Mapping[str, Array], Mapping[str, Array]], float]
"""Outputs of the model and batch, both by name -> figure of the batch; the arrays are filled anew for the next one."""

Metrics = Mapping[str, Metric] | Sequence[str]
"""Functions by the names of their figures, or names of those that are there: "accuracy"."""

ACCURACY = "accuracy"


class Outputs(dict[str, Array]):
    """Outputs by name."""

    def __missing__(self, name: str) -> NoReturn:
        have = ", ".join(map(repr, self)) or "none"
        raise InputError(
            f"The evaluation graph returns no '{name}' besides its loss, it has {have}: the one that `rewrite` writes"
            " has outputs of at most 128 KiB a batch."
        )


class Means:
    """Figures of all batches so far: the loss, and metrics."""

    def __init__(self, metrics: Metrics, wanted: Sequence[Wanted], ranges: Ranges) -> None:
        """Begin without a batch.

        Args:
            metrics: what is to be computed besides the loss.
            wanted: what a batch fills; labels are the last of it.
            ranges: what is known of labels, such as which one the loss ignores.

        Raises:
            InputError: if there is no such metric.
        """
        self._labels = wanted[-1].name
        known = [(put.name, each.ignored) for put in wanted for each in ranges.get(put.name, ())]
        self._ignored = {name: label for name, label in reversed(known) if label is not None}
        """The label that does not count, by the input's name: of several ranges that of the first."""
        given = _by_name(metrics)
        for name, metric in given.items():
            if name == "loss" or not (callable(metric) or (metric is None and name == ACCURACY)):
                raise _unknown(name)
        self._metrics = given
        self._sums: dict[str, list[float]] = {name: [] for name in ("loss", *given)}
        self._batches = self._right = self._counted = 0

    def add(self, loss: float, outputs: Outputs, batch: Mapping[str, Array]) -> None:
        """Take another batch in; a loss of no label, which is 0, does not count.

        Raises:
            InputError: if a metric cannot be computed, or is no number.
        """
        if loss or not self._ignored or any((batch[name] != label).any() for name, label in self._ignored.items()):
            self._sums["loss"].append(loss)
        self._batches += 1
        for name, metric in self._metrics.items():
            if metric is None:
                self._count(outputs, batch[self._labels])
                continue
            figure = metric(outputs, batch)
            if not is_number(figure):
                raise InputError(f"The metric '{name}' gives {shown(figure)}: let it return a number for each batch.")
            self._sums[name].append(float(figure))

    def figures(self) -> dict[str, float]:
        """Return the means by name, NaN where nothing counted.

        Raises:
            InputError: if there was no batch.
        """
        if not self._batches:
            raise InputError("There was no batch to evaluate: give a loader that can be read again, such as a list.")
        accuracy = self._right / self._counted if self._counted else math.nan
        means = {name: math.fsum(each) / len(each) if each else math.nan for name, each in self._sums.items()}
        return means | {name: accuracy for name, metric in self._metrics.items() if metric is None}

    def _count(self, outputs: Outputs, labels: Array) -> None:
        """Count the labels that have the largest score, in dimension 1 or the last one."""
        for scores in outputs.values():
            for axis in (1, -1):
                if scores.ndim != labels.ndim + 1 or labels.dtype.kind not in "iu" or scores.ndim < 2:
                    continue
                if (
                    tuple(size for place, size in enumerate(scores.shape) if place != axis % scores.ndim)
                    == labels.shape
                ):
                    ignored = self._ignored.get(self._labels)
                    counted = np.ones(labels.shape, np.bool_) if ignored is None else labels != ignored
                    self._right += int(((scores.argmax(axis) == labels) & counted).sum())
                    self._counted += int(counted.sum())
                    return
        shapes = ", ".join(f"'{name}' {list(scores.shape)}" for name, scores in outputs.items()) or "no outputs"
        raise InputError(
            f"There is no accuracy of labels '{self._labels}' {list(labels.shape)} and {shapes}: give a function of"
            " outputs and batch. The evaluation graph of `rewrite` has outputs of at most 128 KiB a batch."
        )


def _by_name(metrics: object) -> Mapping[str, Any]:
    """Return metrics by name, with None for those that were named alone.

    Raises:
        InputError: if they are in nothing that can be read again, or one has no name.
    """
    if isinstance(metrics, Mapping):
        return metrics
    names = [metrics] if isinstance(metrics, str) else metrics
    if not isinstance(names, Collection):
        raise InputError(
            f"metrics is {shown(metrics)}, but must be a list of names, or functions by name: give ['{ACCURACY}'] for "
            "one."
        )
    for name in names:
        if not isinstance(name, str):
            raise _unknown(name)
    return dict.fromkeys(names)


def _unknown(name: object) -> InputError:
    return InputError(
        f"There is no metric {shown(name)}: give '{ACCURACY}', or a function of outputs and batch by a name other than "
        "loss."
    )
