"""Frozen batch normalization: torch's losses, statistics that stay, only the gradients that are read, equal bits."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from deep import sampled
from frozen_models import (
    RATE,
    Repeated,
    arrays,
    batches,
    export_frozen,
    freeze_norms,
    norms,
    prepare,
    small_net,
    train_torch,
)
from random_plans import random_plan
from stock_environment import NEEDS_STOCK, STOCK_PYTHON
from torch import nn

import poet_onnx
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.errors import InputError
from poet_onnx.graph.extract import load_model
from poet_onnx.passes.batch_norm_modes import SettleBatchNorm
from poet_onnx.passes.frozen_batch_norm import FROZEN_KEY, FreezeBatchNorm, frozen_outputs
from poet_onnx.passes.lowering import normalize_for
from poet_onnx.passes.lowering import prepare as prepare_graph
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.reporting.inspection import inspect
from poet_onnx.rewriting.variants import variants

X = (4, 3, 8, 8)
CLOSE = 1e-5

TRAIN_ON_STOCK = """
import json, sys
import numpy as np
import poet_onnx
model, checkpoint, batches, evaluation = sys.argv[1:]
data = np.load(batches)
session = poet_onnx.TrainingSession(model, checkpoint, optimizer=poet_onnx.SGD(0.1), eval_model=evaluation)
losses = [session.step(data[f"x{i}"], data[f"y{i}"]) for i in range(len(data) // 2)]
statistics = {name: array.tolist() for name, array in session.parameters.items() if "running" in name}
json.dump([losses, statistics], sys.stdout)
"""


def mixed_net() -> nn.Sequential:
    """Return a net whose first normalization is frozen, its scale and bias too, and whose second trains."""
    net = small_net().train()
    net[1].eval().requires_grad_(False)
    return net


def statistics(net: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in net.state_dict().items() if "running" in name}


def session_of(model: object, path: Path) -> poet_onnx.TrainingSession:
    beside = path.with_name("eval_model.onnx")
    return poet_onnx.TrainingSession(
        model, path.with_name("checkpoint"), optimizer=poet_onnx.SGD(RATE), eval_model=beside
    )


@pytest.mark.parametrize("opset", [12, 13, 15])
def test_losses_are_those_of_torch_and_frozen_statistics_stay(tmp_path: Path, opset: int) -> None:
    net = mixed_net()
    first = statistics(net)
    data = batches(X, 5)
    path = export_frozen(net, data[0][0], tmp_path, opset=opset)
    expected = train_torch(net, data)
    plain, rewritten = (
        session_of(model, path)
        for model in (path, poet_onnx.rewrite(path, device="a72", activation_budget="100%").model)
    )
    losses = [plain.step(*batch) for batch in arrays(data)]
    assert losses == pytest.approx(expected, rel=CLOSE)
    assert losses == [rewritten.step(*batch) for batch in arrays(data)]
    for session in (plain, rewritten):
        assert {name for name in session.parameters if "running" in name} == set(first)
        for kind in ("running_mean", "running_var"):
            assert session.parameters[f"1.{kind}"].tobytes() == first[f"1.{kind}"].tobytes()
            assert (session.parameters[f"4.{kind}"] != first[f"4.{kind}"]).any()
    assert "1.running_mean" in plain.parameters


def test_frozen_statistics_come_from_the_parameters_and_go_where_training_goes_on(tmp_path: Path) -> None:
    net = small_net().train()
    freeze_norms(net)
    data = batches(X, 2)
    path = export_frozen(net, data[0][0], tmp_path)
    prepare(net, 7)  # other weights and statistics than were exported
    values = {name: value.numpy().copy() for name, value in net.state_dict().items() if "tracked" not in name}
    session = poet_onnx.TrainingSession(
        path, values, optimizer=poet_onnx.SGD(RATE), eval_model=path.with_name("eval_model.onnx")
    )
    assert [session.step(*batch) for batch in arrays(data)] == pytest.approx(train_torch(net, data), rel=CLOSE)
    session.save_checkpoint(tmp_path / "saved.safetensors")
    again = poet_onnx.TrainingSession(path, tmp_path / "saved.safetensors", optimizer=poet_onnx.SGD(RATE))
    again.load_checkpoint(tmp_path / "saved.safetensors")
    (batch,) = arrays(batches(X, 1))
    assert again.step(*batch) == session.step(*batch)
    session.eval()
    evaluated = session.step(*batch)
    session.export_inference_model(tmp_path / "trained.onnx")
    exported = ir.load(tmp_path / "trained.onnx").graph.initializers
    for name in statistics(net):
        assert np.array_equal(exported[name].const_value.numpy(), values[name])
    assert evaluated > 0


@pytest.mark.parametrize("target", ["training", "stock"])
@pytest.mark.parametrize("seed", sampled(range(4), 0))
def test_random_nets_keep_every_bit_under_random_plans(tmp_path: Path, seed: int, target: str) -> None:
    net = Repeated(seed)
    path = export_frozen(net, torch.randn(2, 3, 8, 8), tmp_path)
    model = load_model(path)
    SettleBatchNorm()(model)
    assert len(frozen_outputs(model)) == sum(not norm.training for norm in norms(net))
    normalize_for(target)(model)
    variant = next(variants(model, load_device("a72"), target))
    problem = ScheduleProblem(variant.graph, cost_table(variant.graph, load_device("a72")))
    plan = random_plan(problem, seed, recomputes=12, transfers=6)
    plan = replace(plan, part_bytes=variant.part_bytes, target=target)
    result = poet_onnx.rewrite(path, device="a72", plan=plan, target=target, optimizer="none")
    report = poet_onnx.verify(path, result.model, feeds=2, page_dir=tmp_path)
    assert report.problems == ()
    assert abs(report.measured_transient_peak_bytes - report.predicted_transient_peak_bytes) <= 64


@pytest.mark.parametrize("target", ["training", "stock"])
def test_the_smallest_budget_is_kept(tmp_path: Path, target: str) -> None:
    path = export_frozen(Repeated(2), torch.randn(2, 3, 8, 8), tmp_path)
    smallest = inspect(path, device="a72", target=target)
    assert smallest.frozen_batch_norms
    result = poet_onnx.rewrite(
        path, device="a72", activation_budget=smallest.smallest_budget_bytes, target=target, gap=0.5
    )
    assert poet_onnx.verify(path, result.model, feeds=2, page_dir=tmp_path).problems == ()


def test_only_gradients_that_are_read_are_computed(tmp_path: Path) -> None:
    """Frozen scale and bias leave one node that makes dX; where no gradient passes, there is none."""
    net = small_net().train()
    freeze_norms(net)
    net[4].requires_grad_(False)
    net[0].requires_grad_(False)
    model = load_model(export_frozen(net, torch.randn(X), tmp_path))
    SettleBatchNorm()(model)
    parts = Counter(
        (node.op_type, (node.name or "").split("/")[1]) for node in model.graph if "BatchNorm" in (node.name or "")
    )
    gradient_of = {key: count for key, count in parts.items() if key[0] != "Identity"}
    assert gradient_of == {
        ("BatchNormalization", "1"): 2,  # forward, and the normalized X
        ("Mul", "1"): 1,
        ("ReduceSum", "1"): 2,
        ("BatchNormalization", "4"): 2,  # forward, and dX
    }


def test_half_precision_sums_in_the_precision_of_its_parameters() -> None:
    half, random = (2, 4, 3, 3), np.random.default_rng(0)
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
        step (float16[2,4,3,3] x, float16[2,4,3,3] dy, float[4] s, float[4] b, float[4] m, float[4] v)
            => (float16[2,4,3,3] y, float16[2,4,3,3] dx, float[4] ds, float[4] db) {
            y, n, w, a, i = com.microsoft.BatchNormInternal<training_mode = 1, epsilon = 0.01>(x, s, b, m, v)
            dx, ds, db = com.microsoft.BatchNormalizationGrad<epsilon = 0.01>(dy, x, s, a, i)
        }""")
    SettleBatchNorm("all")(model)
    prepare_graph(target="stock")(model)
    feeds = {name: random.random(half).astype(np.float16) for name in ("x", "dy")}
    feeds |= {name: (0.5 + random.random(4)).astype(np.float32) for name in ("s", "b", "m", "v")}
    found = run_model(model, feeds)
    x, dy, s, b, m, v = (torch.tensor(feeds[name].astype(np.float64), requires_grad=True) for name in feeds)
    y = nn.functional.batch_norm(x, m.detach(), v.detach(), s, b, eps=0.01)
    y.backward(dy)
    for value, expected, rel in zip(found, (y, x.grad, s.grad, b.grad), (2e-3, 2e-3, 1e-6, 1e-6), strict=True):
        assert value == pytest.approx(expected.detach().numpy(), rel=rel)


def run_model(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), poet_onnx.session_options())
    return session.run(None, feeds)


