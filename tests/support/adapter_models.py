"""Small forward models whose weights get adapters, and what torch computes of them by the formula of the adapters."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from export_models import quiet
from torch import Tensor, nn
from torch.nn import functional

Array = npt.NDArray[Any]
Tensors = Mapping[str, Tensor]

VOCABULARY, WIDTH, CLASSES = 11, 8, 3


class Tied(nn.Module):
    """A look-up, two linear layers in a Sequential, a grouped convolution, and a head tied to the look-up."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH + 1), nn.ReLU(), nn.Linear(WIDTH + 1, WIDTH))
        self.mix = nn.Conv2d(WIDTH, WIDTH, (3, 1), padding=(1, 0), groups=2)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return a score for every word at each token."""
        hidden = self.body(self.token(ids))
        mixed = self.mix(hidden.transpose(1, 2).unsqueeze(-1)).squeeze(-1)
        out: Tensor = self.head(mixed.transpose(1, 2))
        return out


IDS = torch.arange(10).reshape(2, 5) * 7 % VOCABULARY


def exported(module: nn.Module, example: Tensor = IDS, **options: Any) -> onnx.ModelProto:
    """Export a module with torch's older exporter, as it stands in evaluation mode."""
    file = io.BytesIO()
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (example,), file, dynamo=False, **{"opset_version": 17, **options})
    return onnx.load_from_string(file.getvalue())


def linear(x: Tensor, weight: Tensor, numbers: Tensors, name: str, scale: float) -> Tensor:
    """Return W x + scale B A x, of PEFT's A and B."""
    return functional.linear(x, weight) + scale * functional.linear(
        functional.linear(x, numbers[f"{name}.lora_A"].T), numbers[f"{name}.lora_B"].T
    )


def convolution(x: Tensor, weight: Tensor, numbers: Tensors, name: str, scale: float, **geometry: Any) -> Tensor:
    """Return what a convolution and its adapter give: A has its geometry, B its groups."""
    groups = geometry.pop("groups", 1)
    low = functional.conv2d(x, numbers[f"{name}.lora_A"], **geometry)
    high = functional.conv2d(low, numbers[f"{name}.lora_B"], groups=groups)
    return functional.conv2d(x, weight, groups=groups, **geometry) + scale * high


def gradients(function: Callable[[Tensors], Tensor], values: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
    """Return a loss and its gradients, in double precision."""
    leaves = {name: torch.tensor(array.astype(np.float64), requires_grad=True) for name, array in values.items()}
    loss = function(leaves)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}


def relative_error(found: Array, expected: Array) -> float:
    """Return the distance of two arrays, divided by the length of the second."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
