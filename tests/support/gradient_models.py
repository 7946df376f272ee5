"""The training models' forward graphs with a loss, and what onnxruntime-training makes of the same graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from export_models import export_forward, quiet
from models import RECIPES

from poet_onnx.gradients.losses import add_loss, parse_loss

OURS = {"CrossEntropyLoss": "cross-entropy", "MSELoss": "mse", "L1Loss": "l1"}


@dataclass(frozen=True)
class Pair:
    """One model twice.

    Attributes:
        forward: with its loss, without gradients.
        loss: the loss's name in it.
        parameters: what is trained.
        training: path of onnxruntime-training's training graph.
    """

    forward: ir.Model
    loss: str
    parameters: tuple[str, ...]
    training: Path


def export(name: str) -> tuple[onnx.ModelProto, tuple[str, ...], str]:
    """Return a model of scripts/models.py without a loss, the names of its parameters, and its loss."""
    recipe = RECIPES[name]
    with quiet():
        torch.manual_seed(0)
        module, example = recipe.build(), recipe.inputs(1)
        forward = export_forward(module, example)
    return forward, tuple(name for name, _ in module.named_parameters()), recipe.loss


def make_pair(name: str, folder: Path) -> Pair:
    """Export a model, and let onnxruntime-training make its training graph in a folder."""
    from onnxruntime.training import artifacts

    forward, parameters, loss = export(name)
    with quiet():
        artifacts.generate_artifacts(
            onnx.ModelProto.FromString(forward.SerializeToString()),
            requires_grad=list(parameters),
            loss=artifacts.LossType[loss],
            artifact_directory=str(folder),
        )
    model = ir.from_proto(forward)
    return Pair(model, add_loss(model, parse_loss(OURS[loss])), parameters, folder / "training_model.onnx")
