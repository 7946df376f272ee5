"""Where the slope of a function has no bound, gradients are numbers, and torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from deep import sampled
from torch import Tensor, nn
from torch.nn import functional
from torch_options import OPTIONS

import poet_onnx
import poet_onnx.torch


class Shifted(nn.Module):
    """Adds a bias, of which a function is taken."""

    def __init__(self, function: Callable[..., Tensor], bias: float) -> None:
        super().__init__()
        self.function, self.bias = function, nn.Parameter(torch.full((4,), bias))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the function makes of the first input and the others."""
        return self.function(inputs[0] + self.bias, *inputs[1:])


def compared(net: nn.Module, batch: tuple[Tensor, ...], folder: Path, exporter: str) -> tuple[float, Tensor, Tensor]:
    """Return the loss, and the bias's gradient here and in torch."""
    options = OPTIONS | {"optimizer": "sgd", "exporter": exporter, "loss": "output:output", "check": False}
    made = poet_onnx.torch.export(net, batch, folder / "net.onnx", **options)
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(1.0))
    before = session.parameters["bias"].copy()
    names = [each.name for each in session.data_inputs]
    loss = session.step(dict(zip(names, (each.numpy() for each in batch), strict=True)))
    net(*batch).backward()
    gradient = net.get_parameter("bias").grad
    assert gradient is not None
    return loss, torch.tensor(before - session.parameters["bias"]), gradient


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "deviation": lambda x: x.std(1).sum(),
    "deviation of all": lambda x: x.std(1, correction=0).sum(),
    "norm": lambda x: torch.norm(x, dim=1).sum(),
    "norm of cubes": lambda x: torch.norm(x, p=3, dim=1).sum(),
}


@pytest.mark.parametrize(
    ("name", "exporter"),
    sampled(
        [(name, exporter) for name in FUNCTIONS for exporter in ("dynamo", "legacy")],
        ("deviation", "dynamo"),
        ("norm of cubes", "legacy"),
    ),
)
def test_what_does_not_vary_has_no_gradient(name: str, exporter: str, tmp_path: Path) -> None:
    _, found, expected = compared(Shifted(FUNCTIONS[name], 0.0), (torch.zeros(3, 4),), tmp_path, exporter)
    assert expected.tolist() == [0.0] * 4
    assert found.tolist() == [0.0] * 4


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_what_reaches_a_bound_has_a_gradient(exporter: str, tmp_path: Path) -> None:
    """As the hinge of a sample at the margin, and a row of zeros."""
    x = torch.tensor([[0.0, 0.5, 1.0, 2.0], [-1.0, 0.0, 1.0, 1.0]])
    _, found, expected = compared(Shifted(lambda x: x.clamp(0, 1).sum(), 0.0), (x,), tmp_path, exporter)
    assert expected.tolist() == [1.0, 2.0, 2.0, 1.0]
    assert found.tolist() == expected.tolist()


def of_probability(x: Tensor, target: Tensor) -> Tensor:
    """Return the loss of probabilities whose shape changes on the way."""
    return functional.binary_cross_entropy(torch.sigmoid(x.unsqueeze(1)).squeeze(1), target)


@pytest.mark.parametrize("bias", [3.0, -9.0, 40.0])
@pytest.mark.parametrize(
    ("function", "exporter"),
    [(of_probability, "dynamo"), (functional.binary_cross_entropy_with_logits, "legacy")],
    ids=["probability", "logits"],
)
def test_very_wrong_probabilities_are_learned(
    function: Callable[..., Tensor], exporter: str, bias: float, tmp_path: Path
) -> None:
    """As by torch's loss of logits; its loss of probabilities ends at 100 where single precision does."""
    batch = torch.zeros(2, 4), torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
    loss, found, _ = compared(Shifted(function, bias), batch, tmp_path, exporter)
    exact = Shifted(functional.binary_cross_entropy_with_logits, bias)
    expected = exact(*batch)
    expected.backward()
    assert exact.bias.grad is not None
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    np.testing.assert_allclose(found, exact.bias.grad, rtol=1e-4, atol=abs(bias) * 2**-23)  # the bias is rounded


def test_a_probability_of_zero_has_no_infinite_gradient(tmp_path: Path) -> None:
    def function(x: Tensor, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy(functional.hardsigmoid(x), target)

    batch = torch.zeros(2, 4), torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
    loss, found, expected = compared(Shifted(function, -9.0), batch, tmp_path, "dynamo")
    assert loss == pytest.approx(37.5)
    assert found.tolist() == expected.tolist() == [0.0] * 4


ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu6": lambda x: functional.relu6(x).sum(),
    "clamp": lambda x: x.clamp(0.0, 5.0).sum(),
    "powers": lambda x: (x**0 + x**1 + x**2).sum(),
    "powers of a tensor": lambda x: (x ** torch.tensor([0.0, 1.0, 2.0, 3.0])).sum(),
}


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
@pytest.mark.parametrize("name", ENDS)
def test_where_a_slope_ends_it_is_torchs(name: str, exporter: str, tmp_path: Path) -> None:
    batch = (torch.tensor([[0.0, 5.0, 6.0, 1.0]]),)
    _, ours, theirs = compared(Shifted(ENDS[name], 0.0), batch, tmp_path, exporter)
    torch.testing.assert_close(ours, theirs)
