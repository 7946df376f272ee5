"""Whole training graphs, lowered: the same loss, gradients and statistics, and the memory that is predicted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from deep import sampled
from lowering_runs import Arrays, run_step
from stock_environment import NEEDS_STOCK, STOCK_PYTHON

from poet_onnx import rewrite
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.lowering import prepare
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.verification import verify

LOSS_ERROR, GRADIENT_ERROR = 1e-6, 2e-5
"""Largest relative difference of a loss, and relative L2 difference of a gradient or a statistic."""

ZERO = 1e-5

SMALL = ["vgg16", "bert-2", "transformer", "densenet"]


def worst_error(expected: Arrays, found: Arrays) -> tuple[float, str]:
    """Return the largest relative L2 error of a tensor, and its name.

    Some gradients are zero, such as those of biases before a normalization: only rounding is left of them, less than
    ZERO of the largest gradient, and so it must be in both.
    """
    floats = {name: array.astype(np.float64) for name, array in expected.items() if array.dtype == np.float32}
    largest = max(float(np.linalg.norm(array)) for name, array in floats.items() if "grad" in name)
    errors = []
    for name, array in floats.items():
        norm, error = float(np.linalg.norm(array)), float(np.linalg.norm(array - found[name]))
        if "grad" in name and norm <= ZERO * largest:
            assert float(np.linalg.norm(found[name])) <= ZERO * largest, name
            continue
        errors.append((error / max(norm, np.finfo(np.float32).tiny), name))
    return max(errors)


def payload(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString()


@pytest.mark.parametrize("name", sampled(SMALL, "vgg16", "transformer"))
def test_a_lowered_step_gives_the_same_loss_and_gradients(model_path: Callable[..., Path], name: str) -> None:
    """On one runtime: the plain operators are there too."""
    original, lowered = load_model(model_path(name)), load_model(model_path(name))
    prepare(target="training")(original)
    prepare(target="stock")(lowered)
    feeds = random_feeds(extract(original), 0)
    expected, found = run_step(payload(original), feeds), run_step(payload(lowered), feeds)
    loss = lowered.graph.outputs[0].name or ""
    assert abs(expected[loss] - found[loss]) <= LOSS_ERROR * abs(expected[loss])
    error, name = worst_error(expected, found)
    assert error <= GRADIENT_ERROR, name


@pytest.mark.parametrize(("name", "budget"), sampled([("vgg16", "60%"), ("bert-2", "70%")]))
def test_a_rewritten_lowered_graph_keeps_its_promises(model_path: Callable[..., Path], name: str, budget: str) -> None:
    result = rewrite(model_path(name), device="tx2", activation_budget=budget, target="stock")
    assert result.model.metadata_props["poet.target"] == "stock"
    report = verify(model_path(name), result.model, feeds=2)
    assert report.passed, report.problems
    assert report.measured_transient_peak_bytes == pytest.approx(report.predicted_transient_peak_bytes, rel=0.002)
    assert report.measured_transient_peak_bytes <= (report.budget_bytes or 0)


VERIFY = """
import json, sys
from poet_onnx.verification import verify
report = verify(*sys.argv[1:], feeds=2)
print(json.dumps([report.problems, report.predicted_transient_peak_bytes, report.measured_transient_peak_bytes]))
"""
ON_STOCK = [(name, budget) for name in ("resnet18", "vgg16", "bert-2") for budget in ("80%", "50%")]
"""Models and budgets that ask for recomputation or paging and for split gradients."""


@pytest.mark.deep
@NEEDS_STOCK
@pytest.mark.parametrize(("name", "budget"), ON_STOCK)
def test_the_stock_runtime_keeps_the_promises(
    model_path: Callable[..., Path], tmp_path: Path, name: str, budget: str
) -> None:
    """Bits, order and peak."""
    result = rewrite(model_path(name), device="tx2", activation_budget=budget, target="stock", gap=0.2)
    rewritten = tmp_path / "rewritten.onnx"
    result.save(rewritten)
    environment = {key: value for key, value in os.environ.items() if key != "POET_STOCK_PYTHON"}
    command = [STOCK_PYTHON, "-c", VERIFY, str(model_path(name)), str(rewritten)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    problems, predicted, measured = json.loads(done.stdout)
    assert problems == []
    assert measured == pytest.approx(predicted, rel=0.002)
    assert measured <= (result.budget_bytes or 0)
