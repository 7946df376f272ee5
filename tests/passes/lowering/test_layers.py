"""What the gradient builder makes of torch's layers and functions: each one's gradient, lowered, is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from export_models import export, quiet
from lowering_results import payload
from lowering_runs import AFTER, Arrays, run_on_stock, run_step
from models import Recipe, images
from stock_environment import NEEDS_STOCK
from torch import Tensor, nn
from torch.nn import functional

from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.lowering import prepare
from poet_onnx.runtime.feeds import random_feeds

GRADIENT_ERROR = 2e-5
"""Largest relative L2 difference of a gradient."""

LAYERS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu6": functional.relu6,
    "leaky relu": functional.leaky_relu,
    "gelu": functional.gelu,
    "fast gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "hardtanh": functional.hardtanh,
    "softsign": functional.softsign,
    "log sigmoid": functional.logsigmoid,
    "softshrink": functional.softshrink,
    "glu": lambda x: functional.glu(x, 1),
    "softmax": lambda x: torch.softmax(x, 1),
    "log softmax": lambda x: torch.log_softmax(x, 1),
    "layer norm": lambda x: functional.layer_norm(x, (8, 8)) * x,
    "dropout": lambda x: functional.dropout(x, 0.3),
    "max pool": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "average pool": lambda x: functional.avg_pool2d(x, 2),
    "global average": lambda x: functional.adaptive_avg_pool2d(x, 1),
    "global maximum": lambda x: functional.adaptive_max_pool2d(x, 1),
    "slice": lambda x: x[:, 1:7:2, ::2],
    "split and concat": lambda x: torch.cat([part * part for part in x.split(3, 1)], 1),
    "expand": lambda x: x.mean(1, keepdim=True).expand(-1, 4, -1, -1),
    "tile": lambda x: x.repeat(1, 2, 1, 1),
    "gather": lambda x: x[:, torch.tensor([1, 3, 1])],
    "top k": lambda x: x.topk(2, 1)[0],
    "pad": lambda x: functional.pad(x, (1, 2, 0, 1)).square().mean((2, 3)),
    "sum": lambda x: x.sum(2),
    "variance": lambda x: x.var(1),
    "clip": lambda x: x.clamp(-0.5, 0.5),
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "minimum": lambda x: torch.minimum(x, x * 2),
    "power": lambda x: (x * x + 1).pow(1.5),
    "square root": lambda x: (x * x + 1).sqrt(),
    "exponential": torch.exp,
    "logarithm": lambda x: (x * x + 1).log(),
    "division": lambda x: x / (x * x + 1),
    "absolute value": torch.abs,
    "sine": torch.sin,
    "cosine": torch.cos,
    "error function": torch.erf,
    "matrix product": lambda x: x @ x.transpose(-1, -2),
}


class Everything(nn.Module):
    """Every layer side by side, each with a scale of its own: whose gradient is the layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.scales = nn.ParameterList([torch.linspace(0.5, 1.5, 8).reshape(8, 1, 1) for _ in LAYERS])
        with torch.no_grad():
            self.last = nn.Linear(self._features(torch.zeros(1, 3, 8, 8)).shape[1], 10)

    def _features(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        made = [layer(x * scale) for layer, scale in zip(LAYERS.values(), self.scales, strict=True)]
        return torch.cat([y.flatten(1) for y in made], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the scores."""
        y: Tensor = self.last(self._features(x))
        return y


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the training graph of `Everything`."""
    folder = tmp_path_factory.mktemp("everything")
    with quiet():
        export(Recipe(Everything, lambda batch: images(8, batch)), folder, batch=2)
    return folder / "training_model.onnx"


def step(path: Path, target: str) -> tuple[bytes, Arrays]:
    """Return a step of the graph as a model for a runtime, and its feeds."""
    model = load_model(path)
    prepare(target=target)(model)
    original = load_model(path)
    prepare(target="training")(original)
    feeds = random_feeds(extract(original), 0)
    return payload(model), {name: np.ones_like(x) if x.dtype == np.bool_ else x for name, x in feeds.items()}


def compare(right: Arrays, found: Arrays) -> None:
    gradients = {name: array for name, array in right.items() if name.startswith(f"{AFTER}scales.") and "_grad" in name}
    assert len(gradients) == len(LAYERS)
    errors = {}
    for name, array in gradients.items():
        layer = list(LAYERS)[int(name.split(".")[1].split("_")[0])]
        errors[layer] = np.linalg.norm(array.astype(np.float64) - found[name]) / np.linalg.norm(array)
    assert {layer: error for layer, error in errors.items() if not error <= GRADIENT_ERROR} == {}


@pytest.mark.deep
def test_every_layer_has_its_gradient(everything: Path) -> None:
    compare(run_step(*step(everything, "training")), run_step(*step(everything, "stock")))


@NEEDS_STOCK
def test_every_layer_has_its_gradient_on_the_stock_runtime(everything: Path, tmp_path: Path) -> None:
    lowered = run_on_stock(tmp_path, [("everything", *step(everything, "stock"))])
    compare(run_step(*step(everything, "training")), lowered["everything"])
