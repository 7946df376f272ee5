"""Verification finds nothing wrong with a rewrite, and everything wrong with a damaged one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from deep import sampled
from onnx import helper
from small_models import export_small

import poet_onnx
from poet_onnx.description.metadata import Description, State, Updates
from poet_onnx.description.names import TRAINING_KEY
from poet_onnx.errors import InputError
from poet_onnx.passes.metadata import WriteMetadata
from poet_onnx.plan import Action
from poet_onnx.plan.serialization import from_json
from poet_onnx.rewriting.rewrite import RewriteResult
from poet_onnx.verification import VerificationReport
from poet_onnx.verification.claims import false_claims


@pytest.fixture(scope="module")
def path(model_path: Callable[..., Path]) -> Path:
    return model_path("densenet")


@pytest.fixture(scope="module")
def result(path: Path) -> RewriteResult:
    return poet_onnx.rewrite(path, device="tx2", activation_budget="65%")


def move(model: ir.Model, name: str, after: str) -> None:
    nodes = {node.name: node for node in model.graph}
    model.graph.remove(nodes[name])
    model.graph.insert_after(nodes[after], nodes[name])


@pytest.mark.deep
def test_a_rewrite_keeps_every_promise(path: Path, result: RewriteResult, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result.save(out)
    report = poet_onnx.verify(path, out, feeds=3, page_dir=tmp_path, optimized=True)
    assert report.problems == ()
    assert report.passed
    assert report.bits_equal
    assert report.order_exact
    assert report.plan_carried_out
    assert not report.seeds_pinned
    assert (report.steps, report.outputs_compared) == (3, len(result.graph.outputs))
    assert report.executed_nodes == len(result.model.graph)
    assert report.measured_transient_peak_bytes == report.predicted_transient_peak_bytes
    assert report.budget_bytes is not None
    assert report.measured_transient_peak_bytes <= report.budget_bytes < report.original_transient_peak_bytes
    assert report.recomputed_nodes == result.rewritten.recomputed_nodes > 0
    assert report.optimized is not None
    assert report.optimized.bits_equal
    assert report.optimized.recomputed_nodes_alive == report.recomputed_nodes
    assert [file.name for file in tmp_path.iterdir()] == ["out.onnx"]


def test_the_report_goes_to_json_and_back(path: Path, result: RewriteResult) -> None:
    report = poet_onnx.verify(path, result.model, feeds=1)
    assert VerificationReport.model_validate_json(report.model_dump_json()) == report
    assert json.loads(report.model_dump_json())["passed"] is True


def test_running_statistics_and_gradient_buffers_are_compared(path: Path, result: RewriteResult) -> None:
    report = poet_onnx.verify(path, result.model, feeds=2)
    updated = {name for node in result.graph.nodes for name in node.updates}
    assert report.buffers_compared == len(updated)
    assert any("running_mean" in name for name in updated)
    assert any("accumulation.buffer" in name for name in updated)


def test_state_that_is_updated_twice_is_found(path: Path, result: RewriteResult) -> None:
    model = result.model.clone()
    copies = [node for node in model.graph if "BatchNorm" in node.op_type and "/recompute_" in (node.name or "")]
    originals = {node.name: node for node in model.graph}
    original = originals[(copies[0].name or "").split("/recompute_")[0]]
    for index in (3, 4):
        copies[0].replace_input_with(index, original.inputs[index])
    report = poet_onnx.verify(path, model, feeds=1)
    assert not report.passed
    assert not report.plan_carried_out
    assert not report.bits_equal
    assert {each.tensor for each in report.differences} == {original.inputs[3].name, original.inputs[4].name}  # type: ignore[union-attr]


def test_a_changed_weight_is_found_and_located(path: Path, result: RewriteResult) -> None:
    model = result.model.clone()
    name = next(name for name in model.graph.initializers if name.endswith("/Scale"))
    constant = model.graph.initializers[name]
    assert constant.const_value is not None
    changed = constant.const_value.numpy() * np.float32(1.0001)
    constant.const_value = ir.tensor(changed.astype(constant.const_value.numpy().dtype), name=name)
    report = poet_onnx.verify(path, model, feeds=1)
    assert not report.passed
    assert not report.bits_equal
    first = report.differences[0]
    assert (first.step, first.ulp is not None and first.ulp > 0) == (0, True)
    assert report.problems[0].startswith(f"Bits differ: '{first.tensor}")
    assert "ulp apart" in report.problems[0]


def test_another_order_is_found(path: Path, result: RewriteResult) -> None:
    model = result.model.clone()
    last = [node.name or "" for node in model.graph][-1]
    accumulator = next(node.name or "" for node in model.graph if node.op_type == "InPlaceAccumulatorV2")
    move(model, accumulator, last)
    report = poet_onnx.verify(path, model, feeds=1)
    assert not report.plan_carried_out
    assert report.bits_equal
    assert report.order_exact, "the runtime still follows the file"


def test_a_wrong_prediction_is_found(path: Path, result: RewriteResult) -> None:
    model = result.model.clone()
    low = result.rewritten.transient_peak_bytes * 99 // 100
    plan = replace(result.plan, prediction=replace(result.rewritten, transient_peak_bytes=low))
    WriteMetadata(result.graph, plan, version="0")(model)
    report = poet_onnx.verify(path, model, feeds=1)
    assert len(report.problems) == 1
    assert "+1.01%" in report.problems[0]
    assert f"{low:,}" in report.problems[0]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("poet.resident_bytes", "1"),
        ("poet.transient_peak_bytes", "1000"),
        ("poet.step_peak_bytes", "1001"),
        ("poet.energy_joules", "1e-9"),
        ("poet.seconds", "1e-9"),
        ("poet.device", "tx3"),
        ("poet.source_fingerprint", "0" * 64),
        ("poet.certificate", '{"status": "optimal", "gap": 0.0}'),
        ("poet.seconds", None),
    ],
)
def test_forged_metadata_are_found(result: RewriteResult, key: str, text: str | None) -> None:
    model = result.model.clone()
    plan = from_json(model.metadata_props["poet.plan"], result.graph)
    assert list(false_claims(model, result.graph, plan)) == []
    del model.metadata_props[key]
    if text is not None:
        model.metadata_props[key] = text
    (problem,) = false_claims(model, result.graph, plan)
    assert problem.startswith("The file says " + ("nothing" if text is None else repr(text)))
    assert f"for {key}, but its plan says " in problem


@pytest.mark.parametrize("figure", ["resident_bytes", "page_in_bytes", "recomputed_nodes"])
def test_figures_that_the_steps_do_not_make_are_found(path: Path, result: RewriteResult, figure: str) -> None:
    """Metadata and plan agree on a forged figure; the steps tell."""
    model = result.model.clone()
    made = getattr(result.rewritten, figure)
    plan = replace(result.plan, prediction=replace(result.rewritten, **{figure: made + 1}))
    WriteMetadata(result.graph, plan, version="0")(model)
    report = poet_onnx.verify(path, model, feeds=1)
    assert not report.passed
    assert not report.metadata_true
    assert report.problems == (f"The plan in the file says {made + 1:,} {figure}, and its steps make {made:,}.",)


def test_settings_that_cannot_be_are_refused(path: Path, result: RewriteResult) -> None:
    for key, text in (
        ("poet.target", "gpu"),
        ("poet.threads", "0"),
        ("poet.threads", "many"),
        ("poet.threads", "9" * 5000),
        ("poet.dims", "{"),
        ("poet.dims", "[1]"),
        ("poet.dims", '{"batch": -1}'),
        ("poet.dims", "[" * 100_000),
    ):
        model = result.model.clone()
        model.metadata_props[key] = text
        with pytest.raises(InputError, match=rf"metadata are damaged: {key} "):
            poet_onnx.verify(path, model, feeds=1)


def test_a_model_is_verified_with_the_threads_that_it_was_planned_for(model_path: Callable[..., Path]) -> None:
    path = model_path("mobilenet")
    one, two = (poet_onnx.rewrite(path, device="host", threads=threads) for threads in (1, 2))
    workspace = [sum(cost.workspace_bytes for cost in made.costs.nodes.values()) for made in (one, two)]
    assert workspace[0] < workspace[1]
    report = poet_onnx.verify(path, two.model, feeds=2)
    assert report.passed, report.problems
    assert report.threads == 2
    buffer_bytes = 64 << 10  # of a thread in a convolution, where this runtime takes fewer than the stock one
    planned_bytes = two.rewritten.transient_peak_bytes
    assert planned_bytes - buffer_bytes < report.measured_transient_peak_bytes <= planned_bytes


def test_a_smaller_budget_is_found_exceeded(path: Path, result: RewriteResult) -> None:
    report = poet_onnx.verify(path, result.model, feeds=1, budget_bytes=1000)
    assert len(report.problems) == 1
    assert "exceeds the budget of 1,000 bytes" in report.problems[0]


def test_copies_that_the_runtime_merges_are_found_lost(path: Path, result: RewriteResult) -> None:
    """Without its gates a recomputed node reads what the original reads, and the optimizer merges the two."""
    model = result.model.clone()
    for node in list(model.graph):
        if node.op_type == "Gate" and not node.outputs[0].is_graph_output():
            source = node.inputs[0]
            assert source is not None
            node.outputs[0].replace_all_uses_with(source)
            model.graph.remove(node, safe=True)
    report = poet_onnx.verify(path, model, feeds=1, optimized=True)
    assert report.optimized is not None
    assert report.optimized.bits_equal
    assert report.optimized.lost_nodes
    assert any("recomputed nodes are lost" in problem for problem in report.problems)


def test_a_model_that_the_runtime_refuses_is_a_problem_not_a_crash(path: Path, result: RewriteResult) -> None:
    model = result.model.clone()
    next(node for node in model.graph if node.op_type == "ConvGrad").op_type = "NoSuchOperator"
    report = poet_onnx.verify(path, model, feeds=1)
    assert any(problem.startswith("ONNX Runtime cannot load the rewritten model") for problem in report.problems)
    assert "\n" not in report.problems[-1]


def test_a_model_that_fails_as_it_runs_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    """A computed index is beyond what it is one of, which nobody can know before the node runs."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Sub", ["most", "most"], ["nothing"]),
        helper.make_node("Cast", ["nothing"], ["moved"], to=onnx.TensorProto.INT64),
        helper.make_node("Constant", [], ["places"], value_ints=[0, 7]),
        helper.make_node("Add", ["places", "moved"], ["columns"]),
        helper.make_node("Gather", ["x", "columns"], ["chosen"], axis=1),
        helper.make_node("MatMul", ["chosen", "w"], ["scores"]),
    ]
    path = export_small(tmp_path, nodes, {"w": (2, 3)}, x=(2, 4), classes=3)
    result = poet_onnx.rewrite(path, device="host")
    report = poet_onnx.verify(path, result.model, feeds=1)
    assert not report.passed
    assert report.problems[0].startswith("ONNX Runtime cannot run the original model: ")


