"""The training model that was given, or made of a forward model, and normalized for what variants are made of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import onnx
import onnx_ir as ir

from poet_onnx.choices import AUTO
from poet_onnx.gradients.train_graph import TrainGraph, train_graph
from poet_onnx.graph.extract import check_number_types, check_training
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.batch_norm_modes import SettleBatchNorm, model_beside
from poet_onnx.passes.frozen_batch_norm import frozen_outputs
from poet_onnx.passes.lowering import normalize_for
from poet_onnx.passes.lowering.opset import DeclareKnownOpset
from poet_onnx.passes.normalize import Normalization
from poet_onnx.rewriting.request import Gradients


@dataclass(frozen=True)
class Given:
    """The training model that work begins with.

    Attributes:
        model: which may be changed.
        forward: returns the evaluation graph of the same loss, if there is one.
        dims: sizes of named dimensions that are not fixed yet.
        frozen_batch_norm: what is still to be said of batch normalizations, as for `poet_onnx.rewrite`.
        train_graph: what was made of a forward model; None if a training model was given.
    """

    model: ir.Model
    forward: Callable[[], ir.Model | None]
    dims: Mapping[str, int]
    frozen_batch_norm: str
    train_graph: TrainGraph | None = None

    @classmethod
    def read(
        cls,
        model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
        *,
        gradients: Gradients | None,
        target: str,
        dims: Mapping[str, int] | None,
        frozen_batch_norm: str,
    ) -> Given:
        """Load a training model, or make one of a forward model.

        Args:
            model: a training model; with `gradients`, a forward model.
            gradients: how to make a training model.
            target: runtime that will run what is made.
            dims: sizes of named dimensions.
            frozen_batch_norm: as for `poet_onnx.rewrite`.

        Raises:
            InputError: if the model cannot be used.
        """
        if gradients is None:
            return cls(as_model(model), partial(model_beside, model), dims or {}, frozen_batch_norm)
        made = train_graph(model, dims=dims, frozen_batch_norm=frozen_batch_norm, **vars(gradients))
        Normalization(DeclareKnownOpset(target))(made.evaluation)
        return cls(made.training.clone(), made.evaluation.clone, {}, AUTO, made)


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
    *,
    target: str,
    dims: Mapping[str, int] | None,
    frozen_batch_norm: str,
    forward: Callable[[], ir.Model | None],
    warn: Callable[[str], None] | None = None,
) -> Source:
    """Normalize a training model, in place.

    Args:
        model: a training graph.
        target: runtime that will run the model.
        dims: sizes of named dynamic dimensions.
        frozen_batch_norm: as for `poet_onnx.rewrite`.
        forward: returns the evaluation graph of the same loss, if there is one.
        warn: called with a sentence about what cannot be told; default `warnings.warn`.

    Raises:
        InputError: if the model computes no gradients, or cannot be scheduled.
    """
    check_training(model)
    check_number_types(model)
    node_count = len(model.graph)
    SettleBatchNorm(frozen_batch_norm, forward=forward, warn=warn)(model)
    normalize_for(target, dims or None)(model)
    return Source(model, node_count, frozen_outputs(model))
