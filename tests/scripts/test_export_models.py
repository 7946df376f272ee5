"""The exported artifacts are complete, and exporting is quiet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from export_models import export, export_forward, quiet
from folders import ROOT
from models import Recipe
from torch import Tensor, nn

SCRIPT = ROOT / "scripts" / "export_models.py"


class Centred(nn.Module):
    """Takes a running mean away, which training replaces by another tensor rather than writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input less the mean."""
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 2, 3))
        return x - self.mean.reshape(1, 4, 1, 1)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.deep
def test_writes_four_artifacts_and_one_line(tmp_path: Path) -> None:
    done = run("mlp-mse", "--batch", "3", "-o", str(tmp_path / "new" / "directory"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    written = sorted(path.name for path in (tmp_path / "new" / "directory" / "mlp-mse").iterdir())
    assert written == ["checkpoint", "eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"]
    model = onnx.load(tmp_path / "new" / "directory" / "mlp-mse" / "training_model.onnx")
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [3, 32]


@pytest.mark.deep
def test_refuses_unknown_names_and_batches(tmp_path: Path) -> None:
    assert "resnet18" in run("resnet19", "-o", str(tmp_path)).stderr
    assert run("mlp-mse", "--batch", "0", "-o", str(tmp_path)).returncode == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.deep
def test_same_seed_gives_the_same_graph(tmp_path: Path, model_path: Callable[..., Path]) -> None:
    run("mlp-l1", "-o", str(tmp_path))
    assert (tmp_path / "mlp-l1" / "training_model.onnx").read_bytes() == model_path("mlp-l1").read_bytes()


def test_bert_has_the_fused_operators(model_path: Callable[..., Path]) -> None:
    operators = {node.op_type for node in onnx.load(model_path("bert-2")).graph.node}
    assert {"LayerNormalization", "LayerNormalizationGrad", "BiasGelu", "BiasGeluGrad_dX", "GatherGrad"} <= operators


def test_running_statistics_stay_what_they_were(tmp_path: Path) -> None:
    norm, frozen = nn.BatchNorm2d(4), nn.BatchNorm2d(4).eval()
    for statistics in (*norm.buffers(), *frozen.buffers()):
        statistics.copy_(torch.randint(1, 9, statistics.shape))
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, frozen, Centred(), nn.Flatten(), nn.Linear(16, 2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with quiet():
        forward = export_forward(module, {"x": torch.randn(2, 3, 4, 4)})
        export(Recipe(lambda: module, lambda batch: {"x": torch.randn(batch, 3, 4, 4)}), tmp_path, batch=2)
    after = module.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert [part.training for part in module] == [True, True, False, True, True, True]
    artifacts = [onnx.load(tmp_path / name) for name in ("training_model.onnx", "eval_model.onnx")]
    for model, statistics in ((forward, {"1.running_var", "3.mean"}), *((model, set()) for model in artifacts)):
        kept = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        assert {"1.running_mean", "1.running_var", *statistics} <= set(kept)
        assert [name for name in set(kept) & set(before) if not np.array_equal(kept[name], before[name])] == []
