"""Models for inference: the outputs of the torch module by name, in order and in value, whatever the loss was."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.training import artifacts, onnxblock
from stock_environment import STOCK_PYTHON
from torch_artifacts import make_artifacts
from training_batches import batch, session_of, train

from poet_onnx import TrainingSession
from poet_onnx.errors import InputError

CLASSES = 2
RUN = """
import json, sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
x = numpy.array(json.loads(sys.argv[2]), numpy.float32)
print(json.dumps([[v.name for v in session.get_outputs()], *[v.tolist() for v in session.run(None, {"x": x})]]))
"""


class Net(torch.nn.Module):
    """A net that infers otherwise than it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 5)
        self.norm = torch.nn.BatchNorm1d(5)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(5, CLASSES)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the last layer reads."""
        return self.drop(torch.relu(self.norm(self.first(x))))

    def forward(self, x: torch.Tensor) -> Any:
        """Return scores."""
        return self.last(self.hidden(x))


class TwoOutputs(Net):
    """A net that returns what it made last first."""

    def forward(self, x: torch.Tensor) -> Any:
        """Return scores and what they are made of."""
        hidden = self.hidden(x)
        return self.last(hidden), hidden


class LossInside(Net):
    """A net that computes its loss, as those of transformers do."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """Return the loss and scores."""
        scores = self.last(self.hidden(x))
        return torch.nn.functional.mse_loss(torch.log_softmax(scores, 1), y), scores


class LossAlone(LossInside):
    """A net that returns its loss alone."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """Return the loss."""
        return super().forward(x, y)[0]


class SumOfLosses(onnxblock.Block):  # type: ignore[misc]
    """A loss of two outputs, or twice of one; its labels stand in front of each other's."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = (onnxblock.loss.BCEWithLogitsLoss(), onnxblock.loss.MSELoss())
        self.add = onnxblock.blocks.Add()

    def build(self, first: str, second: str | None = None) -> str:
        """Add the losses."""
        parts = [
            loss(name, f"label_of_{name}") for loss, name in zip(self.losses, (first, second or first), strict=True)
        ]
        return str(self.add(*parts))


class WrittenByHand(onnxblock.Block):  # type: ignore[misc]
    """A loss that names its nodes as it likes."""

    def build(self, scores: str) -> str:
        """Add the mean of squares, which needs no labels."""
        made = [("Mul", [scores, scores], "squared"), ("ReduceMean", ["squared"], "mean of squares")]
        self.base.graph.node.extend(onnx.helper.make_node(op, read, [name], name=name) for op, read, name in made)
        self.base.graph.node[-1].attribute.append(onnx.helper.make_attribute("keepdims", 0))
        return "mean of squares"


LOSSES: dict[str, Callable[[], Any]] = {
    "CrossEntropyLoss": lambda: artifacts.LossType.CrossEntropyLoss,
    "MSELoss": lambda: artifacts.LossType.MSELoss,
    "L1Loss": lambda: artifacts.LossType.L1Loss,
    "BCEWithLogitsLoss": lambda: artifacts.LossType.BCEWithLogitsLoss,
    "blocks": SumOfLosses,
    "by hand": WrittenByHand,
}


