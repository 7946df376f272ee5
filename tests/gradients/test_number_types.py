"""Modules and models in other types than float32: trained where that can be, refused in one sentence elsewhere."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest
import torch
from deep import sampled
from safetensors.torch import save_file
from torch import Tensor, nn

import poet_onnx.torch
from poet_onnx.errors import InputError


class Two(nn.Module):
    """Two layers, the second of another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.second(torch.relu(self.first(x)).to(self.second.weight.dtype)).float()


class Stored(nn.Module):
    """A frozen layer that is kept in another type, and cast before it is used."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Parameter(torch.randn(8, 3).to(dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return torch.relu(self.first(x)) @ self.second.float()


class Automatic(nn.Module):
    """Casts by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x).float()


class Casting(nn.Module):
    """Computes in bfloat16, though what goes in and out is float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Return twice the scores."""
        return (x.bfloat16() * 2).float()


def export(module: nn.Module, x: Tensor, folder: Path, exporter: str = "legacy") -> poet_onnx.torch.Exported:
    options = {"device": "a72", "target": "stock", "recompute": False, "paging": False}
    return poet_onnx.torch.export(module, x, folder / "net.onnx", exporter=exporter, **options)


def legacy(module: nn.Module, x: Tensor, folder: Path) -> Path:
    path = folder / "forward.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), path, dynamo=False, do_constant_folding=False, opset_version=17)
    return path


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64"])
def test_parameters_of_other_types_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    module, x = Two(getattr(torch, kind)), torch.randn(4, 6)
    with pytest.raises(
        InputError, match=rf"Parameter 'second\.weight' is {kind}, .* module\.float\(\) .*, or freeze it"
    ):
        export(module, x, tmp_path)
    with pytest.raises(InputError, match=rf" is {kind}, .* module\.float\(\)"):
        poet_onnx.train_graph(legacy(module, x, tmp_path))


@pytest.mark.parametrize("exporter", sampled(["legacy", "dynamo"], "legacy"))
def test_computing_in_bfloat16_is_refused_before_a_plan_is_made(exporter: str, tmp_path: Path) -> None:
    message = (
        r"^Tensor '.*' of node '.*' .* is bfloat16, .* module\.float\(\) .*, and where `forward` casts to bfloat16"
    )
    with pytest.raises(InputError, match=message):
        export(Automatic(), torch.randn(4, 6), tmp_path, exporter)
    with pytest.raises(InputError, match=r" in the module '1' is bfloat16"):
        export(nn.Sequential(nn.Linear(6, 3), Casting()), torch.randn(4, 6), tmp_path, exporter)
    assert list(tmp_path.iterdir()) == []


def test_an_input_of_bfloat16_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="example input 'input' is bfloat16"):
        export(nn.Linear(6, 3), torch.randn(4, 6).bfloat16(), tmp_path)


def test_a_training_graph_in_bfloat16_is_refused() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        step (float[2] x) => (float[2] x_grad) { a = Cast<to = 16>(x) b = Mul(a, a) x_grad = Cast<to = 1>(b) }"""
    )
    with pytest.raises(InputError, match=r"^Tensor 'a' of node '.*' \(operator Mul\) is bfloat16"):
        poet_onnx.rewrite(model, device="a72", target="stock")


@pytest.mark.parametrize(
    ("kind", "exporter"),
    sampled(
        [("bfloat16", "legacy"), ("bfloat16", "dynamo"), ("float64", "legacy")],
        ("bfloat16", "legacy"),
        ("float64", "legacy"),
    ),
)
def test_frozen_weights_that_are_cast_may_have_any_type(kind: str, exporter: str, tmp_path: Path) -> None:
    module, x = Stored(getattr(torch, kind)), torch.randn(4, 6)
    made = export(module, x, tmp_path, exporter)
    assert made.check is not None
    assert made.check.passed
    session = poet_onnx.TrainingSession(made.model, made.parameters, eval_model=made.evaluation)
    labels = torch.tensor([0, 1, 2, 0])
    assert session.step(x.numpy(), labels.numpy()) == pytest.approx(
        nn.functional.cross_entropy(module(x), labels).item(), rel=1e-5
    )


def test_a_file_of_bfloat16_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    save_file({"weight": torch.ones(3, 6, dtype=torch.bfloat16)}, path)
    with pytest.raises(InputError, match=r"'weight' in .*half\.safetensors is BF16 .* store it as float32"):
        poet_onnx.torch.load_trained(nn.Linear(6, 3), path)
