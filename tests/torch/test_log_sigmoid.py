"""The logarithm of a sigmoid: very wrong samples are learned, and those that are nearly right are told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from deep import sampled
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
import poet_onnx.torch


class Weighed(nn.Module):
    """A loss of one score for each sample, and probabilities that share the sigmoid's input."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(3, 1)

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return both."""
        scores = self.scores(x).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(scores, target, pos_weight=torch.tensor([3.0]))
        return {"loss": loss - functional.logsigmoid(scores).mean(), "right": torch.sigmoid(scores)}


@pytest.mark.parametrize(
    ("exporter", "bias"),  # of ONNX Runtime the sigmoid of -40 is that of -18
    sampled([("dynamo", 9.0), ("dynamo", -40.0), ("dynamo", -200.0), ("legacy", -40.0)], ("dynamo", -40.0)),
)
def test_gradients_are_torchs_far_from_zero(exporter: str, bias: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, batch = Weighed(), {"x": torch.randn(8, 3), "target": torch.ones(8)}
    with torch.no_grad():
        net.scores.bias.fill_(bias)
    made = poet_onnx.torch.export(
        net,
        batch,
        tmp_path / "net.onnx",
        loss="output:loss",
        device="a72",
        target="stock",
        optimizer="sgd",
        exporter=exporter,
        example_labels=[],
    )
    for node in made.forward.graph:
        assert node.op_type != "Log" or node.inputs[0].producer().op_type != "Sigmoid"
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(1.0))
    loss = net(**batch)["loss"]
    loss.backward()
    before = session.parameters["scores.bias"].copy()
    assert session.step(batch) == pytest.approx(loss.item(), rel=1e-4)
    moved = before - session.parameters["scores.bias"]
    assert net.scores.bias.grad is not None
    np.testing.assert_allclose(moved, net.scores.bias.grad, rtol=1e-2 if bias > 0 else 1e-5)
