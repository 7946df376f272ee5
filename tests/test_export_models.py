"""The exported artifacts are complete, and exporting is quiet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "export_models.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_writes_four_artifacts_and_one_line(tmp_path: Path) -> None:
    done = run("mlp-mse", "--batch", "3", "-o", str(tmp_path / "new" / "directory"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    written = sorted(path.name for path in (tmp_path / "new" / "directory" / "mlp-mse").iterdir())
    assert written == ["checkpoint", "eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"]
    model = onnx.load(tmp_path / "new" / "directory" / "mlp-mse" / "training_model.onnx")
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [3, 32]


def test_refuses_unknown_names_and_batches(tmp_path: Path) -> None:
    assert "resnet18" in run("resnet19", "-o", str(tmp_path)).stderr
    assert run("mlp-mse", "--batch", "0", "-o", str(tmp_path)).returncode == 2
    assert not list(tmp_path.iterdir())


def test_same_seed_gives_the_same_graph(tmp_path: Path, model_path: Callable[..., Path]) -> None:
    run("mlp-l1", "-o", str(tmp_path))
    assert (tmp_path / "mlp-l1" / "training_model.onnx").read_bytes() == model_path("mlp-l1").read_bytes()


def test_bert_has_the_fused_operators(model_path: Callable[..., Path]) -> None:
    operators = {node.op_type for node in onnx.load(model_path("bert-2")).graph.node}
    assert {"LayerNormalization", "LayerNormalizationGrad", "BiasGelu", "BiasGeluGrad_dX", "GatherGrad"} <= operators
