"""Which batch normalizations of a training graph train, and which are frozen: what the model itself tells, or the user.

Evidence:
    E1. By ONNX's rules a batch normalization has one output exactly if it uses its running statistics. To make
        BatchNormInternal of that, the artifact generator adds the outputs `running_mean_def` and `running_var_def`,
        perhaps with a number; other names are those of a forward model that trains.
    E2. Where other tools have changed the names, the evaluation graph of the same loss tells: the generator changes the
        mode of its batch normalizations, but not the number of their outputs. It is matched by the name of the scale, a
        parameter, or of what is made. Another model, such as one exported for inference, tells nothing.

That momentum is 1, that statistics are inputs, or that scale and bias are not trained is no evidence: torch, too, takes
the batch's statistics then.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.extract import load_model
from poet_onnx.operators import ONNX_DOMAINS
from poet_onnx.passes.frozen_batch_norm import FreezeBatchNorm, batch_norms
from poet_onnx.passes.normalize import InlineFunctions

AUTO, ALL, NONE = "auto", "all", "none"

_ADDED = ("running_mean_def", "running_var_def", "saved_mean_def", "saved_inv_std")
_SHOWN = 3


class SettleBatchNorm(InPlacePass):
    """Freeze the batch normalizations that are frozen in the model that a training graph was generated from.

    Requires a model that is not rewritten. Warns where it cannot be told.
    """

    def __init__(
        self,
        frozen: str = AUTO,
        *,
        forward: Callable[[], ir.Model | None] = lambda: None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Set what is known.

        Args:
            frozen: "auto" looks for evidence; "all", "none", or patterns with commas between them, of names of the
                frozen nodes, of their parameters or of their statistics: then the others train.
            forward: returns the evaluation graph of the same loss, if there is one.
            warn: called with a sentence; default `warnings.warn`.
        """
        super().__init__()
        self._frozen = frozen
        self._forward = forward
        self._warn = warn or warn_user

    def call(self, model: ir.Model) -> PassResult:
        """Decide for each batch normalization, and freeze.

        Raises:
            InputError: if a pattern has no match, or a node cannot be frozen.
        """
        InlineFunctions()(model)
        nodes = list(batch_norms(model))
        if self._frozen == AUTO:
            frozen = self._by_evidence(model, nodes)
        elif self._frozen in (ALL, NONE):
            frozen = nodes if self._frozen == ALL else []
        else:
            frozen = _by_name(nodes, self._frozen)
        return FreezeBatchNorm(node.outputs[0].name or "" for node in frozen)(model)

    def _by_evidence(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        modes = {node: _by_generated_names(node) for node in nodes}
        if None in modes.values():
            forward = self._forward()
            if forward is not None and _same_loss(model, forward):
                known = _by_outputs(forward)
                for node in (node for node, mode in modes.items() if mode is None):
                    modes[node] = next((known[value.name] for value in _matched(node) if value.name in known), None)
        unsure = [node for node, mode in modes.items() if mode is None]
        if unsure:
            shown = ", ".join(repr(node.name or node.outputs[0].name) for node in unsure[:_SHOWN])
            more = f" and {len(unsure) - _SHOWN} more" if len(unsure) > _SHOWN else ""
            self._warn(
                f"The model does not tell whether batch normalization {shown}{more} takes the statistics of the batch "
                "or, as torch does in eval mode, its running ones; it is taken to train: say which are frozen with "
                "--frozen-batch-norm, in Python frozen_batch_norm= (none, all, or patterns of names)."
            )
        return [node for node, mode in modes.items() if mode]


def warn_user(sentence: str) -> None:
    """Warn with a sentence."""
    warnings.warn(sentence, PoetWarning, stacklevel=2)


def model_beside(path: object) -> ir.Model | None:
    """Return the eval_model.onnx in the folder of a training model's file, if there is one that can be used."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    beside = Path(path).with_name("eval_model.onnx")
    try:
        return load_model(beside)
    except InputError:
        return None


def _by_generated_names(node: ir.Node) -> bool | None:
    """Return whether a node is frozen by the names of its outputs (E1); None where these are not the generator's."""
    names = [value.name or "" for value in node.outputs]
    added = [name.startswith(prefix) for name, prefix in zip(names[1:], _ADDED, strict=False)]
    if added[:2] == [True, True]:
        return True
    gradient = f"{names[0]}_grad"  # as the gradient of what is called so is named
    readers = (reader for value in node.outputs[1:] for reader, _ in value.uses())
    kept = added[2:] == [True, True] or any(_reads(reader, gradient) for reader in readers)
    return False if kept and all(names[1:3]) else None


def _reads(node: ir.Node, name: str) -> bool:
    return any(value is not None and value.name == name for value in node.inputs)


def _same_loss(model: ir.Model, forward: ir.Model) -> bool:
    """Return whether an evaluation graph was generated together with a training graph (E2)."""
    return [value.name for value in forward.graph.outputs] == [value.name for value in model.graph.outputs[:1]]


def _by_outputs(forward: ir.Model) -> dict[str, bool]:
    """Return whether a batch normalization of a forward model is frozen, by its scale and its output."""
    modes: dict[str, bool] = {}
    for node in forward.graph:
        if node.op_type == "BatchNormalization" and node.domain in ONNX_DOMAINS:
            frozen = not any(value.name for value in node.outputs[1:])
            modes |= {value.name: frozen for value in _matched(node) if value.name}
    return modes


def _matched(node: ir.Node) -> list[ir.Value]:
    """Return what a batch normalization is matched by: its scale, if that is a parameter, and what it makes."""
    scale = node.inputs[1]
    return [*([scale] if scale is not None and scale.is_graph_input() else []), node.outputs[0]]


def _by_name(nodes: Sequence[ir.Node], patterns: str) -> list[ir.Node]:
    frozen = []
    for pattern in map(str.strip, patterns.split(",")):
        found = [node for node in nodes if any(fnmatchcase(name, pattern) for name in _names(node))]
        if not found:
            raise InputError(
                f"No batch normalization in training, nor a parameter of one, is named {pattern!r}: give auto, all, "
                "none, or patterns such as 'layer1.*', with commas between them."
            )
        frozen += found
    return list(dict.fromkeys(frozen))


def _names(node: ir.Node) -> list[str]:
    return [node.name or "", *(value.name or "" for value in node.inputs[1:5] if value is not None)]
