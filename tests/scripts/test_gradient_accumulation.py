"""The script that measures ways to collect gradients runs, and every way makes the same step."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import gradient_accumulation
import numpy as np

import poet_onnx
from poet_onnx.runtime.feeds import random_feeds

WAYS = 6


def test_every_way_makes_the_same_step(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    ordered = poet_onnx.rewrite(path, device="a72", activation_budget="100%", recompute=False, paging=False)
    feeds = random_feeds(ordered.graph, 0)
    ways = list(gradient_accumulation.ways(ordered.model, path.with_name("checkpoint"), feeds))
    assert len(ways) == WAYS
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, step, arrays in ways:
        before = {parameter: arrays[parameter].copy() for parameter in ("0.weight", "4.bias")}
        step()
        found[name] = {parameter: arrays[parameter].copy() for parameter in before}
        moved = [not np.array_equal(arrays[parameter], array) for parameter, array in before.items()]
        assert moved == [name != "gradients written, no update"] * 2
    found.pop("gradients written, no update")
    plain = found.pop("gradients written, plain nodes after it")
    first = found.pop("update operators in the step")
    assert len(found) == 3
    for parameter, array in first.items():
        assert all(other[parameter].tobytes() == array.tobytes() for other in found.values())
        np.testing.assert_allclose(plain[parameter], array, rtol=1e-6)  # ONNX Runtime's Sqrt may be an approximation


def test_medians_are_written(model_path: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "mlp-mse").symlink_to(model_path("mlp-mse").parent)
    table = tmp_path / "table.csv"
    arguments = [str(tmp_path), "--models", "mlp-mse", "--rounds", "2", "-o", str(table)]
    assert gradient_accumulation.main(arguments) == 0
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[1] == ["runtime", "model", "way", "median_milliseconds", "above_no_update_milliseconds"]
    assert len(rows) == 2 + WAYS
    assert all(float(row[3]) > 0 for row in rows[2:])