def test_random_operators_get_the_same_seeds_and_the_report_says_so(model_path: Callable[..., Path]) -> None:
    path = model_path("transformer")
    result = poet_onnx.rewrite(path, device="a72", activation_budget="80%")
    assert (
        any(step.copy for step in result.plan.steps if step.action is Action.COMPUTE) or result.rewritten.page_in_bytes
    )
    report = poet_onnx.verify(path, result.model, feeds=2)
    assert report.problems == ()
    assert report.seeds_pinned


def test_models_in_memory_are_not_changed(path: Path, result: RewriteResult) -> None:
    original = onnx.load(path)
    before = original.SerializeToString(deterministic=True), ir.to_proto(result.model).SerializeToString()
    poet_onnx.verify(original, result.model, feeds=1)
    assert (original.SerializeToString(deterministic=True), ir.to_proto(result.model).SerializeToString()) == before


def test_what_cannot_be_verified_is_refused(
    path: Path, result: RewriteResult, model_path: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="The second model holds no plan"):
        poet_onnx.verify(path, path)
    with pytest.raises(InputError, match="The first model was rewritten"):
        poet_onnx.verify(result.model, result.model)
    with pytest.raises(InputError, match="computes no gradients"):
        poet_onnx.verify(path.with_name("eval_model.onnx"), result.model)
    with pytest.raises(InputError, match="made for graph"):
        poet_onnx.verify(model_path("mlp-mse"), result.model)
    with pytest.raises(InputError, match="number of feeds cannot be 0: give a whole number of 1 or more"):
        poet_onnx.verify(path, result.model, feeds=0)
    with pytest.raises(InputError, match="page directory"):
        poet_onnx.verify(path, result.model, page_dir=tmp_path / "nowhere")


