"""What is exported of a session with a store is what a session in RAM exports: the forward model has its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from export_models import export_forward, quiet
from onnx.numpy_helper import to_array
from stored_nets import session_of, train, write_net
from torch import nn

import poet_onnx
from poet_onnx import TrainingSession

STEPS = 3


class Panels(nn.Module):
    """Convolutions and matrices of several panels: with strides, a bias and pads, as nn.Linear and MatMul have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3)
        self.second = nn.Conv2d(64, 400, 3, stride=2, padding=(1, 2))
        self.third = nn.Conv2d(400, 600, 1, bias=False)
        self.turned = nn.Linear(600, 300, bias=False)
        self.plain = nn.Parameter(torch.randn(300, 400) * 0.05)
        self.last = nn.Linear(400, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of each image."""
        x = torch.relu(self.third(torch.relu(self.second(torch.relu(self.first(x))))))
        x = torch.tanh(self.turned(x.flatten(2).transpose(1, 2))) @ self.plain
        return self.last(x.mean(1))


class Twice(nn.Module):
    """A matrix that is used twice, with larger ones between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(40, 400), nn.Linear(400, 30)
        self.up, self.down = nn.Linear(400, 1600), nn.Linear(1600, 400)
        self.twice = nn.Linear(400, 400)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.twice(torch.tanh(self.first(x)))
        return self.last(self.twice(self.down(torch.tanh(self.up(x)))))


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return files of nets without a loss."""
    folder = tmp_path_factory.mktemp("nets")
    found = {kind: write_net(kind, folder / f"{kind}.onnx") for kind in ("text", "decoder")}
    torch.manual_seed(0)
    with quiet():
        for kind, net, shape in (("panels", Panels(), (4, 3, 7, 8)), ("twice", Twice(), (2, 40))):
            found[kind] = folder / f"{kind}.onnx"
            onnx.save(export_forward(net, {"x": torch.zeros(shape)}), found[kind])
    return found


def both(net: Path, folder: Path, device: str, **options: Any) -> tuple[TrainingSession, TrainingSession]:
    """Return sessions of a net, in RAM and with a store, that are trained alike."""
    sessions = []
    for store in ("never", "always"):
        path = folder / f"{store}.onnx"
        settings = {"device": device, "target": "stock", "loss": "cross-entropy", "gap": 0.5} | options
        poet_onnx.rewrite(net, store=store, **settings).save(path)
        sessions.append(session_of(path, **({} if store == "never" else {"store": folder / "store"})))
        train(sessions[-1], STEPS)
    return sessions[0], sessions[1]


def outputs(path: Path) -> list[bytes]:
    """Return what a model infers of numbers made up for it."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {}
    for put in session.get_inputs():
        shape = [3 if isinstance(size, str) else size for size in put.shape]
        random = np.random.default_rng(1)
        made = random.integers(0, 600, shape) if put.type == "tensor(int64)" else random.random(shape, np.float32)
        feeds[put.name] = made
    return [made.tobytes() for made in session.run(None, feeds)]


@pytest.mark.parametrize(
    ("kind", "device", "operators"),
    [
        ("text", "a72", {"LoadStored", "GatherStored"}),
        ("panels", "host", {"LinearStored", "ConvStored"}),
        pytest.param("panels", "a72", {"LoadStored"}, marks=pytest.mark.deep),
        pytest.param("twice", "a72", {"LoadStored", "Gate"}, marks=pytest.mark.deep),  # which loads it again
    ],
)
def test_the_model_is_that_of_ram(
    nets: dict[str, Path], tmp_path: Path, kind: str, device: str, operators: set[str]
) -> None:
    paths, options = [], {"activation_budget": 3_200_000} if kind == "twice" else {}
    for name, session in zip(("ram", "disk"), both(nets[kind], tmp_path, device, **options), strict=True):
        paths.append(tmp_path / f"{name}.inference.onnx")
        session.export_inference_model(paths[-1])
    assert {node.op_type for node in onnx.load(tmp_path / "always.eval.onnx").graph.node} >= operators
    ram, disk = map(onnx.load, paths)
    onnx.checker.check_model(disk, full_check=True)
    assert {entry.domain for entry in disk.opset_import} == {""}
    weights = [{each.name: to_array(each).tobytes() for each in model.graph.initializer} for model in (ram, disk)]
    assert weights[1].items() >= {name: weights[0][name] for name in weights[0] if not name.startswith("poet/")}.items()
    for told in ("input", "output"):
        types = [
            {each.name: each.type.SerializeToString() for each in getattr(model.graph, told)} for model in (ram, disk)
        ]
        assert types[0] == types[1]
    assert outputs(paths[1]) == outputs(paths[0])


@pytest.mark.deep
@pytest.mark.parametrize("device", ["a72", "host"])
def test_adapters_are_merged_with_frozen_weights_of_the_store(
    nets: dict[str, Path], tmp_path: Path, device: str
) -> None:
    ram, disk = both(nets["decoder"], tmp_path, device, lora="rank=4,targets=*.q.weight,*.up.weight")
    for merge in (True, False):
        paths = [tmp_path / f"{name}.{merge}.onnx" for name in ("ram", "disk")]
        for session, path in zip((ram, disk), paths, strict=True):
            session.export_inference_model(path, merge=merge)
        assert outputs(paths[1]) == outputs(paths[0])
        names = {each.name for each in onnx.load(paths[1]).graph.initializer}
        assert any("lora" in name for name in names) != merge
    merged = [session.merged_weights() for session in (ram, disk)]
    assert len(merged[0]) == 4
    assert {name: array.tobytes() for name, array in merged[1].items()} == {
        name: array.tobytes() for name, array in merged[0].items()
    }
    disk.export_adapter(tmp_path / "adapter")
    before = {name: array.tobytes() for name, array in disk.parameters.items()}
    train(disk, STEPS + 1)
    assert before != {name: array.tobytes() for name, array in disk.parameters.items()}
    disk.load_adapter(tmp_path / "adapter")
    assert before == {name: array.tobytes() for name, array in disk.parameters.items()}
