"""Torch modules with batch normalizations in eval mode, exported as users export them, and trained as torch does."""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from convolutional_nets import BasicBlock
from export_models import quiet
from torch import Tensor, nn

CLASSES = 5
RATE = 0.1
Batch = tuple[Tensor, Tensor]


class Repeated(nn.Module):
    """A random stack of convolutions, normalizations and residual blocks."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        channels = 3
        for _ in range(rng.randint(2, 4)):
            width = rng.choice((4, 6, 8))
            if rng.random() < 0.5:
                layers.append(BasicBlock(channels, width, rng.choice((1, 2))))
            else:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.Tanh()]
            channels = width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))
        prepare(self, seed)
        for norm in norms(self):
            norm.train(rng.random() < 0.4)
            norm.weight.requires_grad_(rng.random() < 0.6)
            norm.bias.requires_grad_(rng.random() < 0.6)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the scores."""
        scores: Tensor = self.layers(x)
        return scores


def norms(module: nn.Module) -> list[nn.BatchNorm2d]:
    """Return the batch normalizations of a module."""
    return [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]


def small_net(**options: object) -> nn.Sequential:
    """Return two batch normalizations between convolutions, with statistics as if trained before."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, **options), nn.ReLU()),
        *(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, momentum=0.3, **options), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)),
    )
    prepare(net, 0)
    return net


def freeze_norms(module: nn.Module) -> None:
    """Put the batch normalizations of a module in training into eval mode.

    Of a module that is in eval mode altogether, torch's exporter merges parameters of equal values.
    """
    for norm in norms(module):
        norm.eval()


def prepare(module: nn.Module, seed: int) -> None:
    """Give a module's normalizations random scales and statistics, as if it had been trained before."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for norm in norms(module):
            if norm.affine:
                norm.weight.copy_(0.5 + torch.rand(norm.num_features, generator=generator))
            if norm.track_running_stats:
                norm.running_mean.copy_(0.1 * torch.randn(norm.num_features, generator=generator))
                norm.running_var.copy_(0.5 + torch.rand(norm.num_features, generator=generator))


def export_frozen(module: nn.Module, x: Tensor, folder: Path, *, keep_statistics: bool = True, opset: int = 15) -> Path:
    """Export a module in the mode that each of its layers is in, and return the path of its training model.

    Args:
        module: the parameters that require a gradient are trained.
        x: an example batch.
        folder: for the artifacts; made here.
        keep_statistics: undo the step by which the exporter moves running statistics.
        opset: of ONNX.
    """
    from onnxruntime.training import artifacts

    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    buffer = io.BytesIO()
    folder.mkdir(exist_ok=True)
    parameters = dict(module.named_parameters())
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (x,),
            buffer,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            opset_version=opset,
            input_names=["input"],
            output_names=["output"],
        )
        module.load_state_dict(before)
        forward = onnx.load_model_from_string(buffer.getvalue())
        for tensor in forward.graph.initializer if keep_statistics else ():
            if tensor.name in before:
                tensor.CopyFrom(onnx.numpy_helper.from_array(before[tensor.name].numpy(), tensor.name))
        artifacts.generate_artifacts(
            forward,
            requires_grad=[name for name, parameter in parameters.items() if parameter.requires_grad],
            frozen_params=[name for name, parameter in parameters.items() if not parameter.requires_grad],
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=str(folder),
        )
    return folder / "training_model.onnx"


def batches(x: Sequence[int], count: int, classes: int = CLASSES) -> list[Batch]:
    """Return random batches, always the same."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(x, generator=generator), torch.randint(classes, (x[0],), generator=generator))
        for _ in range(count)
    ]


def train_torch(module: nn.Module, data: Sequence[Batch]) -> list[float]:
    """Train with SGD and return the losses."""
    optimizer = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], lr=RATE)
    losses = []
    for images, labels in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def arrays(data: Sequence[Batch]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return batches as arrays."""
    return [(images.numpy(), labels.numpy()) for images, labels in data]
