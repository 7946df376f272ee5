"""Training the original and the rewritten graph side by side, as the quickstart does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import poet_onnx

SCRIPT = Path(__file__).parent.parent / "scripts" / "train_compare.py"


def compare(artifacts: Path, rewritten: Path, steps: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(artifacts), str(rewritten), "--steps", str(steps)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def rewritten(model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewritten") / "model.onnx"
    poet_onnx.rewrite(model_path("mobilenet"), device="a72", activation_budget="75%").save(path)
    return path


def test_a_rewritten_graph_trains_to_the_same_bits_in_less_memory(
    model_path: Callable[..., Path], rewritten: Path
) -> None:
    done = compare(model_path("mobilenet").parent, rewritten, steps=6)
    assert done.returncode == 0, done
    assert done.stdout.count("equal") == 7
    assert "DIFFERENT" not in done.stdout
    peaks = {
        line.split()[0]: int(line.split()[1].replace(",", "")) for line in done.stdout.splitlines()[-5:] if "%" in line
    }
    assert peaks["rewritten"] < peaks["original"]


def test_a_graph_that_computes_something_else_is_told_apart(
    model_path: Callable[..., Path], rewritten: Path, tmp_path: Path
) -> None:
    proto = onnx.load(rewritten)
    norm = next(node for node in proto.graph.node if node.op_type == "BatchNormInternal")
    next(attribute for attribute in norm.attribute if attribute.name == "epsilon").f = 1e-2
    onnx.save(proto, tmp_path / "other.onnx")
    done = compare(model_path("mobilenet").parent, tmp_path / "other.onnx", steps=2)
    assert done.returncode == 1, done
    assert "DIFFERENT" in done.stdout
