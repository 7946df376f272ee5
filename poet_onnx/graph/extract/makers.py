"""Who made a model or a file that is given as a training graph, and what to do with it if it is none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import spec_of

MAKE_TRAINING = (
    "give the forward model and its loss to `poet-onnx rewrite MODEL --device D --loss cross-entropy`, or make a "
    "training graph of it with `poet-onnx train-graph MODEL -o DIR --loss cross-entropy`"
)

_STEP = re.compile(r"onnxsim_(\w+_)?step")
"""What onnxsim calls the graphs of its `StepGraph`s, which compute gradients and return what they update."""

_OPTIMIZERS = frozenset(("AdamWOptimizer", "SGDOptimizerV2"))
"""Operators of the optimizer_model.onnx of onnxruntime-training."""

_OTHER_FILES = (
    (
        0,
        b"PK\x03\x04",
        "is a zip archive, as torch.save writes it: export the module with torch.onnx.export",
    ),
    (4, b"ORTM", "is a model in ORT format: give the ONNX file that it was made from"),
    (4, b"ODTC", "holds the parameters of onnxruntime-training: give the training_model.onnx that belongs to it"),
    (4, b"TFL3", "is a TensorFlow Lite model: convert the network to ONNX from where it was trained"),
    (8, b'{"', "holds tensors in safetensors and no graph: give the ONNX model that they belong to"),
)
"""Place and bytes by which files of other kinds are known, and what is said of them."""


def check_training(model: ir.Model) -> None:
    """Check that a model computes gradients of parameters: by its operators, or by names that gradient builders give.

    Raises:
        InputError: it has a forward pass only, or derivatives that train nothing.
    """
    check_derivative(model)
    if is_step(model.graph):
        return
    for node in chain(model.graph, *model.functions.values()):
        if "Grad" in node.op_type or spec_of(node.domain, node.op_type).update:
            return
        if any("grad" in (value.name or "").lower() for value in node.outputs):
            return
    if any(node.op_type in _OPTIMIZERS for node in model.graph):
        raise InputError(
            "The model computes no gradients, it is the optimizer of onnxruntime-training alone: give the"
            " training_model.onnx beside it; --optimizer adds an update."
        )
    raise InputError(f"The model computes no gradients, only the forward pass: {MAKE_TRAINING}.")


def is_step(graph: ir.Graph) -> bool:
    """Return whether onnxsim compiled a graph: a step that returns the parameters that it has updated."""
    return _STEP.fullmatch(graph.name or "") is not None


def check_derivative(model: ir.Model) -> None:
    """Check that a model is not what onnx-ad made of another one.

    Raises:
        InputError: its inputs seed derivatives of outputs or inputs, as onnx-ad names them.
    """
    inputs, outputs = ({value.name or "" for value in values} for values in (model.graph.inputs, model.graph.outputs))
    seeds = [*_derived("adj", inputs, outputs), *_derived("fwd", inputs, inputs)]
    results = [*_derived("adj", outputs, inputs), *_derived("fwd", outputs, outputs)]
    if seeds and results:
        raise InputError(
            f"The model is what onnx-ad made of another one: '{seeds[0]}' seeds '{results[0]}', and no weight has a"
            f" gradient; {MAKE_TRAINING}."
        )


def _derived(kind: str, names: Iterable[str], of: Iterable[str]) -> list[str]:
    """Return the names that say that they are derivatives of others, such as adj_y and adj2_y of y."""
    known = set(of)
    found = [(name, re.fullmatch(rf"{kind}\d*_(.+)", name)) for name in names]
    return sorted(name for name, match in found if match is not None and match[1] in known)


def other_kind(start: bytes) -> str:
    """Return what a file that is no ONNX model is, by its first bytes, and what to do then."""
    for place, magic, sentence in _OTHER_FILES:
        if start[place : place + len(magic)] == magic:
            return sentence
    return "is not an ONNX model, or it is truncated: export the model again"
