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
from functools import cached_property
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.choices import ALL, AUTO, NONE
from poet_onnx.errors import InputError, PoetWarning, quoted
from poet_onnx.graph.extract import load_model
from poet_onnx.graph.extract.artifacts import GRADIENT_SUFFIX
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.frozen_batch_norm import FreezeBatchNorm, batch_norms, frozen_outputs, named
from poet_onnx.passes.normalize import InlineFunctions
from poet_onnx.passes.own_statistics import OwnStatistics, own_names, read_names

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
        twin = _Twins(model, self._forward).find
        OwnStatistics(own_names(nodes, twin))(model)
        if self._frozen == AUTO:
            frozen = self._by_evidence(nodes, twin)
        elif self._frozen in (ALL, NONE):
            frozen = nodes if self._frozen == ALL else []
        else:
            frozen = named(nodes, self._frozen, "batch normalization in training")
        return FreezeBatchNorm(node.outputs[0].name or "" for node in frozen)(model)

    def _by_evidence(self, nodes: Sequence[ir.Node], twin: Callable[[ir.Node], ir.Node | None]) -> list[ir.Node]:
        modes = {node: _by_generated_names(node) for node in nodes}
        for node, mode in modes.items():
            if mode is None and (forward := twin(node)) is not None:
                modes[node] = not any(value.name for value in forward.outputs[1:])
        unsure = [node for node, mode in modes.items() if mode is None]
        if unsure:
            shown = quoted((node.name or node.outputs[0].name for node in unsure), _SHOWN)
            self._warn(
                f"The model does not tell whether batch normalization {shown} takes the statistics of the batch "
                "or, as torch does in eval mode, its running ones; it is taken to train: say which are frozen with "
                "--frozen-batch-norm, in Python frozen_batch_norm= (none, all, or patterns of names)."
            )
        return [node for node, mode in modes.items() if mode]


def settle_alike(original: ir.Model, rewritten: ir.Model) -> None:
    """Do to a model what was done to it before it was rewritten; changes the first model.

    Raises:
        InputError: if the rewritten model was made from another one.
    """
    InlineFunctions()(original)
    OwnStatistics(read_names(rewritten))(original)
    FreezeBatchNorm(frozen_outputs(rewritten))(original)


class _Twins:
    """The batch normalizations of the evaluation graph that was generated together with a training graph (E2)."""

    def __init__(self, model: ir.Model, forward: Callable[[], ir.Model | None]) -> None:
        self._loss = [value.name for value in model.graph.outputs[:1]]
        self._forward = forward

    @cached_property
    def _nodes(self) -> dict[str, ir.Node]:
        forward = self._forward()
        if forward is None or [value.name for value in forward.graph.outputs] != self._loss:
            return {}
        nodes = [node for node in forward.graph if node.op_type == "BatchNormalization" and node.domain in ONNX_DOMAINS]
        return {value.name: node for node in nodes for value in _matched(node) if value.name}

    def find(self, node: ir.Node) -> ir.Node | None:
        """Return a node's counterpart, if there is one; the evaluation graph is loaded when it is first asked for."""
        return next((self._nodes[value.name] for value in _matched(node) if value.name in self._nodes), None)


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
    gradient = f"{names[0]}{GRADIENT_SUFFIX}"  # as the gradient of what is called so is named
    readers = (reader for value in node.outputs[1:] for reader, _ in value.uses())
    kept = added[2:] == [True, True] or any(_reads(reader, gradient) for reader in readers)
    return False if kept and all(names[1:3]) else None


def _reads(node: ir.Node, name: str) -> bool:
    return any(value is not None and value.name == name for value in node.inputs)


def _matched(node: ir.Node) -> list[ir.Value]:
    """Return what a batch normalization is matched by: its scale, if that is a parameter, and what it makes."""
    scale = node.inputs[1]
    return [*([scale] if scale is not None and scale.is_graph_input() else []), node.outputs[0]]
