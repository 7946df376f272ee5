"""Undoing a plan gives the graph back that was planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
from forward_models import parse, random
from random_plans import random_plan

import poet_onnx
from poet_onnx import Lora
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.description.names import POET_DOMAIN, RECOMPUTED
from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import Node
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.layout_nodes import NEXT_STEP
from poet_onnx.passes.materialize import MaterializePlan, check_materialized
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


def test_no_node_says_which_step_begins_behind_it() -> None:
    """Here each does that can; a copy says its own step, and not that of its source."""
    arrays = {name: random(8, 8) for name in ("table", "body", "head")}
    forward = parse(
        """g (int64[2, 3] ids) => (float[2, 3, 8] y) {
        e = Gather(table, ids) a = MatMul(e, body) h = Sigmoid(a) y = MatMul(h, head) }""",
        arrays,
    )
    model = poet_onnx.train_graph(forward, loss="causal-lm", lora=Lora("body", rank=2)).training
    normalize()(model)
    graph = extract(model)
    problem = ScheduleProblem(graph, cost_table(graph, load_device("a72")))
    steps = random_plan(problem, 3, recomputes=0, transfers=0).steps
    layout = list(nodes_of_plan(graph, steps, {index: index for index in range(1, len(steps) + 1)}))
    placed = next(each for each in layout if each.op_type == "AddLowRank" and each.begins is not None)
    suffix = f"{RECOMPUTED}1"
    outputs = tuple(f"{name}{suffix}" for name in placed.outputs)
    layout.append(replace(placed, name=f"{placed.name}{suffix}", outputs=outputs, begins=None))
    MaterializePlan(graph, layout)(model)
    said = {node.name: node.attributes.get_int(NEXT_STEP, None) for node in model.graph}
    assert said == {each.name: each.begins if each.source else None for each in layout}
    with pytest.raises(CheckFailedError, match="does not say which step begins behind it"):
        check_materialized(model, [replace(each, begins=1) if each.source else each for each in layout])

    assert UndoPlan()(model).modified
    assert not any(NEXT_STEP in node.attributes for node in model.graph)
    found = extract(model)
    assert {node.name: wiring(node) for node in found.nodes} == {node.name: wiring(node) for node in graph.nodes}


def wiring(node: Node) -> tuple[object, ...]:
    return node.op_type, node.inputs, node.outputs, node.view, node.recomputable, node.phase


def test_a_model_without_a_plan_stays_as_it_is(model_path: Callable[..., Path]) -> None:
    model: ir.Model = load_model(model_path("mlp-mse"))
    before = [node.name for node in model.graph]
    assert not UndoPlan()(model).modified
    assert [node.name for node in model.graph] == before
