"""Running statistics that the artifact generator merged are one for each layer again; their variance is the biased."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from frozen_models import CLASSES, RATE, arrays, batches, export_frozen, train_torch
from torch import nn

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.graph.extract import load_model
from poet_onnx.passes.batch_norm_modes import SettleBatchNorm
from poet_onnx.passes.own_statistics import STATISTICS_KEY

X = (2, 3, 6, 6)
ELEMENTS = 2 * 6 * 6
"""Elements of a channel in a batch."""


def fresh_net() -> nn.Sequential:
    """Return a net whose normalizations have the statistics that torch begins with, all of the same values."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels in (3, 4, 4):
        layers += [nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)).train()


def merged(model: ir.Model) -> int:
    """Return how many running statistics fewer there are than two for each layer."""
    nodes = [node for node in model.graph if node.op_type == "BatchNormInternal"]
    return 2 * len(nodes) - len({value for node in nodes for value in node.inputs[3:5]})


@pytest.mark.parametrize("rewritten", [False, True])
def test_every_layer_moves_its_own_statistics(tmp_path: Path, rewritten: bool) -> None:
    net = fresh_net()
    data = batches(X, 3)
    path = export_frozen(net, data[0][0], tmp_path)
    assert merged(load_model(path)) == 4  # if this fails, the generator merges no longer
    model = poet_onnx.rewrite(path, device="a72").model if rewritten else path
    session = poet_onnx.TrainingSession(
        model, path.with_name("checkpoint"), optimizer=poet_onnx.SGD(RATE), eval_model=path.with_name("eval_model.onnx")
    )
    first = {name: value.numpy().copy() for name, value in net.state_dict().items() if "running" in name}
    losses = [session.step(*batch) for batch in arrays(data)]
    assert losses == pytest.approx(train_torch(net, data), rel=1e-5)
    for name, value in net.state_dict().items():
        if "running_mean" in name:
            assert session.parameters[name] == pytest.approx(value.numpy(), rel=1e-4, abs=1e-6)
        elif "running_var" in name:
            moved, by_torch = (array - 0.9**3 * first[name] for array in (session.parameters[name], value.numpy()))
            assert moved == pytest.approx(by_torch * (ELEMENTS - 1) / ELEMENTS, rel=1e-3)
    session.export_inference_model(tmp_path / "trained.onnx")
    exported = ir.load(tmp_path / "trained.onnx").graph.initializers
    for name in first:
        assert np.array_equal(exported[name].const_value.numpy(), session.parameters[name])


def test_the_names_are_torchs_without_the_evaluation_graph_too(tmp_path: Path) -> None:
    path = export_frozen(fresh_net(), torch.randn(X), tmp_path)
    for forward in (lambda: None, lambda: load_model(path.with_name("eval_model.onnx"))):
        model = load_model(path)
        SettleBatchNorm(forward=forward)(model)
        assert merged(model) == 0
        names = {
            value.name for node in model.graph if node.op_type == "BatchNormInternal" for value in node.inputs[3:5]
        }
        assert names == {f"{layer}.running_{kind}" for layer in (1, 4, 7) for kind in ("mean", "var")}
        assert set(model.graph.initializers) >= names


def test_a_layer_that_is_applied_twice_keeps_one_pair(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(3, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(torch.tanh(self.norm(x))).mean((2, 3)))

    path = export_frozen(Twice().train(), torch.randn(X), tmp_path)
    model = load_model(path)
    SettleBatchNorm()(model)
    (pair,) = {
        tuple(value.name for value in node.inputs[3:5]) for node in model.graph if node.op_type == "BatchNormInternal"
    }
    assert pair == ("norm.running_mean", "norm.running_var")


def test_a_constant_that_was_merged_with_a_statistic_stays_constant(tmp_path: Path) -> None:
    path = export_frozen(fresh_net(), torch.randn(X), tmp_path)
    proto = onnx.load(path)
    norm = next(node for node in proto.graph.node if node.op_type == "BatchNormInternal")
    proto.graph.node.append(onnx.helper.make_node("Neg", [norm.input[3]], ["negative"], "reader"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("negative", onnx.TensorProto.FLOAT, [4]))
    result = poet_onnx.rewrite(proto, device="a72")
    reader = next(node for node in result.model.graph if node.name == "reader")
    assert reader.inputs[0].name == f"{norm.input[3]}/constant"
    assert poet_onnx.verify(proto, result.model, feeds=2).problems == ()


def test_verify_undoes_the_same_merging(tmp_path: Path) -> None:
    path = export_frozen(fresh_net(), torch.randn(X), tmp_path)
    for target in ("training", "stock"):
        model = poet_onnx.rewrite(path, device="a72", target=target).model
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        alone = tmp_path / "elsewhere" / "training_model.onnx"
        alone.write_bytes(path.read_bytes())  # without the evaluation graph
        assert poet_onnx.verify(alone, model, feeds=2).problems == ()
    model.metadata_props[STATISTICS_KEY] = '{"a": 1}'
    with pytest.raises(InputError, match="is damaged: rewrite the original"):
        poet_onnx.verify(path, model)
