"""Gradients at bounds and ties are those of the function of torch that was called, though ONNX has one for several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from deep import sampled
from torch import Tensor, nn
from torch.nn import functional
from torch_options import OPTIONS

import poet_onnx
import poet_onnx.torch


class Weighed(nn.Module):
    """Adds a bias, and weighs what a function makes of it."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.bias = function, nn.Parameter(torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return a sum in which each number has another weight."""
        return self.function(x + self.bias).flatten().cumsum(0).sum()


BOUNDS = torch.tensor([-1.0, 0.0, 1.0, 6.0])
INPUT = torch.tensor([[-1.0, 0.0, 1.0, 6.0], [1.0, 6.0, 6.0, -1.0]])

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp as relu6": lambda x: x.clamp(0, 6),
    "clamp in place": lambda x: x.clone().clamp_(0, 6),
    "clamp by a tensor": lambda x: torch.clamp(x, min=BOUNDS),
    "clamp by tensors": lambda x: x.clip(BOUNDS, BOUNDS + 5),
    "clamp of the bound": lambda x: torch.clamp(torch.ones(2, 4), max=x),
    "hardtanh": nn.Hardtanh(),
    "hardtanh in place": nn.Hardtanh(-1.0, 6.0, inplace=True),
    "relu6": functional.relu6,
    "minimum": lambda x: torch.minimum(x, torch.tensor(1.0)),
    "maximum": lambda x: x.maximum(torch.tensor(1.0)),
    "maximum of two": lambda x: torch.max(x, other=torch.ones(())),
    "max of a dimension": lambda x: x.max(1).values,
    "min of a dimension": lambda x: torch.min(x, dim=0, keepdim=True)[0],
    "max of a dimension, and where": lambda x: x.max(-1).values + x.max(-1).indices,
    "amax": lambda x: x.amax(1),
    "max of all": lambda x: x.max(),
}


@pytest.mark.parametrize(
    ("name", "exporter"),
    sampled(
        [(name, exporter) for name in FUNCTIONS for exporter in ("dynamo", "legacy")],
        *((name, "legacy") for name in FUNCTIONS),
        *((name, "dynamo") for name in ("clamp by tensors", "hardtanh", "minimum", "max of a dimension", "amax")),
    ),
)
def test_gradients_at_bounds_and_ties_are_torchs(name: str, exporter: str, tmp_path: Path) -> None:
    net = Weighed(FUNCTIONS[name])
    options = OPTIONS | {"optimizer": "sgd", "exporter": exporter, "loss": "output:output"}
    made = poet_onnx.torch.export(net, torch.randn(2, 4), tmp_path / "net.onnx", **options)
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(1.0))
    session.step(INPUT.numpy())
    net(INPUT).backward()
    torch.testing.assert_close(torch.tensor(-session.parameters["bias"]), net.bias.grad)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_a_file_of_torchs_own_dynamo_exporter_tells_its_calls(tmp_path: Path) -> None:
    net = Weighed(nn.Hardtanh()).eval()
    torch.onnx.export(
        net, (INPUT,), tmp_path / "forward.onnx", dynamo=True, opset_version=18, verbose=False, output_names=["loss"]
    )
    rewrite = {"device": "a72", "target": "stock", "loss": "output:loss", "optimizer": "sgd"}
    result = poet_onnx.rewrite(tmp_path / "forward.onnx", **rewrite)
    assert {"Greater", "Less"} <= {node.op_type for node in result.graph.nodes}


def test_no_operator_of_the_trace_stays(tmp_path: Path) -> None:
    net = Weighed(FUNCTIONS["clamp as relu6"])
    options = OPTIONS | {"exporter": "legacy", "loss": "output:output"}
    made = poet_onnx.torch.export(net, INPUT, tmp_path / "net.onnx", **options)
    for path in (made.model, made.evaluation):
        assert path is not None
        assert "poet_onnx" not in {node.domain for node in onnx.load(path).graph.node}
