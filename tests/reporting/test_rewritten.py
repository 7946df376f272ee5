"""A rewritten model says all of its step, without the original and without the device's profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
from model_mutations import mutate

from poet_onnx import InputError, rewrite
from poet_onnx.reporting.depicting import picture_of
from poet_onnx.reporting.rewritten import read_rewritten
from poet_onnx.rewriting.rewrite import RewriteResult


@pytest.fixture(scope="module")
def result(model_path: Callable[..., Path]) -> RewriteResult:
    return rewrite(
        model_path("transformer"),
        device="a72",
        activation_budget="60%",
        optimizer="adamw",
        gap=0.2,
        time_limit_seconds=1,
    )


def test_the_plan_reads_back_with_its_graph_and_costs(result: RewriteResult) -> None:
    step = read_rewritten(result.model)
    assert step.plan.steps == result.plan.steps
    assert step.replayed.prediction == result.plan.prediction
    assert step.plan.prediction.recomputed_nodes > 0, "nothing is undone otherwise"
    assert dict(step.problem.graph.tensors) == dict(result.graph.tensors)
    assert step.problem.costs.nodes == result.costs.nodes
    assert [node.name for node in step.problem.graph.nodes if not node.view] == [
        node.name for node in result.graph.nodes if not node.view
    ]
    assert (step.original, step.ordered) == (result.original, result.ordered)


def test_transfers_cost_what_they_were_planned_with(model_path: Callable[..., Path]) -> None:
    path = model_path("transformer")
    result = rewrite(path, device="tx2", activation_budget="70%", recompute=False, split=False, gap=0.5)
    assert result.plan.prediction.page_out_bytes > 0
    step = read_rewritten(result.model)
    assert step.replayed.prediction == result.plan.prediction
    assert step.problem.costs.page_in == result.costs.page_in


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("poet.plan", None, "holds no plan"),
        ("poet.costs", None, "it has no poet.costs"),
        ("poet.costs", '{"channel": null}', "has no figures"),
        ("poet.costs", '{"channel": null, "idle_watts": 1e400, "time_measured": false}', "has no figures"),
        ("poet.before", "[]", "has no figures"),
    ],
)
def test_a_model_that_says_too_little_is_refused(result: RewriteResult, key: str, text: str | None, says: str) -> None:
    model = result.model.clone()
    model.metadata_props.pop(key)
    if text is not None:
        model.metadata_props[key] = text
    with pytest.raises(InputError, match=says):
        read_rewritten(model)


def test_a_plan_that_the_model_does_not_carry_out_is_refused(result: RewriteResult) -> None:
    model = result.model.clone()
    plan = json.loads(model.metadata_props["poet.plan"])
    for steps in (plan["steps"].replace("r", "", 1), "0-999999999", "0", plan["steps"] + " 0"):
        model.metadata_props["poet.plan"] = json.dumps(plan | {"steps": steps})
        with pytest.raises(InputError):
            read_rewritten(model)


def test_a_model_that_lacks_a_node_of_its_plan_is_refused(result: RewriteResult) -> None:
    model = result.model.clone()
    update = next(node for node in model.graph if node.op_type.startswith("Update"))
    for place in range(len(update.inputs)):
        update.replace_input_with(place, None)
    model.graph.outputs[:] = [value for value in model.graph.outputs if value.producer() is not update]
    model.graph.remove(update)
    with pytest.raises(InputError, match="which this graph does not have"):
        read_rewritten(model)


def test_costs_that_do_not_make_the_plans_energy_are_refused(result: RewriteResult) -> None:
    model = result.model.clone()
    costs = json.loads(model.metadata_props["poet.costs"])
    model.metadata_props["poet.costs"] = json.dumps(costs | {"idle_watts": costs["idle_watts"] + 1})
    with pytest.raises(InputError, match="but its nodes take"):
        read_rewritten(model)


def test_damage_gives_a_picture_or_an_error_of_ours(result: RewriteResult, tmp_path: Path) -> None:
    proto, path, refused = ir.to_proto(result.model), tmp_path / "damaged.onnx", 0
    for seed in range(12):
        path.write_bytes(mutate(proto, seed).SerializeToString())
        try:
            picture_of(path)
        except InputError as error:
            assert str(error).endswith(".")
            refused += 1
    assert 0 < refused < 12
