"""Prepare for a session what was not rewritten for one, and evaluation graphs; needs onnx_ir, which sessions do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

import onnx
import onnx_ir as ir

from poet_onnx.adapters.lora import Adapters
from poet_onnx.choices import AUTO
from poet_onnx.description.metadata import Description, planned_threads
from poet_onnx.description.names import NETWORK_KEY, TRAINING_KEY
from poet_onnx.errors import InputError
from poet_onnx.files.external_data import embed
from poet_onnx.gradients.inference import check_forward, infer_only
from poet_onnx.graph.extract import infer_types
from poet_onnx.graph.extract.ranges import find_ranges
from poet_onnx.graph.extract.roles import forget_roles
from poet_onnx.graph.input_ranges import RANGES_KEY, Ranges, ranges_from_json
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.batch_norm_modes import SettleBatchNorm, model_beside
from poet_onnx.passes.gathers import SumGathersInOrder
from poet_onnx.passes.metadata import VERSION_KEY
from poet_onnx.passes.normalize import Normalization, PinSeeds
from poet_onnx.passes.roles import find_roles
from poet_onnx.passes.unread import RemoveUnread
from poet_onnx.passes.updates import WriteUpdates, free_state
from poet_onnx.training.prepared import Prepared, Wishes

AnyModel = str | os.PathLike[str] | onnx.ModelProto | ir.Model


def prepare(training_model: AnyModel, wishes: Wishes, forward: Callable[[], ir.Model | None]) -> Prepared:
    """Write the optimizer's updates into a training graph; one that was rewritten for an optimizer stays as it is.

    Args:
        training_model: as generated, rewritten without an optimizer, or in memory.
        wishes: what the session was asked for.
        forward: returns the evaluation graph, if one was given.

    Raises:
        InputError: if the graph cannot be trained.
    """
    model = as_model(training_model)
    description = Description.of_metadata(model.metadata_props)
    adapters, threads = Adapters.of_metadata(model.metadata_props), planned_threads(model.metadata_props)
    network = model.metadata_props.get(NETWORK_KEY, "")
    if description is not None:
        wishes.check(description)
        return Prepared(description, _payload(model), known_ranges(model), adapters, threads=threads, network=network)
    if VERSION_KEY not in model.metadata_props:
        settled = SettleBatchNorm(wishes.frozen_batch_norm, forward=lambda: forward() or model_beside(training_model))
        Normalization(settled)(model)
    elif wishes.frozen_batch_norm != AUTO:
        raise InputError("The training model is rewritten: say to `rewrite` what is frozen.")
    ranges = known_ranges(model)
    kept = find_roles(model).parameters if wishes.keep_gradients else ()
    repeatable = [SumGathersInOrder()] if (wishes.threads or threads) > 1 else []
    updates = WriteUpdates(wishes.updates, planned=True, kept=kept)
    Normalization(PinSeeds(), *repeatable, updates, RemoveUnread())(model)
    forget_roles(model.graph)
    description = Description.from_json(model.metadata_props[TRAINING_KEY])
    return Prepared(description, _payload(model), ranges, adapters, threads=threads, network=network)


def evaluation_graph(eval_model: ir.Model, shared: Collection[str]) -> tuple[bytes, Ranges]:
    """Return the bytes of an evaluation graph that reads the session's arrays, and what its inputs may be.

    Args:
        eval_model: the graph of the loss; it is not changed.
        shared: names of the arrays.
    """
    model = eval_model.clone()
    check_forward(model.graph)
    free_state(model.graph, [name for name in model.graph.initializers if name in shared])
    infer_only(model)
    return _payload(model), known_ranges(eval_model)


def known_ranges(model: ir.Model) -> Ranges:
    """Return what is known of a model's inputs: from the graph, and from its metadata if it was rewritten.

    Raises:
        InputError: if the metadata cannot be read.
    """
    said = model.metadata_props.get(RANGES_KEY)
    if said is None:
        model = model.clone()
        infer_types(model)
    found, written = find_ranges(model.graph), {} if said is None else ranges_from_json(said)
    return {name: (*written.get(name, ()), *found.get(name, ())) for name in {**written, **found}}


def _payload(model: ir.Model) -> bytes:
    """Return a model as bytes, external data embedded."""
    embed(model)
    payload: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return payload
