"""What torch_architectures.py finds: models that train as in torch, one that cannot, gradients that are off.

See tests/stock_environment.py.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_nets import Gpt
from models import Recipe, images, sequences
from stock_environment import NEEDS_STOCK, STOCK_PYTHON
from torch import nn
from torch_architectures import COLUMNS, compare_losses, examine, gradient_error, is_off
from torch_networks.hugging_face import disentangled, padded_tokens

from poet_onnx.torch import export


def normalized(last: nn.Module) -> nn.Module:
    """Return a small net with batch normalization."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), last, nn.Flatten(), nn.Linear(3600, 3))


NORMALIZED = Recipe(functools.partial(normalized, nn.ReLU()), functools.partial(images, 32))
ATTENTIVE = Recipe(functools.partial(Gpt, 1, 32, 2, vocabulary=50, length=16), functools.partial(sequences, 16, 50))
WITHOUT_GRADIENT = Recipe(functools.partial(normalized, nn.Hardswish()), functools.partial(images, 32))


@NEEDS_STOCK
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(NORMALIZED, id="batch normalization"),
        pytest.param(ATTENTIVE, id="gpt", marks=pytest.mark.deep),
    ],
)
def test_models_train_as_in_torch(recipe: Recipe) -> None:
    row = examine("model", recipe, 4, STOCK_PYTHON)
    assert tuple(row) == COLUMNS
    assert row["status"] == "trained"
    assert int(str(row["budget_bytes"])) < int(str(row["ordered_bytes"]))
    assert float(str(row["loss_difference"])) < 1e-5
    assert float(str(row["gradient_error"])) < 4 * float(str(row["torch_gradient_error"])) < 1e-5
    assert not is_off(row)


@pytest.mark.deep
def test_attention_to_positions_apart_from_words_is_torchs(tmp_path: Path) -> None:
    """Exporting it ended with a parameter that was not found, though nobody had named one."""
    torch.manual_seed(0)
    module = disentangled()
    report = export(module, padded_tokens(), tmp_path / "net.onnx", target="stock", device="a72").check
    assert report is not None
    assert set(report.gradient_errors) == {name for name, _ in module.named_parameters()}


def test_a_model_without_gradient_has_the_reason_in_its_row() -> None:
    row = examine("model", WITHOUT_GRADIENT, 2, sys.executable)
    assert str(row["status"]).startswith("not exported: The gradient builder has not been registered: HardSwish for")
    assert (row["parameters"], row["loss_difference"]) == (4 * 28 + 8 + 3 * 3601, "")
    assert not is_off(row)


def test_the_side_that_is_off_is_shown() -> None:
    row = compare_losses([2.0, 1.0001], [2.0, 1.0], [2.0, 1.0])
    assert row == {"loss_difference": "1.0e-04", "loss_error": "1.0e-04", "torch_loss_error": "0.0e+00"}
    exact = {"weight": np.array([3.0, 0.0]), "bias": np.array([4.0])}
    near = {"weight": np.array([3.0, 5e-4]), "bias": np.array([4.0])}
    assert gradient_error(near, exact) == pytest.approx(1e-4)
    assert gradient_error({"weight": exact["weight"]}, exact) == pytest.approx(0.8)
    off = {"status": "trained", "gradient_error": "1.0e-04", "torch_gradient_error": "1.0e-06"}
    assert is_off(off)
    assert is_off(off | {"gradient_error": "nan"})
    assert not is_off(off | {"torch_gradient_error": "1.0e-04"})
    assert not is_off(off | {"gradient_error": "8.0e-06"})
    assert is_off({"status": "not rewritten: no plan"})
