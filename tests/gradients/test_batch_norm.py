"""Batch normalizations in files of torch's exporters: which train, and whose statistics move."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings

import numpy as np
import onnx
import pytest
import torch
from lowering_runs import gradients
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
OTHER = X.flip(0) * 2 + 1


class Siamese(nn.Module):
    """A network that two inputs go through."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, **options), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the difference."""
        return self.encoder(a) - self.encoder(b)


class Domains(nn.Module):
    """A normalization of two domains: each has statistics of its own, and both have one scale and shift."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the sum."""
        second = functional.batch_norm(b, self.mean, self.variance, self.norm.weight, self.norm.bias, training=True)
        return self.norm(a) + second


class Plain(nn.Sequential):
    """Two layers, each with a batch normalization whose numbers are as at the start: four tensors of two values."""

    def __init__(self) -> None:
        super().__init__(*(each for _ in range(2) for each in (nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())))


def exported(module: nn.Module, *inputs: Tensor, **options: object) -> onnx.ModelProto:
    file = io.BytesIO()
    kept = {"dynamo": False, "opset_version": 17, **options}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(copy.deepcopy(module), inputs, None if kept["dynamo"] else file, **kept)
    return onnx.load_from_string(file.getvalue()) if program is None else program.model_proto


LEGACY = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
DYNAMO = {"dynamo": True, "opset_version": None, "verbose": False}
BY_ALL = pytest.mark.parametrize(
    "options", [LEGACY, DYNAMO, {**DYNAMO, "optimize": False}], ids=["legacy", "dynamo", "dynamo, not optimized"]
)


@BY_ALL
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("moved", [True, False])
def test_one_that_trains_and_is_called_twice_is_refused(options: dict[str, object], affine: bool, moved: bool) -> None:
    torch.manual_seed(0)
    module = Siamese(affine=affine)
    if moved:
        module(X, OTHER)
    with pytest.raises(InputError, match=r"'[\w.]+' is called several times in a step, .*eval mode"):
        poet_onnx.train_graph(exported(module, X, OTHER, **options), loss="mse")


@pytest.mark.parametrize("optimize", [True, False])
def test_one_that_keeps_to_its_statistics_may_be_called_twice(optimize: bool) -> None:
    torch.manual_seed(0)
    module = Siamese()
    model = exported(module, X, OTHER, **{**DYNAMO, "optimize": optimize})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoetWarning)
        made = poet_onnx.train_graph(model, loss="mse", frozen_batch_norm="all")
    assert len(made.values) == len(list(module.parameters()))
    assert_gradients(made, module.eval(), X, OTHER)


@BY_ALL
def test_statistics_of_two_domains_move_apart(options: dict[str, object]) -> None:
    module = Domains()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoetWarning)
        made = poet_onnx.train_graph(exported(module, X, OTHER, **options), loss="mse")
    assert made.values.keys() == {"norm.weight", "norm.bias"}
    assert_gradients(made, module, X, OTHER)


@pytest.mark.parametrize("producer", ["pytorch", "another"])
def test_new_ones_that_were_exported_for_inference_are_told_and_train_if_asked(producer: str) -> None:
    torch.manual_seed(0)
    module = Plain()
    model = exported(module.eval(), X)
    model.producer_name = producer
    warned = pytest.warns(PoetWarning, match=r"was exported for inference .*--frozen-batch-norm none")
    with warnings.catch_warnings(), warned:
        warnings.filterwarnings("ignore", "The exporter merged|'1.weight' belongs", PoetWarning)
        kept = poet_onnx.train_graph(model, loss="mse")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The exporter merged|'1.weight' belongs", PoetWarning)
        moved = poet_onnx.train_graph(model, loss="mse", frozen_batch_norm="none")
    assert {"1.weight", "1.bias"} <= kept.values.keys() == moved.values.keys()
    if producer == "pytorch":  # of others an Identity is one parameter
        assert_gradients(kept, module, X)
        assert_gradients(moved, module.train(), X)
    statistics = {name for name in moved.training.graph.initializers if "running_" in name}
    assert len(statistics) == 4


def assert_gradients(made: poet_onnx.TrainGraph, module: nn.Module, *inputs: Tensor) -> None:
    module = copy.deepcopy(module)
    module.zero_grad()
    out = module(*inputs)
    out.square().mean().backward()
    names = [value.name for value in made.training.graph.inputs]
    feeds = {name: each.numpy() for name, each in zip(names, inputs, strict=False)}
    found = gradients(made, feeds | {"target": np.zeros(out.shape, np.float32)})
    expected = {name: each.grad.numpy() for name, each in module.named_parameters() if each.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)
