"""Training artifacts of torch modules made in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from export_models import export_forward, quiet


def make_artifacts(
    folder: Path,
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    *,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    **options: Any,
) -> Path:
    """Export a module, write its artifacts into a folder and return the path of the training graph.

    Args:
        folder: where they go; made if it is not there.
        module: whose parameters are trained where they require gradients.
        inputs: examples by name.
        outputs: names of what the module returns.
        dynamic_axes: as torch.onnx.export takes them.
        options: of generate_artifacts.
    """
    from onnxruntime.training import artifacts

    folder.mkdir(parents=True, exist_ok=True)
    parameters = dict(module.named_parameters())
    with quiet():
        artifacts.generate_artifacts(
            export_forward(module.train(), inputs, outputs, dynamic_axes=dynamic_axes),
            requires_grad=[name for name, parameter in parameters.items() if parameter.requires_grad],
            frozen_params=[name for name, parameter in parameters.items() if not parameter.requires_grad],
            artifact_directory=str(folder),
            **options,
        )
    return folder / "training_model.onnx"
