"""Files that a program optimized for inference are warned of, and tied weights are one in them, too."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from export_models import quiet
from forward_models import parse, random, step
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import PoetWarning

IDS = torch.tensor([[1, 4, 2], [0, 3, 5]])
OPTIMIZED = r"optimized this file\. What was merged, folded or dropped .*: give the file as it was exported"


class Tied(nn.Module):
    """Scores of words by the table that they are looked up in."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.middle = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.scores = nn.Linear(6, 9, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of each word."""
        return self.scores(torch.tanh(self.middle(self.words(ids)))).flatten(0, 1)


def exported(module: nn.Module, path: Path, *, dynamo: bool = False) -> Path:
    """Export a module as limits.md says, and return the file."""
    options = {"optimize": False} if dynamo else {"do_constant_folding": False, "input_names": ["ids"]}
    mode = {} if dynamo else {"training": torch.onnx.TrainingMode.TRAINING}
    with quiet():
        torch.onnx.export(module.train(), (IDS,), path, dynamo=dynamo, **options, **mode)
    return path


def optimized(path: Path) -> Path:
    """Let ONNX Runtime optimize a file, and return the other one."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path.with_suffix(".basic.onnx"))
    onnxruntime.InferenceSession(str(path), options)
    return path.with_suffix(".basic.onnx")


def test_what_onnxruntime_optimized_is_warned_of_and_a_tied_table_is_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Tied()
    path = exported(module, tmp_path / "net.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        poet_onnx.train_graph(path)
    file = optimized(path)
    assert "/scores/Transpose_output_0" in {each.name for each in onnx.load(file).graph.initializer}
    with pytest.warns(PoetWarning, match=f"^ONNX Runtime {OPTIMIZED}"):
        made = poet_onnx.train_graph(file)
    labels = np.arange(6)
    loss, gradients = step(made, ids=IDS.numpy(), labels=labels)
    expected = functional.cross_entropy(module(IDS), torch.tensor(labels))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    table = module.words.weight.grad
    assert table is not None
    np.testing.assert_allclose(gradients["words.weight"], table.numpy(), rtol=1e-4, atol=1e-6)


def test_other_programs_are_known_by_what_they_leave(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = onnx.load(exported(Tied(), tmp_path / "net.onnx"))
    entry = model.metadata_props.add()
    entry.key, entry.value = "onnxsim.constant_folding", "true"
    with pytest.warns(PoetWarning, match=f"^onnxsim {OPTIMIZED}"):
        poet_onnx.train_graph(model)
    model = onnx.load(exported(Tied(), tmp_path / "net.onnx"))
    model.producer_name = "onnxruntime.transformers"
    with pytest.warns(PoetWarning, match=rf"^onnxruntime\.transformers {OPTIMIZED}"):
        poet_onnx.train_graph(model)


def test_a_file_that_lost_the_exporters_words_is_warned_of(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = onnx.load(exported(nn.Sequential(nn.Embedding(9, 6), nn.Flatten()), tmp_path / "net.onnx", dynamo=True))
    for holder in (model.graph, *model.graph.node, *model.graph.initializer, *model.graph.value_info):
        del holder.metadata_props[:]
    with pytest.warns(PoetWarning, match=r"^This file has lost what torch's dynamo exporter said of its parameters"):
        poet_onnx.train_graph(model)


def test_what_was_computed_behind_torch_is_named() -> None:
    model = parse("g (float[4, 6] x) => (float[4, 5] y) { y = MatMul(x, w) }", {"w": random(6, 5)})
    model.graph.initializers["w"].name = "/a/Mul_output_0"
    model.producer_name = "pytorch"
    with pytest.warns(PoetWarning, match=r"^Another program than torch computed '/a/Mul_output_0' of parameters"):
        poet_onnx.train_graph(model, loss="mse")
