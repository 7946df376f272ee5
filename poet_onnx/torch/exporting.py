"""From a torch module to the files that train it, in one call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.gradients.losses import parse_loss
from poet_onnx.gradients.parameters import as_patterns, matches
from poet_onnx.options import read
from poet_onnx.rewriting.options import RewriteOptions
from poet_onnx.rewriting.request import Request
from poet_onnx.rewriting.rewrite import RewriteResult, rewrite
from poet_onnx.torch.choosing import chosen_parameters
from poet_onnx.torch.hooks import warn_of_hooks
from poet_onnx.torch.layers import check_layers
from poet_onnx.torch.tracing import frozen_batch_norm, trace
from poet_onnx.torch.verifying import TorchReport, check_export

if TYPE_CHECKING:
    from torch import Tensor, nn

_OF_LOSS = ("ignore_index", "label_smoothing", "class_weights")
"""Arguments of `rewrite` that say more of the loss."""


@dataclass(frozen=True)
class Exported:
    """A module's training step, written to files.

    Attributes:
        model: path of the rewritten training graph.
        parameters: path of the parameters' values.
        evaluation: path of the evaluation graph.
        forward: the forward model that they were made of.
        result: what was planned and written.
        check: what the check against torch found; None where nothing was checked.
    """

    model: Path
    parameters: Path
    evaluation: Path
    forward: ir.Model
    result: RewriteResult
    check: TorchReport | None = None


def export(
    module: nn.Module,
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    loss: str = "cross-entropy",
    exporter: str = "dynamo",
    opset: int | None = None,
    train: str | Sequence[str] | None = None,
    freeze: str | Sequence[str] = (),
    replace: bool = True,
    check: bool = True,
    example_labels: Tensor | Sequence[Tensor] | None = None,
    **options: Any,
) -> Exported:
    """Export a module, make its training graph, rewrite that for a device, and write it with its parameters.

    The module stays as it is: its modes, its running statistics, torch's random state. Layers in training mode train;
    those in eval mode keep to their running statistics and drop nothing, but their weights are trained, as in torch.
    Parameters that require no gradient are frozen. Names are those of `state_dict`.

    Before it is rewritten, the training graph is run beside torch, on the example batch and near it: loss, gradients,
    buffers and the optimizer's update must be torch's, within what torch's own single precision is off from double.
    Both sides run without dropout. That takes two steps of torch in each precision, and memory for two copies of the
    module, one of them in double precision.

    Args:
        module: on any device of torch.
        example_inputs: one batch of the size to train with: a tensor, a sequence of arguments, or a mapping of keyword
            arguments. Sizes are fixed to its own; what is no tensor is the same in every step.
        path: of the rewritten model. As `rewrite` does, `net.onnx` gets `net.safetensors` and `net.eval.onnx` beside.
        loss: as for `train_graph`. An output has the name that the module gives it in a dictionary; otherwise the only
            one is "output", and of several the first "output_0".
        exporter: "dynamo", which needs onnxscript, or "legacy", the one of TorchScript.
        opset: of ONNX; default 18 for dynamo, 17 for legacy.
        train: patterns of names of the parameters that are trained, of those that require a gradient; default all, and
            none where there are adapters (`lora=`).
        freeze: patterns of names of those that are not; such weights get no adapters, either.
        replace: whether files of these names may be replaced.
        check: whether to compare with torch.
        example_labels: labels and targets of the batch for that, in the order of the loss; default random ones.
        options: the other keyword arguments of `rewrite`, such as device, ram_budget and target.

    Raises:
        InputError: if the module cannot be exported or differentiated, or an argument cannot be used.
        InfeasibleError: if no plan keeps to the limits.
        LimitReachedError: if the time limit came before any plan was found.
        CheckFailedError: if the training graph does not compute what torch does, or a check of ours did not hold.
    """
    adapted = options.get("lora") is not None
    chosen = chosen_parameters(module, train, freeze, adapted=adapted)
    request = Request.of(read(RewriteOptions, "export", {"loss": loss, **options}))
    asked = request.options
    check_layers(module)
    forward = trace(module, example_inputs, exporter=exporter, opset=opset, adapted=adapted)
    patterns: dict[str, Any] = {"train": [escape(name) for name in _written(forward, chosen)]}
    if adapted:
        unwanted = as_patterns(freeze)
        patterns["freeze"] = [escape(name) for name in forward.graph.initializers if matches(name, unwanted)]
    report: TorchReport | None = None
    if check:
        given = {name: getattr(asked, name) for name in _OF_LOSS}
        updates = request.optimizer.updates
        report = check_export(
            module,
            example_inputs,
            forward,
            chosen,
            loss=parse_loss(loss, **given),
            example_labels=example_labels,
            target=asked.target,
            optimizer="adamw" if updates is None else updates.optimizer,
            groups=() if updates is None else updates.groups,
            gradients={"loss": loss, **given, "lora": asked.lora, **patterns},
        )
    warn_of_hooks(module, stacklevel=2)
    result = rewrite(
        forward,
        loss=loss,
        **patterns,
        frozen_batch_norm=frozen_batch_norm(forward),
        **options,
    )
    model, parameters, evaluation, *_ = result.save(path, replace=replace)
    return Exported(model, parameters, evaluation, forward, result, report)


def _written(forward: ir.Model, names: Sequence[str]) -> list[str]:
    """Return the parameters that the exporter wrote; warn of those that the outputs do not need."""
    initializers = forward.graph.initializers
    written = [name for name in names if name in initializers]
    absent = ", ".join(repr(name) for name in names if name not in initializers)
    if absent and not written:
        raise InputError(f"No output depends on {absent}: train others.")
    if absent:
        warnings.warn(f"No output depends on {absent}: not trained.", PoetWarning, stacklevel=3)
    return written
