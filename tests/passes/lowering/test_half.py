"""Lowering of float16: the operators of lowering_cases.py in half precision, and a step of mixed precision."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
import torch
from export_models import export, quiet
from lowering_case import Case
from lowering_cases import CASES
from lowering_results import expected, payload
from lowering_runs import AFTER, Arrays, run_on_stock, run_step
from models import Recipe, images
from stock_environment import NEEDS_STOCK
from torch import nn
from torch.nn import functional

from poet_onnx import rewrite
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.lowering import prepare
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.verification import verify

EPSILON = float(np.finfo(np.float16).eps)
"""Rounding a number to float16 loses at most half of this share of it."""


def halved(case: Case) -> Case:
    """Return a case fed with numbers that float16 can hold, still in float32."""
    rounded = {name: round_floats(array) for name, array in case.feeds.items()}
    return replace(case, name=f"{case.name}-half", feeds=rounded)


def round_floats(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.astype(np.float16).astype(np.float32) if array.dtype == np.float32 else array


CHOSEN = [
    halved(case)
    for case in CASES
    if case.oracle is None and not any(node.op_type == "InPlaceAccumulatorV2" for node in case.nodes)
]


STATISTICS = {"BatchNormInternal": ("mean", "variance")}
"""Inputs that are updated in place, and so stay float32."""


def in_half(case: Case) -> tuple[ir.Model, Arrays]:
    """Return the lowered model of a case whose floats are float16, and its feeds."""
    model = case.model()
    kept = {name for node in case.nodes for name in STATISTICS.get(node.op_type, ())}
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype == ir.DataType.FLOAT and value.name not in kept:
            value.dtype = ir.DataType.FLOAT16
    prepare(target="stock")(model)
    feeds = {
        name: array if name in kept or array.dtype != np.float32 else array.astype(np.float16)
        for name, array in case.feeds.items()
    }
    return model, feeds


def error(case: Case, found: Arrays) -> float:
    """Return the largest error of an element, relative to the largest of its tensor."""
    worst = 0.0
    for name, right in expected(case).items():
        if name.startswith(AFTER):
            continue
        assert found[name].shape == right.shape, name
        largest = max(float(np.abs(right).max(initial=0.0)), float(np.finfo(np.float16).smallest_normal))
        worst = max(worst, float(np.abs(right.astype(np.float64) - found[name]).max(initial=0.0)) / largest)
    return worst


@pytest.mark.deep  # the stock runtime runs all of them below
@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_operators_in_half_precision(case: Case) -> None:
    model, feeds = in_half(case)
    assert error(case, run_step(payload(model), feeds)) <= EPSILON


def test_a_kernel_of_this_runtime_moves_half_precision_without_casts() -> None:
    chosen = [case for case in CHOSEN if case.name.startswith(("ConcatTraining-0", "SplitTraining-0"))]
    for case in chosen:
        assert "Cast" not in {node.op_type for node in in_half(case)[0].graph}, case.name


@pytest.mark.deep
@NEEDS_STOCK
def test_operators_in_half_precision_across_runtimes(tmp_path: Path) -> None:
    prepared = [in_half(case) for case in CHOSEN]
    steps = ((str(i), payload(model), feeds) for i, (model, feeds) in enumerate(prepared))
    results = run_on_stock(tmp_path, steps)
    errors = {case.name: error(case, results[str(i)]) for i, case in enumerate(CHOSEN)}
    assert [(name, found) for name, found in errors.items() if found > EPSILON] == []


class Mixed(nn.Module):
    """Convolution, normalization and products in float16, with parameters and the loss in float32.

    It has no pooling: the training runtime crashes where it puts a cast before MaxPoolGrad.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 64, 10)
        self.scale, self.shift = nn.Parameter(torch.ones(64)), nn.Parameter(torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the scores."""
        weight, bias = self.conv.weight.half(), self.conv.bias
        assert bias is not None
        y = torch.relu(functional.conv2d(x.half(), weight, bias.half(), padding=1))
        y = functional.layer_norm(y.flatten(2), (64,), self.scale.half(), self.shift.half())
        y = functional.gelu(y).flatten(1)
        return functional.linear(y, self.last.weight.half(), self.last.bias.half()).float()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the training graph of `Mixed`."""
    folder = tmp_path_factory.mktemp("mixed")
    with quiet():
        export(Recipe(Mixed, functools.partial(images, 8)), folder, batch=4)
    return folder / "training_model.onnx"


def test_a_step_of_mixed_precision(mixed: Path, tmp_path: Path) -> None:
    """The training runtime casts by itself; its loss and gradients are those of the lowered step."""
    original, lowered = load_model(mixed), load_model(mixed)
    prepare(target="training")(original)
    prepare(target="stock")(lowered)
    feeds = random_feeds(extract(original), 0)
    right, found = run_step(payload(original), feeds), run_step(payload(lowered), feeds)
    names = [name for name in right if right[name].dtype == np.float32]
    assert sum("_grad" in name for name in names) == 6
    for name in names:
        assert np.linalg.norm(right[name] - found[name]) <= 4 * EPSILON * np.linalg.norm(right[name]), name


def test_casts_are_planned_and_the_peak_is_as_predicted(mixed: Path) -> None:
    result = rewrite(mixed, device="a72", activation_budget=82_000, target="stock")
    report = verify(mixed, result.model, feeds=2)
    assert report.passed, report.problems
    assert report.measured_transient_peak_bytes == report.predicted_transient_peak_bytes