def test_a_folder_for_temporary_files_that_is_not_there_is_named(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = poet_onnx.rewrite(path, device="tx2", activation_budget="65%", recompute=False)
    assert any(node.op_type.startswith("PageOut") for node in result.model.graph)
    monkeypatch.delenv("POET_PAGE_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"nowhere does not exist .*: make it, or give another one with --page-dir"):
        poet_onnx.verify(path, result.model)


@pytest.fixture(scope="module")
def updating(model_path: Callable[..., Path]) -> tuple[Path, ir.Model]:
    """A model with an optimizer in its step."""
    path = model_path("mobilenet")
    options = {"activation_budget": "80%", "gap": 0.9, "optimizer": "adamw"}
    return path, poet_onnx.rewrite(path, device="a72", **options).model


def test_a_step_with_an_optimizer_keeps_every_promise(updating: tuple[Path, ir.Model]) -> None:
    """Parameters and moments are compared, and change from step to step."""
    path, model = updating
    report = poet_onnx.verify(path, model, feeds=3)
    assert report.problems == ()
    assert report.bits_equal
    parameters = [value for value in model.graph.inputs if (value.name or "").startswith("poet/first_moment/")]
    assert report.buffers_compared > 3 * len(parameters) > 30
    with pytest.raises(InputError, match="verify it without them"):
        poet_onnx.verify(path, model, optimized=True)


@pytest.mark.parametrize("damage", sampled(["optimizer", "statistics", "offset", "operands"], "optimizer"))
def test_a_wrong_update_is_found(updating: tuple[Path, ir.Model], damage: str) -> None:
    path, model = updating[0], updating[1].clone()
    updates = [node for node in model.graph if node.op_type == "UpdateAdam"]
    described = Description.from_json(model.metadata_props[TRAINING_KEY])
    if damage == "optimizer":
        described = replace(described, updates=Updates("adam"))
    elif damage == "statistics":
        name, first = next(iter(described.state.items()))
        described = replace(described, state={**described.state, name: State.of(first.array + 1)})
    elif damage == "offset":
        updates[0].attributes["offset"] = ir.AttrInt64("offset", 1)
    else:
        first, second = updates[0].inputs[3:5]
        updates[0].replace_input_with(3, second)
        updates[0].replace_input_with(4, first)
    model.metadata_props[TRAINING_KEY] = described.to_json()
    report = poet_onnx.verify(path, model, feeds=1)
    assert not report.passed
    expected = {"optimizer": "plan is for the optimizer 'adamw'", "statistics": "of another model"}.get(damage, "")
    assert expected in report.problems[0]
