"""Numbers that are taken out of a tensor, which the legacy exporter freezes: torch's sizes are none of them."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_options import OPTIONS

import poet_onnx.torch
from poet_onnx.errors import PoetWarning


def by_mean(x: Tensor, layer: nn.Linear) -> Tensor:
    """Decide by a result."""
    y: Tensor = layer(x)
    return y * 2 if y.mean() > 1 else y  # here


def by_parameter(x: Tensor, layer: nn.Linear) -> Tensor:
    """Decide by what is trained."""
    return layer(x if layer.weight.sum() > 1 else x + 1)  # here


def by_count_of_rows(x: Tensor, layer: nn.Linear) -> Tensor:
    """Decide by how many samples have something."""
    chosen = (x[:, 0] > 0).sum()
    return layer(x) if not chosen else layer(x) * 2  # here


def by_item(x: Tensor, layer: nn.Linear) -> Tensor:
    """Multiply by a Python number of the batch."""
    y: Tensor = layer(x)
    return y * (1.0 + x[:, 0].gt(0).sum().item())  # here


def by_float(x: Tensor, layer: nn.Linear) -> Tensor:
    """Multiply by a float of the batch."""
    y: Tensor = layer(x)
    return y * float(x.argmax())  # here


def by_range(x: Tensor, layer: nn.Linear) -> Tensor:
    """Repeat as often as the batch says."""
    y: Tensor = layer(x)
    for _ in range(x.argmax(1).max()):  # here
        y = y * 0.9
    return y


def by_list(x: Tensor, layer: nn.Linear) -> Tensor:
    """Take samples of which a list is made."""
    y: Tensor = layer(x)
    return y[x[:, :3].argmax(1).tolist()]  # here


def by_sizes(x: Tensor, layer: nn.Linear) -> Tensor:
    """Decide by sizes, in all the ways in which they become tensors."""
    assert x.shape[1] == layer.in_features
    y: Tensor = layer(x) if x.size(0) % 2 == 0 and x.numel() > 3 and len(x) > 1 else x
    half = torch.tensor(y.shape[1]).item() // 2 + int(x.shape[0] / 2)
    return (y if y.shape[0] * y.shape[1] < 100 else y * torch.ones(()) * 2) * half


class Deciding(nn.Module):
    """Decides in a function."""

    def __init__(self, function: Callable[[Tensor, nn.Linear], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 5), function

    def forward(self, x: Tensor) -> Tensor:
        """Call it, as often as a layer is there."""
        return self.function(x, self.layer) + self.function(x, self.layer)


@pytest.mark.parametrize("function", [by_mean, by_parameter, by_count_of_rows, by_item, by_float, by_range, by_list])
def test_a_frozen_number_is_warned_of_once_by_its_place(
    function: Callable[[Tensor, nn.Linear], Tensor], tmp_path: Path
) -> None:
    lines, first = inspect.getsourcelines(function)
    place = f"{Path(__file__).name}:{first + next(n for n, line in enumerate(lines) if '# here' in line)}"
    with pytest.warns(PoetWarning, match=rf"stays as it was for the example batch: .*/{place}\.$") as caught:
        poet_onnx.torch.export(Deciding(function), torch.randn(4, 6), tmp_path / "net.onnx", **OPTIONS)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_a_branch_by_sizes_is_not(exporter: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = {**OPTIONS, "exporter": exporter}
        poet_onnx.torch.export(Deciding(by_sizes), torch.randn(4, 6), tmp_path / "net.onnx", **options)


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize(("draw", "generator"), [(random.random, "random"), (np.random.rand, r"numpy\.random")])
def test_what_python_or_numpy_draws_is_warned_of(
    tmp_path: Path, exporter: str, draw: Callable[[], float], generator: str
) -> None:
    class Dropping(nn.Linear):
        """Skips itself by a draw of Python's."""

        def forward(self, x: Tensor) -> Tensor:
            """Compute, or not."""
            return x if draw() < 0.0 else super().forward(x)

    options = {**OPTIONS, "exporter": exporter}
    with pytest.warns(PoetWarning, match=f"^The module draws from {generator}, and what it drew for the example"):
        poet_onnx.torch.export(Dropping(4, 4), torch.randn(8, 4), tmp_path / "net.onnx", **options)


def test_a_branch_by_a_number_that_torch_draws_is_warned_of(tmp_path: Path) -> None:
    class Dropping(nn.Linear):
        """Skips itself by a draw of torch's, as layers of transformers do."""

        def forward(self, x: Tensor) -> Tensor:
            """Compute, or not."""
            return x if torch.rand([]) < 0.0 else super().forward(x)

    with pytest.warns(PoetWarning, match="stays as it was for the example batch"):
        poet_onnx.torch.export(Dropping(4, 4), torch.randn(8, 4), tmp_path / "net.onnx", **OPTIONS)
