"""Damaged graphs: a training session takes them or refuses them in one sentence, and nothing else happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
from folders import SUPPORT
from onnxruntime.training import onnxblock
from torch_artifacts import make_artifacts

from poet_onnx import TrainingSession
from poet_onnx.errors import InputError
from poet_onnx.training.runner import aligned

SEEDS = 20


class Net(torch.nn.Module):
    """A net of a table, a convolution, running statistics and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(7, 4)
        self.mix = torch.nn.Conv1d(4, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.2)
        self.last = torch.nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        mixed = self.norm(self.mix(self.words(ids).transpose(1, 2)))
        return self.last(self.drop(torch.relu(mixed)).mean(2))


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the training graph of a net."""
    ids = torch.zeros(2, 4, dtype=torch.int64)
    folder = tmp_path_factory.mktemp("net")
    return make_artifacts(folder, Net(), {"ids": ids}, ["scores"], loss=onnxblock.loss.CrossEntropyLoss())


def test_damaged_graphs_are_taken_or_refused(net: Path) -> None:
    script = SUPPORT / "training_mutations.py"
    done = subprocess.run(
        [sys.executable, str(script), str(net.parent), "0", str(SEEDS)], capture_output=True, text=True, check=False
    )
    said = [line.split()[-1] for line in done.stdout.splitlines() if line.split()[0].isdecimal()]
    assert done.returncode == 0, (done.stdout[-20:], done.stderr[-3000:])
    assert len(said) == SEEDS
    assert min(said.count("taken"), said.count("refused")) > SEEDS // 20
    assert "Traceback" not in done.stderr


def lose_output(graph: onnx.GraphProto) -> None:
    """Let an accumulator's output be no output of the graph."""
    del graph.output[-1]


def lose_flag(graph: onnx.GraphProto) -> None:
    """Take the flag of an accumulator."""
    del graph.node[-1].input[2]


def lose_gradient(graph: onnx.GraphProto) -> None:
    """Take the gradient of an accumulator."""
    graph.node[-1].input[1] = ""


def read_buffer(graph: onnx.GraphProto) -> None:
    """Let an accumulator add a buffer to another one."""
    graph.node[-1].input[1] = graph.node[-2].input[0]


def repeat_input(graph: onnx.GraphProto) -> None:
    """Write an input twice."""
    graph.input.append(graph.input[0])


def read_nothing(graph: onnx.GraphProto) -> None:
    """Let a node read what nothing makes."""
    graph.node[3].input[0] = "nowhere"


def lose_data(graph: onnx.GraphProto) -> None:
    """Shorten a constant's data."""
    next(tensor for tensor in graph.initializer if "running_mean" in tensor.name).raw_data = b"abc"


def lose_type(graph: onnx.GraphProto) -> None:
    """Take the element type of a parameter."""
    next(value for value in graph.input if value.name == "last.bias").type.tensor_type.elem_type = 0


def take_strings(graph: onnx.GraphProto) -> None:
    """Add an input of strings that is returned."""
    graph.input.append(onnx.helper.make_tensor_value_info("words", onnx.TensorProto.STRING, [1]))
    graph.node.append(onnx.helper.make_node("Identity", ["words"], ["same"]))
    graph.output.append(onnx.helper.make_tensor_value_info("same", onnx.TensorProto.STRING, [1]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_output, "No output of the model says that the accumulator '.*' ran"),
        (lose_flag, "accumulator '.*' lacks a gradient, or a flag"),
        (lose_gradient, "accumulator '.*' lacks a gradient, or a flag"),
        (read_buffer, "'.*accumulation.buffer' is read by more than the accumulators"),
        (repeat_input, "two values named 'ids'"),
        (read_nothing, r"'nowhere' is not there when node '.*' \(operator .*\) reads it"),
        (lose_data, "'norm.running_mean' of shape .* does not have the 4 elements"),
        (lose_type, "Parameter 'last.bias' has no element type"),
        (take_strings, "The graph input 'words' holds strings"),
    ],
)
def test_what_a_graph_lacks_is_named(
    net: Path, tmp_path: Path, damage: Callable[[onnx.GraphProto], None], message: str
) -> None:
    model = onnx.load(net)
    damage(model.graph)
    onnx.save(model, tmp_path / "damaged.onnx")
    with pytest.raises(InputError, match=message):
        TrainingSession(tmp_path / "damaged.onnx", net.with_name("checkpoint"))


def test_functions_and_subgraphs_read_what_is_around_them(net: Path, tmp_path: Path) -> None:
    """An evaluation graph with both is taken; one whose inner graph reads nothing is not."""
    model = onnx.load(net.with_name("eval_model.onnx"))
    loss = model.graph.output[0].name
    one = onnx.helper.make_node("If", ["yes"], ["chosen"])
    for branch in ("then_branch", "else_branch"):
        inner = onnx.helper.make_node("Neg", [loss], [f"{branch}/negative"])
        made = onnx.helper.make_tensor_value_info(inner.output[0], onnx.TensorProto.FLOAT, [])
        one.attribute.append(onnx.helper.make_attribute(branch, onnx.helper.make_graph([inner], branch, [], [made])))
    model.graph.initializer.append(onnx.helper.make_tensor("yes", onnx.TensorProto.BOOL, [], [True]))
    model.graph.node.append(one)
    model.graph.output[0].name = "chosen"
    onnx.save(model, tmp_path / "inner.onnx")
    TrainingSession(net, net.with_name("checkpoint"), eval_model=tmp_path / "inner.onnx")
    one.attribute[0].g.node[0].input[0] = "nowhere"
    model.graph.node[-1].CopyFrom(one)
    onnx.save(model, tmp_path / "inner.onnx")
    with pytest.raises(InputError, match="'nowhere' is not there"):
        TrainingSession(net, net.with_name("checkpoint"), eval_model=tmp_path / "inner.onnx")


def test_memory_that_there_is_not_is_refused() -> None:
    for shape in ((2**60,), (2**31, 2**31, 2**31)):
        with pytest.raises(InputError, match=r"no memory for a tensor of shape \["):
            aligned(shape, ir.DataType.FLOAT.numpy())
