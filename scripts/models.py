"""Training models for examples, tests and benchmarks: torch modules with random weights, nothing downloaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from attention_nets import Bert, Gpt, Vit
from convolutional_nets import UNet, densenet, inception, mobilenet, resnet18, resnet50, vgg16
from torch import Tensor, nn


@dataclass(frozen=True)
class Recipe:
    """How to build and export a model.

    Attributes:
        build: makes the module, in the mode that it is trained in.
        inputs: example inputs by name, for a batch size.
        loss: the name of an `onnxruntime.training.artifacts.LossType`.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]
    loss: str = "CrossEntropyLoss"


def images(size: int, batch: int) -> dict[str, Tensor]:
    """Return a batch of square RGB images of `size` pixels."""
    return {"input": torch.randn(batch, 3, size, size)}


def tokens(length: int, vocabulary: int, batch: int) -> dict[str, Tensor]:
    """Return a batch of token sequences and their attention mask."""
    return {
        "input_ids": torch.randint(vocabulary, (batch, length)),
        "attention_mask": torch.ones(batch, length, dtype=torch.int64),
    }


def features(size: int, batch: int) -> dict[str, Tensor]:
    """Return a batch of feature vectors."""
    return {"input": torch.randn(batch, size)}


def _bert(
    depth: int, width: int, heads: int, *, vocabulary: int = 30522, dropout: float = 0.0, length: int = 128
) -> Recipe:
    build = functools.partial(Bert, depth, width, heads, vocabulary=vocabulary, dropout=dropout)
    return Recipe(build, functools.partial(tokens, length, vocabulary))


def sequences(length: int, vocabulary: int, batch: int) -> dict[str, Tensor]:
    """Return a batch of token sequences."""
    return {"input_ids": torch.randint(vocabulary, (batch, length))}


def mlp(outputs: int) -> nn.Module:
    """Return a small perceptron with the activations that nets use."""
    layers: list[nn.Module] = [nn.Linear(32, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 48)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Linear(48, outputs))


RECIPES: dict[str, Recipe] = {
    "resnet18": Recipe(resnet18, functools.partial(images, 32)),
    "resnet50": Recipe(resnet50, functools.partial(images, 224)),
    "vgg16": Recipe(functools.partial(vgg16, 10, 32), functools.partial(images, 32)),
    "vgg16-224": Recipe(functools.partial(vgg16, 1000, 224), functools.partial(images, 224)),
    "bert-2": _bert(2, 128, 2),
    "bert-base": _bert(12, 768, 12),
    "transformer": _bert(2, 64, 4, vocabulary=1000, dropout=0.1, length=32),
    "mobilenet": Recipe(mobilenet, functools.partial(images, 32)),
    "unet": Recipe(UNet, functools.partial(images, 32)),
    "densenet": Recipe(densenet, functools.partial(images, 32)),
    "inception": Recipe(inception, functools.partial(images, 32)),
    "gpt": Recipe(functools.partial(Gpt, 3, 64, 4, vocabulary=500, length=32), functools.partial(sequences, 32, 500)),
    "vit": Recipe(functools.partial(Vit, 3, 64, 4, size=32, patch=4), functools.partial(images, 32)),
    "mlp-mse": Recipe(functools.partial(mlp, 8), functools.partial(features, 32), loss="MSELoss"),
    "mlp-bce": Recipe(functools.partial(mlp, 1), functools.partial(features, 32), loss="BCEWithLogitsLoss"),
    "mlp-l1": Recipe(functools.partial(mlp, 8), functools.partial(features, 32), loss="L1Loss"),
}
