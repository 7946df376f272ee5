"""Rewriting real training models: what comes out, what stays the same, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import InPlacePass, PassError
from slow_costs import costs_in_proportion

import poet_onnx
from poet_onnx.errors import InfeasibleError, InputError
from poet_onnx.ops.schemas import register_schemas
from poet_onnx.plan.serialization import to_json
from poet_onnx.rewriting.rewrite import RewriteResult

OPTIONS: dict[str, Any] = {"device": "a72", "activation_budget": "75%"}


@pytest.fixture(scope="module")
def path(model_path: Callable[..., Path]) -> Path:
    return model_path("densenet")


@pytest.fixture(scope="module")
def result(path: Path) -> RewriteResult:
    return poet_onnx.rewrite(path, **OPTIONS)


def as_bytes(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


def names(values: Any) -> list[str]:
    return [value.name for value in values]


def test_the_budget_holds_and_the_figures_belong_together(result: RewriteResult) -> None:
    share = int(0.75 * result.ordered.transient_peak_bytes)
    assert result.budget_bytes == result.plan.limits.budget_bytes == share
    assert result.budget_kind == "activation"
    assert result.rewritten == result.plan.prediction
    assert result.rewritten.transient_peak_bytes <= share < result.ordered.transient_peak_bytes
    assert result.ordered.transient_peak_bytes <= result.original.transient_peak_bytes
    assert result.original.resident_bytes == result.rewritten.resident_bytes
    assert result.rewritten.recomputed_nodes + result.rewritten.page_in_bytes > 0


def test_inputs_outputs_and_other_metadata_stay(path: Path) -> None:
    model = onnx.load(path)
    model.doc_string = "ours"
    model.producer_name = "exporter"
    model.metadata_props.add(key="owner", value="somebody")
    rewritten = ir.to_proto(poet_onnx.rewrite(model, **OPTIONS).model)
    assert list(rewritten.graph.input) == list(model.graph.input)
    assert list(rewritten.graph.output) == list(model.graph.output)
    assert (rewritten.doc_string, rewritten.producer_name) == ("ours", "exporter")
    assert rewritten.ir_version == model.ir_version
    metadata = {entry.key: entry.value for entry in rewritten.metadata_props}
    assert metadata["owner"] == "somebody"
    opsets = {entry.domain: entry.version for entry in rewritten.opset_import}
    assert opsets == {entry.domain: entry.version for entry in model.opset_import} | {"poet": 1}


def test_metadata_say_what_was_done(result: RewriteResult) -> None:
    metadata = result.model.metadata_props
    assert metadata["poet.device"] == "a72"
    assert metadata["poet.source_fingerprint"] == result.graph.fingerprint
    assert int(metadata["poet.transient_peak_bytes"]) == result.rewritten.transient_peak_bytes
    assert float(metadata["poet.energy_joules"]) == result.rewritten.energy_joules
    assert metadata["poet.version"]


def test_every_tensor_has_a_type_and_a_shape(result: RewriteResult) -> None:
    for node in result.model.graph:
        for value in node.outputs:
            assert not value.name or (value.type is not None and value.shape is not None), value


def test_every_planned_node_carries_its_costs(result: RewriteResult) -> None:
    for node in result.model.graph:
        source = (node.name or "").split("/recompute_")[0]
        if source in result.costs.nodes and node.name != source and "/recompute_" in (node.name or ""):
            assert json.loads(node.metadata_props["poet.cost"])["seconds"] == result.costs.nodes[source].seconds


def test_the_file_passes_the_checker_and_survives_loading_and_saving(result: RewriteResult, tmp_path: Path) -> None:
    register_schemas()
    out = tmp_path / "out.onnx"
    result.save(out)
    onnx.checker.check_model(onnx.load(out), full_check=False)
    by_onnx, by_ir = tmp_path / "onnx.onnx", tmp_path / "ir.onnx"
    onnx.save(onnx.load(out), by_onnx)
    ir.save(ir.load(out), by_ir)
    expected = onnx.load(out)
    for other in (by_onnx, by_ir):
        found = onnx.load(other)
        assert list(found.graph.node) == list(expected.graph.node)
        assert {entry.key: entry.value for entry in found.metadata_props} == dict(result.model.metadata_props)


def test_the_same_input_gives_the_same_bytes_in_every_form(path: Path, result: RewriteResult) -> None:
    expected = as_bytes(result.model)
    source = ir.load(path)
    before = as_bytes(source)
    assert as_bytes(poet_onnx.rewrite(str(path), **OPTIONS).model) == expected
    assert as_bytes(poet_onnx.rewrite(onnx.load(path), **OPTIONS).model) == expected
    assert as_bytes(poet_onnx.rewrite(source, **OPTIONS).model) == expected
    assert as_bytes(source) == before, "the model given must not change"


@pytest.mark.deep
def test_the_pipeline_does_the_same(path: Path, result: RewriteResult) -> None:
    passes = poet_onnx.pipeline(**OPTIONS)
    assert isinstance(passes, InPlacePass)
    for _ in range(2):  # a pipeline may be used again
        model = ir.load(path)
        outcome = passes(model)
        assert outcome.modified
        assert outcome.model is model
        assert as_bytes(model) == as_bytes(result.model)


@pytest.mark.deep
@pytest.mark.parametrize("options", [{"optimizer": "adamw"}, {"target": "stock"}], ids=["adamw", "stock"])
def test_the_model_that_a_pipeline_was_given_becomes_the_best_variant(path: Path, options: dict[str, str]) -> None:
    model = ir.load(path)
    outcome = poet_onnx.pipeline(**OPTIONS, **options)(model)
    assert outcome.model is model
    assert as_bytes(model) == as_bytes(poet_onnx.rewrite(path, **OPTIONS, **options).model)


def test_a_pipeline_says_what_is_wrong_as_a_cause(result: RewriteResult) -> None:
    with pytest.raises(PassError) as caught:
        poet_onnx.pipeline(**OPTIONS)(result.model.clone())
    assert isinstance(caught.value.__cause__, InputError)


def test_a_saved_plan_is_applied_without_a_solver(path: Path, result: RewriteResult, tmp_path: Path) -> None:
    plan, out, expected = tmp_path / "plan.json", tmp_path / "out.onnx", tmp_path / "expected.onnx"
    plan.write_text(to_json(result.plan, result.graph), encoding="utf-8")
    result.save(expected)
    program = (
        "import sys; sys.modules['pyscipopt'] = None; sys.modules['onnxruntime'] = None; import poet_onnx\n"
        "poet_onnx.rewrite(sys.argv[1], device='a72', plan=sys.argv[2]).save(sys.argv[3])"
    )
    subprocess.run([sys.executable, "-c", program, path, plan, out], check=True)
    assert out.read_bytes() == expected.read_bytes()


def test_a_plan_must_keep_to_a_budget_given_with_it(path: Path, result: RewriteResult) -> None:
    with pytest.raises(InputError, match="but the budget is 1,000,000 bytes"):
        poet_onnx.rewrite(path, device="a72", plan=result.plan, activation_budget="1MB")


def test_a_plan_for_something_else_is_refused(
    path: Path, result: RewriteResult, model_path: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="made for device 'a72' and target 'training', not for device 'tx2'"):
        poet_onnx.rewrite(path, device="tx2", plan=result.plan)
    with pytest.raises(InputError, match="made for graph"):
        poet_onnx.rewrite(model_path("mlp-mse"), device="a72", plan=result.plan)
    with pytest.raises(InputError, match="Cannot read the plan"):
        poet_onnx.rewrite(path, device="a72", plan=tmp_path / "none.json")


def test_a_plan_that_cannot_run_is_refused(path: Path, result: RewriteResult) -> None:
    broken = replace(result.plan, steps=result.plan.steps[1:])
    with pytest.raises(InputError, match="cannot be carried out"):
        poet_onnx.rewrite(path, device="a72", plan=broken)


def test_without_a_budget_the_device_has_room_and_nothing_is_recomputed(path: Path) -> None:
    relaxed = poet_onnx.rewrite(path, device="a72")
    assert relaxed.budget_kind == "ram"
    assert relaxed.rewritten == relaxed.ordered
    assert relaxed.plan.certificate.status == "not_needed"
    inserted = [node for node in relaxed.model.graph if node.domain == "poet" and "/release_" not in (node.name or "")]
    assert {node.op_type for node in inserted} <= {"Arena", "Mark"}


@pytest.mark.deep
def test_a_ram_budget_bounds_the_process(path: Path) -> None:
    budget = poet_onnx.rewrite(path, target="stock", **OPTIONS).process.peak_bytes
    by_ram = poet_onnx.rewrite(path, target="stock", device="a72", ram_budget=budget)
    assert by_ram.process.peak_bytes <= budget == by_ram.budget_bytes
    assert by_ram.rewritten.recomputed_nodes
    too_little = by_ram.process.peak_bytes - 1
    with pytest.raises(InputError, match="but the RAM budget is"):
        poet_onnx.rewrite(path, target="stock", device="a72", plan=by_ram.plan, ram_budget=too_little)


def test_a_ram_budget_below_what_importing_takes_is_refused_with_that(path: Path, result: RewriteResult) -> None:
    importing = result.process.import_bytes
    assert result.process.training_bytes < importing == result.process.peak_bytes
    with pytest.raises(InfeasibleError, match="while the runtime is imported and the graph loaded") as caught:
        poet_onnx.rewrite(path, device="a72", ram_budget=importing - 1)
    assert caught.value.smallest_budget_bytes == importing
    assert poet_onnx.rewrite(path, device="a72", ram_budget=importing).process.peak_bytes == importing


@pytest.mark.deep
@pytest.mark.parametrize("budget", ["100kB", None])
def test_a_budget_that_nothing_keeps_names_the_smallest_that_works(path: Path, budget: str | None) -> None:
    planned = poet_onnx.rewrite(path, target="stock", **OPTIONS)
    besides = planned.process.peak_bytes - planned.rewritten.transient_peak_bytes
    with pytest.raises(InfeasibleError, match="the smallest found that works is") as caught:
        poet_onnx.rewrite(path, target="stock", device="a72", ram_budget=budget or besides + 1000)
    assert "During handling" not in "".join(traceback.format_exception(caught.value))  # what else was tried
    smallest = caught.value.smallest_budget_bytes
    assert smallest is not None
    assert f"{smallest:,} bytes" in str(caught.value)
    found = poet_onnx.rewrite(path, target="stock", device="a72", ram_budget=smallest)
    assert found.process.peak_bytes <= smallest


@pytest.mark.deep
def test_on_the_stock_runtime_the_budget_has_room_for_what_it_adds_to_blocks(path: Path) -> None:
    planned = poet_onnx.rewrite(path, target="stock", **OPTIONS).plan
    assert planned.limits.budget_bytes is not None
    # On aarch64 each of the blocks that are alive at the peak is 30 bytes larger; workspace is one more.
    least = 30 * 16
    assert planned.prediction.transient_peak_bytes + least <= planned.limits.budget_bytes
    with pytest.raises(InfeasibleError, match="set aside") as refused:
        poet_onnx.rewrite(path, target="stock", device="a72", activation_budget=1000, split=False)
    smallest = refused.value.smallest_budget_bytes
    assert smallest is not None
    poet_onnx.rewrite(path, target="stock", device="a72", activation_budget=smallest, split=False)


@pytest.mark.deep
def test_recompute_and_paging_can_be_left_out(path: Path) -> None:
    without_paging = poet_onnx.rewrite(path, paging=False, **OPTIONS).rewritten
    assert without_paging.page_in_bytes == without_paging.page_out_bytes == 0
    assert poet_onnx.rewrite(path, recompute=False, **OPTIONS).rewritten.recomputed_nodes == 0


@pytest.mark.parametrize("name", ["mlp-mse", "vit"])
def test_named_dimensions_are_fixed(model_path: Callable[..., Path], name: str) -> None:
    dynamic = model_path(name, dynamic=True)
    with pytest.raises(InputError, match="batch"):
        poet_onnx.rewrite(dynamic, device="a72")
    fixed = poet_onnx.rewrite(dynamic, device="a72", dims={"batch": 3})
    assert fixed.model.graph.inputs[0].shape is not None
    assert fixed.model.graph.inputs[0].shape[0] == 3
    assert poet_onnx.verify(dynamic, fixed.model, feeds=1).problems == ()


def test_external_weights_stay_external(path: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in" / "model.onnx", tmp_path / "out" / "model.poet.onnx"
    source.parent.mkdir()
    out.parent.mkdir()
    onnx.save(onnx.load(path), source, save_as_external_data=True, location="weights.bin", size_threshold=0)
    result = poet_onnx.rewrite(source, **OPTIONS)
    result.save(out)
    tensors = onnx.load(out, load_external_data=False).graph.initializer
    kept = [tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL]
    given = onnx.load(source, load_external_data=False).graph.initializer
    original = {tensor.name for tensor in given if tensor.data_location == onnx.TensorProto.EXTERNAL}
    assert {tensor.name for tensor in kept} == original
    assert sorted(file.name for file in out.parent.iterdir()) == ["model.poet.onnx", "model.poet.onnx.data"]
    assert poet_onnx.verify(source, out, feeds=1).problems == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ram_budget": 1, "activation_budget": 1}, "not both"),
        ({"method": "magic"}, "method cannot be 'magic': give one of 'poet'"),
        ({"target": "cloud"}, "target cannot be 'cloud': give one of 'auto', 'training', 'stock'"),
        ({"gap": -0.1}, "gap cannot be -0.1: give a number, at least 0 and below 1"),
        ({"gap": float("nan")}, "gap cannot be nan"),
        ({"time_limit_seconds": float("inf")}, "time_limit_seconds cannot be inf: give a number, above 0"),
        ({"seed": -1}, "seed cannot be -1"),
        ({"threads": 0}, "threads cannot be 0"),
        ({"dims": {"batch": 0}}, "dims cannot be {'batch': 0}"),
        ({"device": "toaster"}, "Unknown device 'toaster'"),
        ({"activation_budget": "0%"}, "activation budget '0%' is out of range"),
        ({"ram_budget": "75%"}, "cannot be a percentage"),
        ({"deadline": "soon"}, "deadline 'soon' is not understood"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        poet_onnx.rewrite(path, **({"device": "a72"} | options))


def test_a_model_is_rewritten_once_only(result: RewriteResult) -> None:
    with pytest.raises(InputError, match="rewritten by poet-onnx already"):
        poet_onnx.rewrite(result.model, device="a72")


def test_a_forward_model_is_refused_with_what_to_do(model_path: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="--loss cross-entropy"):
        poet_onnx.rewrite(model_path("mlp-mse").with_name("eval_model.onnx"), device="a72")


@pytest.mark.deep
def test_gradients_are_split_only_where_whole_ones_cost_more_or_do_not_fit(model_path: Callable[..., Path]) -> None:
    path = model_path("resnet18")
    whole = poet_onnx.rewrite(path, device="a72", activation_budget="85%")
    assert whole.plan.part_bytes is None
    with pytest.raises(InfeasibleError) as refused:
        poet_onnx.rewrite(path, device="a72", activation_budget="40%", split=False)
    split = poet_onnx.rewrite(path, device="a72", activation_budget="40%")
    assert split.plan.part_bytes is not None
    assert split.rewritten.transient_peak_bytes <= (split.plan.limits.budget_bytes or 0)
    assert split.ordered == whole.ordered
    assert refused.value.smallest_budget_bytes is not None
    assert split.rewritten.transient_peak_bytes < refused.value.smallest_budget_bytes
    assert any(node.op_type == "Accumulate" for node in split.model.graph)


@pytest.mark.deep
def test_a_saved_plan_splits_gradients_as_it_was_made(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("resnet18")
    made = poet_onnx.rewrite(path, device="a72", activation_budget="40%")
    file = tmp_path / "plan.json"
    file.write_text(to_json(made.plan, made.graph))
    again = poet_onnx.rewrite(path, device="a72", plan=file)
    assert again.plan.steps == made.plan.steps
    made.save(tmp_path / "made.onnx")
    again.save(tmp_path / "again.onnx")
    assert (tmp_path / "made.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()


@pytest.mark.deep
def test_measured_costs_of_whole_gradients_serve_split_ones(model_path: Callable[..., Path]) -> None:
    path = model_path("resnet18")
    measured = costs_in_proportion(poet_onnx.rewrite(path, device="a72"), "a72", 3)
    modelled = poet_onnx.rewrite(path, device="a72", activation_budget="40%")
    scaled = poet_onnx.rewrite(path, device="a72", activation_budget="40%", costs=measured)
    assert scaled.graph.fingerprint == modelled.graph.fingerprint
    for name, cost in modelled.costs.nodes.items():
        assert scaled.costs.nodes[name].seconds == pytest.approx(3 * cost.seconds, rel=1e-6)
        assert scaled.costs.nodes[name].workspace_bytes == cost.workspace_bytes
