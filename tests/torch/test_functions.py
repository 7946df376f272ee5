"""An `autograd.Function` trains if its backward is the derivative of its forward, and is refused by name otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint
from torch_options import OPTIONS

import poet_onnx.torch
from poet_onnx.errors import CheckFailedError, PoetWarning


class Square(Function):
    """Saves its input alone, as memory-saving activations do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Square."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Compute the derivative."""
        (x,) = ctx.saved_tensors
        return 2 * x * gradients[0]


class Swish(Function):
    """Has its context set up apart, and an argument that is no tensor."""

    @staticmethod
    def forward(x: Tensor, steep: float) -> Tensor:
        """Multiply with the sigmoid."""
        return x * torch.sigmoid(steep * x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the input."""
        ctx.steep = inputs[1]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Compute the derivative."""
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(ctx.steep * x)
        return gradients[0] * (share + ctx.steep * x * share * (1 - share)), None


class Detaching(Square):
    """Computes with a detached input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Square."""
        return Square.forward(ctx, x.detach())


class SingleOnly(Square):
    """Takes no double precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Square."""
        assert x.dtype == torch.float32
        return Square.forward(ctx, x)


class Clipped(Function):
    """Clips gradients, which are too small for it in a first batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Pass numbers on."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Clip."""
        return gradients[0].clamp(-10, 10)


class Saturated(Function):
    """Passes gradients on where it clips numbers, which are too small for that in a first batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Clip."""
        return x.clamp(-6, 6)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Pass gradients on."""
        return gradients[0]


class Two(nn.Module):
    """Two layers with a function between."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(6, 8), nn.Linear(8, 3), function

    def forward(self, x: Tensor) -> Tensor:
        """Apply both layers."""
        return self.second(self.function(self.first(x)))  # type: ignore[no-any-return]


def check(function: Callable[[Tensor], Tensor], folder: Path, exporter: str = "dynamo") -> poet_onnx.torch.TorchReport:
    torch.manual_seed(0)
    path = folder / "net.onnx"
    report = poet_onnx.torch.export(Two(function), torch.randn(4, 6), path, **OPTIONS | {"exporter": exporter}).check
    assert report is not None
    return report


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
@pytest.mark.parametrize("function", [Square.apply, Detaching.apply, lambda x: Swish.apply(x, 1.5)])
def test_a_backward_that_is_the_derivative_trains(function: Any, exporter: str, tmp_path: Path) -> None:
    with pytest.warns(PoetWarning, match=r"(Square|Detaching|Swish) \(autograd.Function\).* wherever it was tried"):
        report = check(function, tmp_path, exporter)
    assert report.passed
    assert set(report.gradient_errors) == {"first.weight", "first.bias", "second.weight", "second.bias"}


def test_one_that_takes_no_double_precision_is_judged_by_the_batch(tmp_path: Path) -> None:
    with pytest.warns(PoetWarning, match="in the gradients of this batch that is the same"):
        report = check(SingleOnly.apply, tmp_path)
    assert "does not run in double precision (AssertionError" in str(report)


@pytest.mark.parametrize("function", [Clipped, Saturated])
def test_one_that_differs_outside_the_batch_is_refused(function: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError, match=rf"{function.__name__} \(autograd.Function\).* not the derivative"):
        check(function.apply, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_that_draws_leaves_the_random_state(tmp_path: Path) -> None:
    class Shuffled(Square):
        """Draws an order, and does not use it."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            """Square."""
            torch.randperm(len(x))
            return Square.forward(ctx, x)

    net, x = Two(Shuffled.apply), torch.randn(4, 6)
    before = torch.get_rng_state()
    with pytest.warns(PoetWarning, match="Nothing was checked against torch: .* draws random numbers"):
        poet_onnx.torch.export(net, x, tmp_path / "net.onnx", **OPTIONS)
    assert torch.equal(torch.get_rng_state(), before)


def test_checkpoints_of_torch_are_nothing_to_warn_of(tmp_path: Path) -> None:
    report = check(lambda x: checkpoint(torch.relu, x, use_reentrant=True), tmp_path)
    assert report.passed
    assert "autograd.Function" not in str(report)
    assert len(report.gradient_errors) == 4