def trained(folder: Path, module: Net, outputs: list[str], **options: Any) -> TrainingSession:
    """Return a session of a net that is trained by three steps; the net gets its numbers."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(4, 6)}
    if isinstance(module, LossInside):
        inputs["y"] = torch.randn(4, CLASSES)
    path = make_artifacts(folder, module, inputs, outputs, **options)
    session = session_of(path, eval_model=path.with_name("eval_model.onnx"))
    train(session, 3)
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in session.parameters.items()}, False)
    return session


def check_exported(path: Path, session: TrainingSession, module: Net, names: list[str]) -> None:
    """Check names, order and values of an exported file's outputs against the net's in both runtimes."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == names
    assert [value.name for value in model.graph.input] == ["x"]
    feeds = batch(session, 1, 0)
    given = [torch.from_numpy(array) for name, array in feeds.items() if name == "x" or isinstance(module, LossInside)]
    with torch.no_grad():
        expected = module.eval()(*given)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)[-len(names) :]
    found = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": feeds["x"]})
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)
    if STOCK_PYTHON:
        command = [STOCK_PYTHON, "-c", RUN, str(path), json.dumps(feeds["x"].tolist())]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        said, *values = json.loads(done.stdout)
        assert said == names
        for ours, theirs in zip(values, expected, strict=True):
            np.testing.assert_allclose(np.array(ours, np.float32), theirs.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_outputs_are_those_of_the_module(tmp_path: Path, loss: str) -> None:
    module = Net()
    session = trained(tmp_path, module, ["scores"], loss=LOSSES[loss]())
    session.export_inference_model(tmp_path / "inference.onnx")
    check_exported(tmp_path / "inference.onnx", session, module, ["scores"])


def test_a_loss_within_the_module_is_left_out(tmp_path: Path) -> None:
    module = LossInside()
    session = trained(tmp_path, module, ["loss", "scores"], loss=None)
    session.export_inference_model(tmp_path / "inference.onnx")
    check_exported(tmp_path / "inference.onnx", session, module, ["scores"])


def test_outputs_in_an_order_that_nothing_tells_are_named_by_the_caller(tmp_path: Path) -> None:
    module = TwoOutputs()
    session = trained(tmp_path, module, ["scores", "hidden"], loss=SumOfLosses())
    target = tmp_path / "inference.onnx"
    with pytest.raises(InputError, match=r"order of the model's outputs 'scores', 'hidden': .* outputs=\[\.\.\.\]"):
        session.export_inference_model(target)
    assert not target.exists()
    session.export_inference_model(target, outputs=["scores", "hidden"])
    check_exported(target, session, module, ["scores", "hidden"])


def test_outputs_that_the_evaluation_graph_returns_keep_their_order(tmp_path: Path) -> None:
    module, names = TwoOutputs(), ["scores", "hidden"]
    session = trained(tmp_path, module, names, loss=SumOfLosses(), additional_output_names=names)
    session.export_inference_model(tmp_path / "inference.onnx")
    check_exported(tmp_path / "inference.onnx", session, module, names)


def test_an_output_that_the_loss_does_not_read_is_not_forgotten(tmp_path: Path) -> None:
    cross_entropy = {"loss": artifacts.LossType.CrossEntropyLoss, "loss_input_names": ["scores"]}
    session = trained(tmp_path, TwoOutputs(), ["scores", "hidden"], **cross_entropy)
    with pytest.raises(InputError, match="order of the model's outputs 'scores', 'hidden'"):
        session.export_inference_model(tmp_path / "inference.onnx")


def test_a_model_that_returns_its_loss_alone_tells_no_outputs(tmp_path: Path) -> None:
    module = LossAlone()
    session = trained(tmp_path, module, ["loss"], loss=None)
    with pytest.raises(
        InputError, match=r"'loss' alone, .* such as .*'/LogSoftmax_output_0', .* give the forward model"
    ):
        session.export_inference_model(tmp_path / "inference.onnx")
    session.export_inference_model(tmp_path / "inference.onnx", outputs=["/LogSoftmax_output_0"])
    found = onnxruntime.InferenceSession(str(tmp_path / "inference.onnx")).run(None, {"x": batch(session, 1, 0)["x"]})
    np.testing.assert_allclose(np.exp(found[0]).sum(1), 1, rtol=1e-5)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    session = trained(tmp_path, Net(), ["scores"], loss=artifacts.LossType.MSELoss)
    for outputs in ([], ["scores", "scores"], "scores", 3, [3], [["scores"]], iter(["scores"]), b"scores"):
        with pytest.raises(
            InputError, match=r"^The outputs to export are .*: give a list of one name or more, each once"
        ):
            session.export_inference_model(tmp_path / "inference.onnx", outputs=outputs)
    for merge in ("x", 1, None):
        with pytest.raises(InputError, match=f"^merge is {merge!r}, but must be True or False"):
            session.export_inference_model(tmp_path / "inference.onnx", merge=merge)
    with pytest.raises(InputError, match="not the training graph"):
        session.export_inference_model(tmp_path / "inference.onnx", model=tmp_path / "training_model.onnx")
    assert not (tmp_path / "inference.onnx").exists()
