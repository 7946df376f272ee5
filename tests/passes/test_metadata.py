"""What the annotation and metadata passes write into a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
from onnx_ir.passes import PreconditionError
from random_plans import file_order_plan, random_plan

from poet_onnx.costing.costs import CostTable, NodeCost, cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.errors import CheckFailedError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.annotate import AnnotateCosts
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.materialize import MaterializePlan
from poet_onnx.passes.metadata import WriteMetadata
from poet_onnx.passes.normalize import normalize
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.plan.serialization import from_json


@pytest.fixture
def model(model_path: Callable[..., Path]) -> ir.Model:
    model = load_model(model_path("mlp-mse"))
    normalize()(model)
    return model


@pytest.fixture
def problem(model: ir.Model) -> ScheduleProblem:
    graph = extract(model)
    return ScheduleProblem(graph, cost_table(graph, load_device("a72")))


def in_file_order(problem: ScheduleProblem) -> MaterializePlan:
    return MaterializePlan(problem.graph, nodes_of_plan(problem.graph, file_order_plan(problem).steps))


def test_a1_a2_every_node_carries_its_exact_costs(model: ir.Model, problem: ScheduleProblem) -> None:
    assert AnnotateCosts(problem.costs)(model).modified
    assert not AnnotateCosts(problem.costs)(model).modified
    for node in model.graph:
        assert node.name is not None
        cost = problem.costs.nodes[node.name]
        figures = {"seconds": cost.seconds, "joules": cost.joules, "workspace_bytes": cost.workspace_bytes}
        assert json.loads(node.metadata_props["poet.cost"]) == figures


def test_a3_copies_carry_the_costs_of_their_original(model: ir.Model, problem: ScheduleProblem) -> None:
    plan = random_plan(problem, 1, recomputes=6, transfers=0)
    AnnotateCosts(problem.costs)(model)
    MaterializePlan(problem.graph, nodes_of_plan(problem.graph, plan.steps))(model)
    copies = [node for node in model.graph if "/recompute_" in (node.name or "")]
    originals = {node.name: node for node in model.graph}
    assert copies
    for copy in copies:
        assert copy.metadata_props == originals[(copy.name or "").split("/recompute_")[0]].metadata_props


def test_a_table_that_lacks_a_node_is_refused(model: ir.Model, problem: ScheduleProblem) -> None:
    table = CostTable("half", {"other": NodeCost(1.0, 1.0, 0)}, {}, {}, asynchronous=False)
    with pytest.raises(PreconditionError) as caught:
        AnnotateCosts(table)(model)
    assert isinstance(caught.value.__cause__, CheckFailedError)


def test_m1_other_metadata_stay(model: ir.Model, problem: ScheduleProblem) -> None:
    model.metadata_props["owner"] = "somebody"
    WriteMetadata(problem.graph, file_order_plan(problem), version="1.2.3")(model)
    assert model.metadata_props["owner"] == "somebody"
    assert all(key == "owner" or key.startswith("poet.") for key in model.metadata_props)
    assert model.metadata_props["poet.version"] == "1.2.3"


def test_m2_the_plan_reads_back_without_the_seconds_it_took(model: ir.Model, problem: ScheduleProblem) -> None:
    plan = random_plan(problem, 3)
    slow = replace(plan, certificate=replace(plan.certificate, solve_seconds=1.5))
    WriteMetadata(problem.graph, slow, version="0")(model)
    assert from_json(model.metadata_props["poet.plan"], problem.graph) == plan


def test_a_plan_that_does_not_read_back_is_found(model: ir.Model, problem: ScheduleProblem) -> None:
    write = WriteMetadata(problem.graph, random_plan(problem, 3), version="0")
    write(model)
    model.metadata_props["poet.plan"] = model.metadata_props["poet.plan"].replace('"a72"', '"tx2"')
    with pytest.raises(CheckFailedError):
        write.ensures(model)


def test_a_plan_is_not_materialized_in_another_model(problem: ScheduleProblem, model_path: Callable[..., Path]) -> None:
    other = load_model(model_path("mlp-bce"))
    normalize()(other)
    other.graph.remove([node for node in other.graph if node.op_type == "InPlaceAccumulatorV2"])
    with pytest.raises(PreconditionError):
        in_file_order(problem)(other)


def test_a_model_that_was_changed_behind_a_pass_is_found(model: ir.Model, problem: ScheduleProblem) -> None:
    materialize = in_file_order(problem)
    materialize(model)
    first = model.graph[0]
    model.graph.remove(first)
    model.graph.append(first)
    with pytest.raises(CheckFailedError, match="stands where the plan has"):
        materialize.ensures(model)
