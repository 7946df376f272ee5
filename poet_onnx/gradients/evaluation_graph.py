"""The graphs of a loss that train nothing: with the exporter's nodes, and with what the training graph has for them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from poet_onnx.description.names import OUTPUTS_KEY, POET_DOMAIN
from poet_onnx.gradients.batch_axis import free_batch
from poet_onnx.gradients.differentiate import take_parameters
from poet_onnx.gradients.inference import infer_only
from poet_onnx.gradients.transposed import fold_transposed, multiply_transposed
from poet_onnx.graph import Role
from poet_onnx.graph.extract.roles import say_role
from poet_onnx.passes.forward_beside import MOST_OWN_BYTES, Beside
from poet_onnx.passes.fused.fuse import fuse_layers
from poet_onnx.passes.vocabulary_loss import UseVocabularyLoss

MOST_OUTPUT_BYTES = 2**17
"""Scores of 32 images and 1,000 classes are kept; a language model's scores of a vocabulary are larger."""


LEAST_FOLDED_BYTES = 1 << 20
"""Of weights that the training graph reads in another way: for less there is no graph besides the one to export."""


def is_small(value: ir.Value) -> bool:
    """Return whether an output may be kept for metrics: it lies outside of the region."""
    if value.dtype is None or value.shape is None or not value.shape.is_static():
        return False
    return value.dtype.itemsize * math.prod(value.shape.numpy()) <= MOST_OUTPUT_BYTES


def plain_evaluation(forward: ir.Model, loss: str, parameters: Sequence[str]) -> ir.Model:
    """Return the graph of the loss that takes the parameters as inputs and trains nothing; it has all old outputs."""
    model = forward.clone()
    graph = model.graph
    first = [value for node in graph for value in node.outputs if value.name == loss]
    graph.outputs[:] = [*first, *(value for value in graph.outputs if value not in first)]
    for value in take_parameters(graph, parameters):
        say_role(value, Role.PARAMETER)
    infer_only(model)
    outputs = [value.name or "" for value in graph.outputs[1:]]
    if outputs:  # else which of the values before the loss are outputs is for the caller to know
        model.metadata_props[OUTPUTS_KEY] = json.dumps(outputs)
        free_batch(model, outputs, parameters)
    return model


def fused_evaluation(
    forward: ir.Model, plain: ir.Model, loss: str, parameters: Sequence[str], *, is_decoder: bool
) -> ir.Model | None:
    """Return a graph of the loss with the single nodes and the frozen weights of the training graph.

    Args:
        forward: a model with its loss, and static shapes.
        plain: what `plain_evaluation` made of it; it is exported.
        loss: its name.
        parameters: names of what is trained.
        is_decoder: whether the training graph has single nodes for its layers.

    Returns:
        The graph, with the small ones of its outputs. None where it would be the same, or does not say what it returns,
        or lacks so many of the constants that an exported model needs that its file would have to have much besides.
    """
    if OUTPUTS_KEY not in plain.metadata_props:
        return None
    model = forward.clone()
    graph = model.graph
    infer_only(model)
    kept = [value for value in graph.outputs if value.name != loss and is_small(value)]
    graph.outputs[:] = [value for node in graph for value in node.outputs if value.name == loss]
    folded_bytes = fold_transposed(graph, parameters)
    if is_decoder:
        UseVocabularyLoss(with_gradient=False, trained=parameters)(model)
    graph.outputs.extend(kept)
    RemoveUnusedNodesPass()(model)
    if is_decoder:
        fuse_layers(model, parameters)
    folded_bytes += multiply_transposed(model, parameters)
    if folded_bytes < LEAST_FOLDED_BYTES and all(node.domain != POET_DOMAIN for node in graph):
        return None
    for value in take_parameters(graph, parameters):
        say_role(value, Role.PARAMETER)
    model.metadata_props[OUTPUTS_KEY] = plain.metadata_props[OUTPUTS_KEY]
    return model if Beside.of(plain.graph, graph).own_bytes <= MOST_OWN_BYTES else None