def test_a_plan_for_the_other_form_is_refused(tmp_path: Path) -> None:
    path = export_frozen(mixed_net(), torch.randn(X), tmp_path)
    plan = poet_onnx.rewrite(path, device="a72").plan
    with pytest.raises(InputError, match="was made for graph"):
        poet_onnx.rewrite(path, device="a72", plan=plan, frozen_batch_norm="all")


def test_statistics_that_are_computed_in_the_step_cannot_be_frozen(tmp_path: Path) -> None:
    path = export_frozen(small_net(track_running_stats=False).eval(), torch.randn(X), tmp_path)
    model = load_model(path)
    SettleBatchNorm()(model)
    assert frozen_outputs(model) == ()
    with pytest.raises(InputError, match="are computed within the step, so it cannot be frozen"):
        SettleBatchNorm("all")(load_model(path))


def test_what_is_read_of_a_layers_own_statistics_is_refused(tmp_path: Path) -> None:
    model = load_model(export_frozen(small_net().train(), torch.randn(X), tmp_path))
    norm = next(node for node in model.graph if node.op_type == "BatchNormInternal")
    reader = ir.Node("", "Neg", [norm.outputs[1]], num_outputs=1, name="curious")
    model.graph.append(reader)
    with pytest.raises(InputError, match="'curious' reads '/1/BatchNormalization_output_1'"):
        SettleBatchNorm("all")(model)


