"""Whatever a module returns beside its loss has its name, or the name that a warning tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_options import OPTIONS

import poet_onnx
import poet_onnx.torch
from poet_onnx.errors import PoetWarning

EXPORTERS = pytest.mark.parametrize("exporter", ["dynamo", "legacy"])


class Returning(nn.Module):
    """Returns a loss, and what a function makes of itself, the scores and the input."""

    def __init__(self, function: Callable[[Any, Tensor, Tensor], dict[str, Tensor]]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return outputs by name."""
        scores = self.layer(x)
        return {"loss": scores.square().mean(), **self.function(self, scores, x)}


def export(module: nn.Module, folder: Path, exporter: str) -> poet_onnx.torch.Exported:
    options = OPTIONS | {"exporter": exporter, "loss": "output:loss", "optimizer": "sgd"}
    return poet_onnx.torch.export(module, torch.randn(3, 4), folder / "net.onnx", **options)


@EXPORTERS
def test_a_parameter_an_input_and_a_tensor_twice_are_outputs(exporter: str, tmp_path: Path) -> None:
    net = Returning(lambda net, scores, x: {"w": net.layer.weight, "given": x, "a": scores, "b": scores})
    before = net.layer.weight.detach().clone()
    made = export(net, tmp_path, exporter)
    assert [output.name for output in made.forward.graph.outputs] == ["loss", "w", "given", "a", "b"]
    session = poet_onnx.TrainingSession(
        made.model, made.parameters, optimizer=poet_onnx.SGD(1.0), eval_model=made.evaluation
    )
    session.step(torch.ones(3, 4).numpy())
    assert not np.array_equal(session.parameters["layer.weight"], before.numpy())


@EXPORTERS
def test_an_output_with_the_name_of_an_input_is_warned_of(exporter: str, tmp_path: Path) -> None:
    net = Returning(lambda _, scores, x: {"x": scores, "loss_2": x + 1})
    with pytest.warns(PoetWarning, match=r"^Names of outputs are taken, .*: 'x' is called 'x_2'\.$"):
        made = export(net, tmp_path, exporter)
    assert [output.name for output in made.forward.graph.outputs] == ["loss", "x_2", "loss_2"]
