"""What exporters, and programs behind them, made of parameters for inference, as far as a file tells.

Torch's exporters fold batch normalizations and what they can compute of parameters alone. Programs that optimize a file
merge equal tensors besides, and drop dropout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

import onnx_ir as ir

from poet_onnx.errors import quoted
from poet_onnx.gradients.module_names import ANONYMOUS
from poet_onnx.gradients.tensorflow_files import warn_of_losses
from poet_onnx.gradients.torch_words import is_of_torch, read_words

_FOLDED = ("onnx::Conv_", "onnx::ConvTranspose_")
"""How torch's legacy exporter names what it folds batch normalizations and weight norms into."""

_BY_FOLDING = "onnx::"
"""How torch's legacy exporter names what it folded, before the operator that reads it."""

_LAID_OUT = frozenset(["MatMul", "LSTM", "GRU", "RNN", "PRelu"])
"""Operators for which torch's legacy exporter turns, orders or parts parameters when it folds constants."""

_RESHAPED = frozenset(["Mul", "Add"])
"""Operators for which it gives parameters more dimensions; a vector was computed, as the `1 + weight` of a norm."""

_ALWAYS_LISTED = frozenset(("ai.onnx.preview", "com.microsoft.experimental", "com.microsoft.nchwc", "org.pytorch.aten"))
"""Domains that ONNX Runtime lists in every file that it writes, whether a node is of them or not."""

_OF_A_NODE = re.compile(r"/(?:.*/)?(?!Constant_)[^/]*_output_\d+(?:_weight|_bias)?")
"""How torch's legacy exporter names what nodes compute, and onnxslim what it folded; Constants may be weights."""


def is_of_a_node(name: str) -> bool:
    """Return whether torch's legacy exporter gave a name to what a node computes, not to a parameter."""
    return _OF_A_NODE.fullmatch(name) is not None


def warn_of_made(
    model: ir.Model,
    trained: Sequence[str],
    known: Collection[str],
    warn: Callable[[str], None],
    *,
    is_told: bool,
    is_named: bool,
) -> None:
    """Warn of what is not as the framework had it: an exporter or a program behind it made something else of it.

    Args:
        model: that has the tensors.
        trained: names of what is trained.
        known: names of all real tensors.
        warn: called with a sentence.
        is_told: whether torch's dynamo exporter says what each tensor was.
        is_named: whether what is trained was named.
    """
    if not is_told:
        if not is_named:
            _warn_of_folded(trained, known, warn)
        _warn_of_computed(model.graph, trained, known, warn)
    _warn_of_optimizer(model, trained, warn)
    warn_of_losses(model, trained, warn)


def _warn_of_folded(trained: Sequence[str], known: Collection[str], warn: Callable[[str], None]) -> None:
    """Warn of convolutions that torch's legacy exporter computed a weight for; Keras's all have such names."""
    folded = [name for name in trained if name.startswith(_FOLDED)]
    if folded and not all(name.startswith(ANONYMOUS) for name in known):
        warn(
            f"{quoted(folded, 1)} was computed by the exporter, which folds batch normalizations and weight norms into"
            " convolutions for inference: one weight is trained in place of the convolution's and the norm's, and no"
            " statistics move. To train as torch does, export with training=TrainingMode.TRAINING and"
            " do_constant_folding=False, or by poet_onnx.torch.export."
        )


def _warn_of_computed(
    graph: ir.Graph, trained: Sequence[str], known: Collection[str], warn: Callable[[str], None]
) -> None:
    """Warn of what torch's legacy exporter may have computed of parameters, which are gone; Keras's all look so."""
    folded = [name for name in trained if name.startswith(_BY_FOLDING) and not name.startswith(_FOLDED)]
    readers = {name: name.removeprefix(_BY_FOLDING).rpartition("_")[0] for name in folded}
    vectors = {name for name in folded if len(graph.initializers[name].shape or ()) == 1}
    computed = [
        name
        for name, reader in readers.items()
        if reader and reader not in _LAID_OUT and (reader not in _RESHAPED or name in vectors)
    ]
    if computed and not all(name.startswith(ANONYMOUS) for name in known):
        warn(
            f"What the exporter computed of parameters is trained in their place, in {quoted(computed, 3)}. Where they"
            " were scaled, normed, joined with constants or read elsewhere, too, torch trains otherwise: export with"
            " do_constant_folding=False, or by poet_onnx.torch.export."
        )


def _warn_of_optimizer(model: ir.Model, trained: Collection[str], warn: Callable[[str], None]) -> None:
    """Warn where a file was optimized for inference and something of it is trained.

    Args:
        model: without functions.
        trained: names of its initializers that are trained.
        warn: called with a sentence.
    """
    if trained and (found := _optimized(model, trained)):
        warn(
            f"{found}. What was merged, folded or dropped for inference, such as equal parameters, batch normalizations"
            " and dropout, trains otherwise than in the framework: give the file as it was exported, or check this one"
            " by poet_onnx.torch.verify."
        )


def _optimized(model: ir.Model, trained: Collection[str]) -> str:
    """Return by what a file is known to be optimized, as the beginning of a sentence; empty where nothing tells."""
    lists = _ALWAYS_LISTED & model.opset_imports.keys() - {node.domain for node in model.graph}
    programs = {
        "onnxruntime.transformers": model.producer_name == "onnxruntime.transformers",
        "onnxsim": any(key.startswith("onnxsim.") for key in model.metadata_props),
        "ONNX Runtime": bool(lists),
    }
    for program, has_written in programs.items():
        if has_written:
            return f"{program} optimized this file"
    if not is_of_torch(model):
        return ""
    if computed := sorted(filter(is_of_a_node, trained)):
        return f"Another program than torch computed '{computed[0]}' of parameters"
    if read_words(model) is None and any((node.name or "").startswith("node_") for node in model.graph):
        return "This file has lost what torch's dynamo exporter said of its parameters, as one of onnxslim has"
    return ""
