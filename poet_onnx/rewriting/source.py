"""A training model, normalized: what the variants of its graph are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.graph.extract import check_training
from poet_onnx.passes.batch_norm_modes import SettleBatchNorm
from poet_onnx.passes.frozen_batch_norm import frozen_outputs
from poet_onnx.passes.lowering import normalize_for


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
    node_count = len(model.graph)
    SettleBatchNorm(frozen_batch_norm, forward=forward, warn=warn)(model)
    normalize_for(target, dims or None)(model)
    return Source(model, node_count, frozen_outputs(model))