@pytest.mark.parametrize("text", ["{", "3", '["a", 1]', "[" * 100_000], ids=["cut", "number", "names", "deep"])
def test_damaged_metadata_is_refused(tmp_path: Path, text: str) -> None:
    path = export_frozen(mixed_net(), torch.randn(X), tmp_path)
    rewritten = poet_onnx.rewrite(path, device="a72").model
    assert json.loads(rewritten.metadata_props[FROZEN_KEY]) == ["/1/BatchNormalization_output_0"]
    rewritten.metadata_props[FROZEN_KEY] = text
    with pytest.raises(InputError, match="is damaged: rewrite the original"):
        poet_onnx.verify(path, rewritten)


def test_an_original_without_the_layer_is_refused(tmp_path: Path) -> None:
    model = load_model(export_frozen(mixed_net(), torch.randn(X), tmp_path))
    with pytest.raises(InputError, match="no batch normalization in training that makes 'nothing'"):
        FreezeBatchNorm(["nothing"])(model)


@NEEDS_STOCK
@pytest.mark.deep
def test_resnet18_with_its_head_and_last_stage_trained_is_torchs_on_the_stock_runtime(tmp_path: Path) -> None:
    from convolutional_nets import resnet18

    torch.manual_seed(0)
    net = resnet18(10).train()
    prepare(net, 0)
    freeze_norms(net)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.split(".")[0] in ("9", "10", "13"))
    first = statistics(net)
    data = batches((2, 3, 32, 32), 5, classes=10)
    path = export_frozen(net, data[0][0], tmp_path)
    result = poet_onnx.rewrite(path, device="a72", activation_budget="75%", target="stock", gap=0.9, optimizer="sgd")
    assert len(result.frozen_batch_norms) == len(norms(net))
    result.save(tmp_path / "stock.onnx")
    named = {
        f"{axis}{number}": array
        for number, pair in enumerate(arrays(data))
        for axis, array in zip("xy", pair, strict=True)
    }
    np.savez(tmp_path / "batches.npz", **named)
    given = [tmp_path / name for name in ("stock.onnx", "checkpoint", "batches.npz", "eval_model.onnx")]
    command = [STOCK_PYTHON, "-c", TRAIN_ON_STOCK, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    losses, after = json.loads(done.stdout)
    assert losses == pytest.approx(train_torch(net, data), rel=CLOSE)
    assert {name: np.float32(value).tolist() for name, value in first.items()} == after
