"""The check against torch steps its optimizer with the numbers that groups of parameters have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_options import OPTIONS

import poet_onnx.torch
from poet_onnx.description import groups as description
from poet_onnx.description.groups import ParameterGroup
from poet_onnx.description.optimizers import Optimizer
from poet_onnx.errors import CheckFailedError
from poet_onnx.training import memory

GROUPS = (ParameterGroup("vectors", weight_decay=0.0), ParameterGroup("2.*", weight_decay=0.4, lr_scale=3.0))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 5, bias=False), nn.Tanh(), nn.Linear(5, 3))


def export(net: nn.Module, folder: Path, **options: Any) -> poet_onnx.torch.Exported:
    given = {**OPTIONS, "groups": GROUPS, **options}
    return poet_onnx.torch.export(net, torch.randn(6, 4), folder / "net.onnx", **given)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_groups_pass_before_the_rewrite_and_in_the_files(optimizer: str, net: nn.Module, tmp_path: Path) -> None:
    made = export(net, tmp_path, optimizer=optimizer)
    assert made.check is not None
    assert (made.check.passed, made.check.optimizer) == (True, optimizer)
    found = poet_onnx.torch.verify(net, made.model, torch.randn(6, 4))
    assert (found.passed, found.optimizer) == (True, optimizer), found.problems


def test_groups_that_stand_still_pass_too(net: nn.Module, tmp_path: Path) -> None:
    made = export(net, tmp_path, optimizer="sgd", groups=("vectors,lr_scale=0",))
    assert made.check is not None
    assert poet_onnx.torch.verify(net, made.model, torch.randn(6, 4)).passed


_Rules = Sequence[ParameterGroup]


def _no_decay(optimizer: Optimizer, groups: _Rules) -> tuple[tuple[Optimizer, float], ...]:
    return description.settings_by_group(optimizer, [replace(each, weight_decay=None) for each in groups])


def _one_rate(optimizer: Optimizer, groups: _Rules) -> tuple[tuple[Optimizer, float], ...]:
    return description.settings_by_group(optimizer, [replace(each, lr_scale=1.0) for each in groups])


@pytest.mark.parametrize("lost", [_no_decay, _one_rate])
def test_a_session_that_loses_their_numbers_is_found_out(
    lost: Callable[..., Any], net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "settings_by_group", lost)
    with pytest.raises(CheckFailedError, match="The optimizer moves"):
        export(net, tmp_path, optimizer="adamw")
