"""Check a training graph against the torch module that it was made of."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from poet_onnx.adapters.lora import ADAPTERS_KEY
from poet_onnx.adapters.reading import as_lora
from poet_onnx.description.groups import ParameterGroup
from poet_onnx.description.names import NETWORK_KEY
from poet_onnx.errors import CheckFailedError, InputError, PoetWarning
from poet_onnx.files.model_file import files_beside
from poet_onnx.gradients.class_weights import ClassWeights
from poet_onnx.gradients.forward.random_masks import masks_as_dropout
from poet_onnx.gradients.losses import Loss, parse_loss
from poet_onnx.gradients.train_graph import train_graph
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.lowering import prepare
from poet_onnx.runtime import installed_runtime
from poet_onnx.torch.calm import calm_graph
from poet_onnx.torch.choosing import chosen_parameters
from poet_onnx.torch.comparing import Comparison
from poet_onnx.torch.objective import Objective
from poet_onnx.torch.tracing import frozen_batch_norm
from poet_onnx.torch.trained import Trained

if TYPE_CHECKING:
    from torch import Tensor, nn

_SHOWN = 3
"""Problems that an error quotes."""

_HARDLY_A_LOSS = 1e-6
"""Below it a loss of numbers of single precision may be nothing but their rounding."""


@dataclass(frozen=True)
class TorchReport:
    """What a check against torch found.

    Attributes:
        passed: loss, gradients, buffers and updates are torch's.
        problems: what is not, a sentence each.
        differences: known ones that are no mistake, a sentence each.
        left_out: what was not compared, a sentence each.
        runtime: distribution and version of the ONNX Runtime that ran the training graph.
        loss: of the training graph.
        torch_loss: of torch, for the same batch.
        gradient_errors: by parameter, how far its gradient is from torch's, relative to the largest element.
        at_points: parameters whose gradients differ at some points and not at others, as kinks make them.
        optimizer: whose updates were compared with torch's; empty if none were.
    """

    passed: bool
    problems: tuple[str, ...]
    differences: tuple[str, ...]
    left_out: tuple[str, ...]
    runtime: str
    loss: float
    torch_loss: float
    gradient_errors: dict[str, float]
    at_points: tuple[str, ...]
    optimizer: str

    def __str__(self) -> str:
        """Return it in sentences."""
        return " ".join((*(self.problems or (self._agreement,)), *self.differences, *self.left_out))

    @property
    def _agreement(self) -> str:
        worst = max(self.gradient_errors.values(), default=0.0)
        count = len(self.gradient_errors)
        others = f"Buffers and the update by {self.optimizer}" if self.optimizer else "Buffers"
        return (
            f"The loss is {self.loss:.6g}, {self.torch_loss:.6g} in torch. The gradients of {count} parameters are"
            f" torch's: the largest error is {worst:.1e} of a gradient's largest element. {others} are, too."
        )


def verify(
    module: nn.Module,
    files: str | os.PathLike[str],
    example_inputs: Any,
    *,
    loss: str = "cross-entropy",
    example_labels: Tensor | Sequence[Tensor] | None = None,
    train: str | Sequence[str] | None = None,
    freeze: str | Sequence[str] = (),
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    class_weights: ClassWeights | None = None,
    parameters: str | os.PathLike[str] | None = None,
    page_dir: str | os.PathLike[str] | None = None,
) -> TorchReport:
    """Check files that train a module against torch: loss, gradients, buffers and the optimizer's update.

    The module stays as it is. It takes the numbers of the files where those have other ones.

    Args:
        module: that was exported, by whatever means.
        files: path of the training graph, rewritten or not.
        example_inputs: one batch, as for `export`.
        loss: that the files were made with.
        example_labels: labels and targets of the batch, in the order of the loss; default random ones.
        train: as the files were made; default all, and none besides adapters.
        freeze: as the files were made.
        ignore_index: as the files were made.
        label_smoothing: as the files were made.
        class_weights: as the files were made.
        parameters: their file; default the one that `rewrite` or `train_graph` writes beside.
        page_dir: as for `TrainingSession`.

    Raises:
        InputError: if the files cannot be run here, or draw random numbers.
        CheckFailedError: if torch cannot run a step.
    """
    wanted = parse_loss(loss, ignore_index=ignore_index, label_smoothing=label_smoothing, class_weights=class_weights)
    path = Path(files)
    model = as_model(path)
    chosen = chosen_parameters(module, train, freeze, adapted=ADAPTERS_KEY in model.metadata_props)
    comparison = Comparison(module, example_inputs, Objective(wanted, example_labels), chosen)
    source = _beside(path) if parameters is None else Path(parameters)
    folder = None if page_dir is None else os.fspath(page_dir)

    def make(gradient_scale: float, parameter_scale: float) -> Trained:
        scales = (gradient_scale, parameter_scale)
        return Trained(path, model.metadata_props, source, kind="adamw", page_dir=folder, scales=scales)

    _check_draws(comparison, module)
    if comparison.dropped:  # files that drop cannot be compared: these do not
        comparison.found.problems["dropout"] = (
            f"{type(module).__name__} drops numbers in torch (p={comparison.dropped[0].ratio:g} in"
            f" {comparison.dropped[0]}), and the files drop nothing."
        )
    comparison.run(make)
    return _report(comparison)


def check_export(
    module: nn.Module,
    example_inputs: Any,
    forward: ir.Model,
    chosen: Sequence[str],
    *,
    loss: Loss,
    example_labels: Any,
    target: str,
    optimizer: str,
    groups: Sequence[ParameterGroup],
    gradients: dict[str, Any],
) -> TorchReport | None:
    """Check what is about to be rewritten; return None, with a warning, where it cannot be run here.

    Dropout and random numbers are taken out of both sides.

    Args:
        module: that was exported.
        example_inputs: one batch.
        forward: the model that was traced.
        chosen: names of the parameters that are to be trained.
        loss: what is minimized.
        example_labels: labels and targets of the batch; None for random ones.
        target: runtime that will run the model.
        optimizer: its kind.
        groups: of parameters, with numbers of their own.
        gradients: the arguments of `train_graph`.

    Raises:
        CheckFailedError: if something is not as in torch.
    """
    comparison = Comparison(module, example_inputs, Objective(loss, example_labels), chosen)
    calm = forward.clone()
    taken_out = calm_graph(calm)
    lora = gradients["lora"]
    asked = None if lora is None else as_lora(lora)
    if asked is not None and asked.dropout:
        taken_out = (*taken_out, "dropout of adapters")
        asked = replace(asked, dropout=0.0)
    if taken_out:
        comparison.found.left_out.append(f"Random numbers ({', '.join(taken_out)}) were taken out on both sides.")
    masked = forward.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoetWarning)  # `rewrite` says the same
        gradients = {**gradients, "lora": asked, "frozen_batch_norm": frozen_batch_norm(forward)}
        made = train_graph(calm, **gradients)
        evaluation = made.evaluation
        if masks_as_dropout(masked):  # evaluation has no draws, where training has fixed ones
            calm_graph(masked)
            evaluation = train_graph(masked, **gradients).evaluation
            del evaluation.metadata_props[NETWORK_KEY]  # it is of another one on purpose
    try:
        runtime = installed_runtime()
        _check_draws(comparison, module)
        training = made.training.clone()
        prepare(target="training" if runtime.has_training and target == "training" else "stock")(training)

        def make(gradient_scale: float, parameter_scale: float) -> Trained:
            scales = (gradient_scale, parameter_scale)
            return Trained(
                training,
                {},
                made.values,
                kind=optimizer,
                groups=groups,
                adapters=made.adapters,
                scales=scales,
                evaluation=evaluation,
            )

        comparison.run(make)
    except InputError as error:
        warnings.warn(f"Nothing was checked against torch: {error}", PoetWarning, stacklevel=3)
        return None
    report = _report(comparison)
    if not report.passed:
        more = len(report.problems) - _SHOWN
        is_rounding = abs(report.loss) < _HARDLY_A_LOSS
        labels = " The loss hardly differs from 0, which leaves rounding to compare: give example_labels." * is_rounding
        raise CheckFailedError(
            f"What {type(module).__name__} computes in torch would not train: {' '.join(report.problems[:_SHOWN])}"
            f"{f' There are {more} more.' if more > 0 else ''}{labels} Give check=False to export it all the same."
        )
    for sentence in comparison.found.warnings:
        warnings.warn(sentence, PoetWarning, stacklevel=3)
    return report


def _beside(path: Path) -> Path:
    """Return the file of a training graph's parameters."""
    found = [each for each in (files_beside(path)[0], path.with_name("parameters.safetensors")) if each.exists()]
    if not found:
        raise InputError(f"There is no {files_beside(path)[0].name} beside {path}: give parameters.")
    return found[0]


def _check_draws(comparison: Comparison, module: nn.Module) -> None:
    if comparison.first.draws:
        raise InputError(
            f"{type(module).__name__} draws random numbers other than rand, randn and dropout, which torch and ONNX"
            " Runtime draw differently."
        )


def _report(comparison: Comparison) -> TorchReport:
    found, runtime = comparison.found, installed_runtime()
    return TorchReport(
        passed=not found.problems,
        problems=tuple(found.problems.values()),
        differences=(*found.differences.values(), *found.warnings),
        left_out=tuple(found.left_out),
        runtime=f"{runtime.distribution} {runtime.version}",
        loss=found.loss[0],
        torch_loss=found.loss[1],
        gradient_errors=found.errors,
        at_points=found.at_points,
        optimizer=found.optimizer,
    )
