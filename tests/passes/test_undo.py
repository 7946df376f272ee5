"""Undoing a plan gives the graph back that was planned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
from random_plans import random_plan

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.description.metadata import POET_DOMAIN
from poet_onnx.graph import Node
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.materialize import MaterializePlan
from poet_onnx.passes.normalize import normalize
from poet_onnx.passes.undo import UndoPlan
from poet_onnx.plan.problem import ScheduleProblem


@pytest.mark.parametrize("name", ["mlp-mse", "transformer"])
@pytest.mark.parametrize("seed", range(4))
def test_u1_u2_u3_copies_gates_and_transfers_go_and_readers_read_what_they_read_before(
    name: str, seed: int, model_path: Callable[..., Path]
) -> None:
    model = load_model(model_path(name))
    normalize()(model)
    graph = extract(model)
    problem = ScheduleProblem(graph, cost_table(graph, load_device("a72")))
    plan = random_plan(problem, seed, recomputes=12, transfers=8)
    MaterializePlan(graph, nodes_of_plan(graph, plan.steps))(model)
    assert any(node.domain == POET_DOMAIN for node in model.graph)

    assert UndoPlan()(model).modified
    found = extract(model)
    assert {node.name: wiring(node) for node in found.nodes} == {node.name: wiring(node) for node in graph.nodes}
    assert found.tensors == graph.tensors


def wiring(node: Node) -> tuple[object, ...]:
    return node.op_type, node.inputs, node.outputs, node.view, node.recomputable, node.phase


def test_a_model_without_a_plan_stays_as_it_is(model_path: Callable[..., Path]) -> None:
    model: ir.Model = load_model(model_path("mlp-mse"))
    before = [node.name for node in model.graph]
    assert not UndoPlan()(model).modified
    assert [node.name for node in model.graph] == before
