"""Functions that torch's exporters write with other numbers train with torch's, wherever their inputs are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_options import OPTIONS

import poet_onnx
import poet_onnx.torch

EXPORTERS = pytest.mark.parametrize("exporter", ["dynamo", "legacy"])


class Moved(nn.Module):
    """Moves two inputs by a parameter each, and weighs what a function makes of them."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], shapes: list[torch.Size]) -> None:
        super().__init__()
        self.function = function
        self.moves = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return a sum in which each number has another weight."""
        found = self.function(first + self.moves[0], second + self.moves[1])
        return found.flatten().cumsum(0).sum()


def assert_is_torchs(
    function: Callable[[Tensor, Tensor], Tensor], batch: tuple[Tensor, Tensor], folder: Path, exporter: str
) -> None:
    """Compare the loss and every gradient of a batch that the export did not see."""
    torch.manual_seed(0)
    net = Moved(function, [each.shape for each in batch])
    example = tuple(torch.randn_like(each) for each in batch)
    options = OPTIONS | {"optimizer": "sgd", "exporter": exporter, "loss": "output:output"}
    made = poet_onnx.torch.export(net, example, folder / "net.onnx", **options)
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(1.0))
    loss = session.step([each.numpy() for each in batch])
    expected = net(*batch)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(-session.parameters[name], parameter.grad, rtol=1e-5, atol=1e-6)


Y = torch.tensor([0.0, 0.0, 0.0, 2.0, -2.0, 1.0, -1.0, 1.0, -1.0, 3.0, 1e-30])
X = torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0, 1.0, 1.0, -1.0, -1.0, -4.0, 1e-3])


@EXPORTERS
@pytest.mark.parametrize("function", [torch.atan2, torch.Tensor.arctan2], ids=["function", "method"])
def test_an_angle_is_torchs_on_every_axis(
    function: Callable[[Tensor, Tensor], Tensor], exporter: str, tmp_path: Path
) -> None:
    assert_is_torchs(function, (Y, X), tmp_path, exporter)


@EXPORTERS
def test_an_angle_may_be_of_other_shapes_and_in_place(exporter: str, tmp_path: Path) -> None:
    def function(y: Tensor, x: Tensor) -> Tensor:
        return torch.atan2(y, x) + (y + x).atan2_(x.clone())

    assert_is_torchs(
        function, (torch.tensor([[0.0], [-2.0], [1.0]]), torch.tensor([0.0, -1.0, 3.0])), tmp_path, exporter
    )
