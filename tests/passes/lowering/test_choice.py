"""Expansions are chosen by what they cost on a device, and by the budget."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from export_models import export, quiet
from models import Recipe
from torch import nn

import poet_onnx
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import DeviceProfile, load_device
from poet_onnx.errors import InputError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.lowering import choose_expansions, lower, normalize_for
from poet_onnx.plan import serialization
from poet_onnx.profiler import measure
from poet_onnx.verification import verify


def payload(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


def normalized(path: Path) -> ir.Model:
    model = load_model(path)
    normalize_for("stock")(model)
    return model


def seconds(path: Path, expansions: str, device: DeviceProfile) -> float:
    """Return what the nodes of a lowered step take together."""
    model = normalized(path)
    lower(model, "stock", expansions)
    return sum(cost.seconds for cost in cost_table(extract(model), device).nodes.values())


def test_devices_choose_what_is_quick_on_them(tmp_path: Path) -> None:
    """The a72 has a quick memory beside its arithmetic, the m4 a quick arithmetic beside its memory."""
    sizes = (4, 8, 16, 32, 64, 128, 256)
    layers = [nn.Conv1d(before, after, 5, 2, 2) for before, after in itertools.pairwise(sizes)]
    recipe = Recipe(
        lambda: nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(sizes[-1], 10)),
        lambda batch: {"input": torch.randn(batch, sizes[0], 256)},
    )
    with quiet():
        export(recipe, tmp_path)
    path = tmp_path / "training_model.onnx"
    devices = [load_device(name) for name in ("host", "a72", "m4")]
    chosen = [choose_expansions(normalized(path), device)[0] for device in devices]
    assert len(set(chosen)) == 3
    for device, own in zip(devices, chosen, strict=True):
        others = [seconds(path, other, device) for other in (*chosen, "t" * len(own), "c" * len(own))]
        assert seconds(path, own, device) == min(others) < max(others)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a training graph whose largest value are the columns of a weight's gradient."""
    folder = tmp_path_factory.mktemp("wide")
    layers = (nn.Conv1d(32, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 10))
    recipe = Recipe(lambda: nn.Sequential(*layers), lambda batch: {"input": torch.randn(batch, 32, 1024)})
    with quiet():
        export(recipe, folder)
    return folder / "training_model.onnx"


def test_a_small_budget_takes_expansions_that_need_less(wide: Path) -> None:
    """The plan says which, and whoever carries it out or verifies it lowers the graph in the same way."""
    options: dict[str, Any] = {"device": "host", "target": "stock", "split": False}
    plenty = poet_onnx.rewrite(wide, activation_budget="100%", **options)
    scarce = poet_onnx.rewrite(wide, activation_budget="60%", **options)
    assert (plenty.plan.expansions, scarce.plan.expansions) == ("c", "t")
    assert scarce.rewritten.transient_peak_bytes <= (scarce.budget_bytes or 0)
    shipped = serialization.to_json(scarce.plan, scarce.graph)
    carried = poet_onnx.rewrite(wide, plan=serialization.from_json(shipped, scarce.graph), **options)
    assert payload(carried.model) == payload(scarce.model)
    report = verify(wide, scarce.model, feeds=2)
    assert report.passed, report.problems


@pytest.mark.parametrize("expansions", ["", "cc", "x"])
def test_expansions_of_another_graph_are_refused(wide: Path, expansions: str) -> None:
    with pytest.raises(InputError, match="another lowering of this graph"):
        lower(normalized(wide), "stock", expansions)


@pytest.mark.deep
def test_a_lowered_graph_is_planned_with_its_own_measured_costs(wide: Path, tmp_path: Path) -> None:
    """Nodes of expansions that were not measured are modelled, at the measured ones' pace."""
    measured = measure(wide, load_device("host"), page_dir=tmp_path, repetitions=2, warmup=1, target="stock")
    options: dict[str, Any] = {"device": "host", "target": "stock", "split": False}
    plenty = poet_onnx.rewrite(wide, activation_budget="100%", costs=measured, **options)
    scarce = poet_onnx.rewrite(wide, activation_budget="60%", costs=measured, **options)
    assert (plenty.plan.expansions, scarce.plan.expansions) == ("c", "t")
    for planned in (plenty, scarce):
        assert all(cost.measured for cost in planned.costs.nodes.values())
    carried = poet_onnx.rewrite(wide, plan=scarce.plan, costs=measured, **options)
    assert (carried.original, carried.rewritten) == (scarce.original, scarce.rewritten)
    older = measured.model_copy(update={"variants": {}})
    modelled = poet_onnx.rewrite(wide, activation_budget="60%", costs=older, **options)
    assert {cost.measured for cost in modelled.costs.nodes.values()} == {True, False}
