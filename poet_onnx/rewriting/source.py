"""The training model that was given, or made of a forward model, and normalized for what variants are made of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import onnx
import onnx_ir as ir

from poet_onnx.choices import AUTO
from poet_onnx.description.metadata import Updates
from poet_onnx.gradients.options import TrainGraphOptions
from poet_onnx.gradients.train_graph import TrainGraph, train_graph
from poet_onnx.graph.extract import check_number_types, check_training
from poet_onnx.graph.loading import as_model
from poet_onnx.options import part
from poet_onnx.passes.batch_norm_modes import SettleBatchNorm, model_beside
from poet_onnx.passes.frozen_batch_norm import frozen_outputs
from poet_onnx.passes.lowering import normalize_for
from poet_onnx.passes.lowering.opset import DeclareKnownOpset
from poet_onnx.passes.normalize import Normalization
from poet_onnx.rewriting.optimizer_choice import OptimizerChoice
from poet_onnx.rewriting.options import StepOptions

_Step = TypeVar("_Step", bound=StepOptions)


@dataclass(frozen=True)
class Given:
    """The training model that work begins with.

    Attributes:
        model: which may be changed.
        forward: returns the evaluation graph of the same loss, if there is one.
        train_graph: what was made of a forward model; None if a training model was given.
    """

    model: ir.Model
    forward: Callable[[], ir.Model | None]
    train_graph: TrainGraph | None = None

    @classmethod
    def read(
        cls,
        model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
        options: StepOptions,
    ) -> Given:
        """Load a training model, or make one of a forward model.

        Args:
            model: a training model; with a loss, a forward model.
            options: of the step.

        Raises:
            InputError: if the model cannot be used.
        """
        if options.loss is None:
            return cls(as_model(model), partial(model_beside, model))
        made = train_graph(model, **vars(part(options, TrainGraphOptions)))
        for graph in filter(None, (made.evaluation, made.fused)):
            Normalization(DeclareKnownOpset(options.target))(graph)
        return cls(made.training.clone(), made.evaluation.clone, made)

    def settle(self, options: _Step) -> _Step:
        """Return what options still say: a training graph that was made of a forward model has its sizes and modes."""
        return options if self.train_graph is None else replace(options, dims=None, frozen_batch_norm=AUTO)

    def prepared(self, options: StepOptions, *, threads: int = 1) -> tuple[Source, Updates | None]:
        """Return the training graph normalized for the target, and what the step does with its gradients.

        Raises:
            InputError: if the model computes no gradients, or cannot be scheduled or trained with the optimizer.
        """
        source = normalized(self.model, self.settle(options), forward=self.forward, threads=threads)
        return source, OptimizerChoice.read(options).for_model(source.model)


@dataclass(frozen=True)
class Source:
    """A training model, normalized for a target.

    Attributes:
        model: normalized.
        node_count: nodes of the model as given.
        frozen_batch_norms: what the batch normalizations make that use their running statistics in training, too.
    """

    model: ir.Model
    node_count: int
    frozen_batch_norms: tuple[str, ...]


def normalized(
    model: ir.Model,
    options: StepOptions,
    *,
    forward: Callable[[], ir.Model | None],
    warn: Callable[[str], None] | None = None,
    threads: int = 1,
) -> Source:
    """Normalize a training model, in place.

    Args:
        model: a training graph.
        options: of the step, as `Given.settle` returns them.
        forward: returns the evaluation graph of the same loss, if there is one.
        warn: called with a sentence about what cannot be told; default `warnings.warn`.
        threads: inside an operator.

    Raises:
        InputError: if the model computes no gradients, or cannot be scheduled.
    """
    check_training(model)
    check_number_types(model)
    node_count = len(model.graph)
    SettleBatchNorm(options.frozen_batch_norm, forward=forward, warn=warn)(model)
    normalize_for(options.target, options.dims, threads=threads)(model)
    return Source(model, node_count, frozen_outputs(model))
