"""Train an exported module beside torch, and say how far apart they are.

The stock runtime's interpreter runs this file as a script: `python torch_training.py STEPS FOLDER...` trains what is in
each folder, and writes losses and first gradients into it.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import poet_onnx

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_networks.catalogue import Inputs, Network

RATE = 0.05
MODEL, PARAMETERS, BATCH, FOUND = "net.onnx", "net.safetensors", "batch.npz", "found.npz"
FLOOR = 0.01
"""A gradient with less than this share of the norm of all, such as a bias's, is measured by that share."""


@dataclass(frozen=True)
class Comparison:
    """How far an exported step is from torch.

    Attributes:
        gradient_error: of the first step, relative to torch's in double precision; the worst parameter's.
        loss_error: relative to torch's in single precision; the worst step's.
        losses: of the steps.
    """

    gradient_error: float
    loss_error: float
    losses: tuple[float, ...]


def prepare(folder: Path, network: Network, **options: Any) -> tuple[nn.Module, Inputs, Tensor | None]:
    """Export a network into a folder, with one batch; return the module and the batch."""
    import torch

    import poet_onnx.torch

    torch.manual_seed(0)
    module, inputs = network.build(), network.inputs()
    labels = network.labels() if network.labels is not None else None
    given = {"device": "a72", "target": "stock", "optimizer": "none"} | options
    poet_onnx.torch.export(module, inputs, folder / MODEL, loss=network.loss, **given)
    every = [*_tensors(inputs), *([] if labels is None else [labels])]
    np.savez(folder / BATCH, *(tensor.numpy() for tensor in every))
    return module, inputs, labels


def train(folder: Path, steps: int) -> None:
    """Train what is in a folder."""
    session = poet_onnx.TrainingSession(
        folder / MODEL, folder / PARAMETERS, optimizer=poet_onnx.SGD(RATE), keep_gradients=True, page_dir=folder
    )
    with np.load(folder / BATCH) as arrays:
        batch = dict(zip((wanted.name for wanted in session.data_inputs), arrays.values(), strict=True))
    losses = [session.step(batch)]
    gradients = {name: gradient.copy() for name, gradient in session.gradients.items()}
    losses += [session.step(batch) for _ in range(steps - 1)]
    np.savez(folder / FOUND, losses=losses, **{f"gradient:{name}": array for name, array in gradients.items()})


def train_on_stock(folders: Sequence[Path], steps: int) -> None:
    """Train what is in each folder on the stock runtime."""
    command = [os.environ["POET_STOCK_PYTHON"], __file__, str(steps), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def compare(folder: Path, network: Network, module: nn.Module, inputs: Inputs, labels: Tensor | None) -> Comparison:
    """Train a module in torch, and compare."""
    import torch

    found = dict(np.load(folder / FOUND))
    losses = tuple(float(loss) for loss in found.pop("losses"))
    double = copy.deepcopy(module).double()
    tensors = [_double(each) for each in _tensors(inputs)]
    wide = dict(zip(inputs, tensors, strict=True)) if isinstance(inputs, Mapping) else tensors
    network.value(double, wide, labels if labels is None else _double(labels)).backward()
    exact = {name: each.grad.numpy() for name, each in double.named_parameters() if each.grad is not None}
    least = FLOOR * np.sqrt(sum(np.square(gradient).sum() for gradient in exact.values()))
    errors = [
        np.linalg.norm(found.get(f"gradient:{name}", 0.0) - gradient) / max(np.linalg.norm(gradient), least)
        for name, gradient in exact.items()
    ]
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    theirs = []
    for _ in losses:
        optimizer.zero_grad()
        loss = network.value(module, inputs, labels)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    apart = max(abs(ours - right) / abs(right) for ours, right in zip(losses, theirs, strict=True))
    return Comparison(float(max(errors)), apart, losses)


def _tensors(inputs: Inputs) -> list[Tensor]:
    return list(inputs.values() if isinstance(inputs, Mapping) else inputs)


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(Path(name), int(sys.argv[1]))
