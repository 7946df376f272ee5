"""Training the original and the rewritten graph side by side, as the quickstart does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from folders import ROOT
from gradient_models import export
from stock_environment import NEEDS_STOCK, STOCK_PYTHON

import poet_onnx

SCRIPT = ROOT / "scripts" / "train_compare.py"
STEPS = 6

pytestmark = NEEDS_STOCK


def compare(directory: Path, rewritten: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [STOCK_PYTHON, SCRIPT, directory, rewritten, "--steps", STEPS, *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a rewritten MobileNet, with what `train-graph` writes beside it."""
    path = tmp_path_factory.mktemp("rewritten") / "model.onnx"
    forward = export("mobilenet")[0]
    poet_onnx.train_graph(forward).save(path.parent)
    options = {"device": "a72", "target": "stock", "activation_budget": "75%", "gap": 0.5}
    poet_onnx.rewrite(forward, loss="cross-entropy", **options).save(path)
    return path


@pytest.mark.deep  # the quickstart does it with a larger model
def test_a_rewritten_graph_trains_to_the_same_bits_in_less_memory(rewritten: Path) -> None:
    trained = rewritten.with_name("trained.onnx")
    done = compare(rewritten.parent, rewritten, "--output", trained)
    assert done.returncode == 0, done
    assert done.stdout.count("equal") == STEPS + 1
    assert "DIFFERENT" not in done.stdout
    peaks = {name: int(size.replace(",", "")) for name, size in re.findall(r"(\w+) +([\d,]+) .*%", done.stdout)}
    assert peaks["rewritten"] < peaks["original"]
    assert re.search(r"classifies \d+ of 25 unseen pictures", done.stdout)
    assert [value.name for value in onnx.load(trained).graph.output] == ["output"]


@pytest.mark.deep
def test_a_graph_that_computes_something_else_is_told_apart(rewritten: Path, tmp_path: Path) -> None:
    proto = onnx.load(rewritten)
    limit = next(each for each in proto.graph.initializer if each.dims == [] and onnx.numpy_helper.to_array(each) == 6)
    limit.CopyFrom(onnx.numpy_helper.from_array(np.float32(0.5), limit.name))  # of the first Relu6
    onnx.save(proto, tmp_path / "other.onnx")
    done = compare(rewritten.parent, tmp_path / "other.onnx")
    assert done.returncode == 1, done
    assert "DIFFERENT" in done.stdout
