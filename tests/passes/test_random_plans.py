"""Random plans on real training graphs: the passes carry every one of them out, bit for bit and byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deep import sampled
from onnx_ir.passes import PreconditionError
from random_plans import file_order_plan, plan_of, random_plan
from real_problems import prepare

import poet_onnx
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.materialize import MaterializePlan
from poet_onnx.passes.metadata import WriteMetadata
from poet_onnx.plan import Action, Step

MODELS = ["mlp-mse", "densenet", "unet", "mobilenet", "transformer", "resnet18", "bert-2"]


@pytest.mark.parametrize("seed", sampled(range(4), 0))
@pytest.mark.parametrize("name", sampled(MODELS, *[name for name in MODELS if name != "resnet18"][::2]))
def test_a_random_plan_keeps_every_bit_and_its_predicted_peak(
    model_path: Callable[..., Path], tmp_path: Path, name: str, seed: int
) -> None:
    path = model_path(name)
    _, problem = prepare(path)
    plan = random_plan(problem, seed, recomputes=12, transfers=10)
    result = poet_onnx.rewrite(path, device="a72", plan=plan)
    report = poet_onnx.verify(path, result.model, feeds=2, page_dir=tmp_path)
    assert report.problems == ()
    assert abs(report.measured_transient_peak_bytes - report.predicted_transient_peak_bytes) <= 64


@pytest.mark.parametrize("kind", sampled(["order", "recompute", "paging", "all"], "recompute", "paging"))
@pytest.mark.parametrize("name", sampled(["densenet", "transformer"], "transformer"))
def test_each_kind_of_step_is_carried_out_by_itself(model_path: Callable[..., Path], name: str, kind: str) -> None:
    path = model_path(name)
    model, problem = prepare(path)
    recomputes, transfers = 12 * (kind in ("recompute", "all")), 10 * (kind in ("paging", "all"))
    plan = random_plan(problem, 7, recomputes=recomputes, transfers=transfers)
    assert (plan.prediction.recomputed_nodes > 0, plan.prediction.page_in_bytes > 0) == (recomputes > 0, transfers > 0)
    materialize = MaterializePlan(problem.graph, nodes_of_plan(problem.graph, plan.steps))
    assert materialize(model).modified
    WriteMetadata(problem.graph, plan, version="0")(model)
    assert poet_onnx.verify(path, model, feeds=1).problems == ()


def test_a_plan_is_not_materialized_twice(model_path: Callable[..., Path]) -> None:
    model, problem = prepare(model_path("densenet"))
    plan = random_plan(problem, 7)
    materialize = MaterializePlan(problem.graph, nodes_of_plan(problem.graph, plan.steps))
    materialize(model)
    with pytest.raises(PreconditionError) as refused:
        materialize(model)
    assert "other than the graph that the plan was made for" in str(refused.value.__cause__)


def test_ordering_by_the_file_changes_no_node(model_path: Callable[..., Path]) -> None:
    model, problem = prepare(model_path("densenet"))
    before = [node.name for node in model.graph if node.op_type not in ("Identity", "Reshape")]
    plan = file_order_plan(problem)
    MaterializePlan(problem.graph, nodes_of_plan(problem.graph, plan.steps))(model)
    kept = [node.name for node in model.graph if node.op_type not in ("Identity", "Reshape", "Gate")]
    assert kept == before


VERSIONS = ["oi|r", "o|ri", "roi|", "oi|i", "or|i", "oir|i", "r|r", "o|i"]


@pytest.mark.deep
@pytest.mark.parametrize("words", VERSIONS)
def test_a_view_of_any_version_is_made_where_it_is_read(model_path: Callable[..., Path], words: str) -> None:
    """Recompute (r), page out (o) and page in (i) a value between its maker, its first reader (|) and the next."""
    path = model_path("resnet18")
    _, problem = prepare(path)
    graph = problem.graph
    view = next(node for node in graph.nodes if node.op_type == "Flatten")
    value = graph.tensors[view.inputs[0]].buffer_owner
    maker = next(node for node in graph.nodes if value in node.outputs)
    steps = list(file_order_plan(problem).steps)
    readers = [index for index, step in enumerate(steps) if value in graph.transient_reads(node_of(graph, step))]
    pieces: dict[str, list[Step]] = {
        "o": [Step(Action.PAGE_OUT_START, value), Step(Action.PAGE_OUT_END, value)],
        "i": [Step(Action.PAGE_IN_START, value), Step(Action.PAGE_IN_END, value)],
    }
    copies = 0
    woven = steps[: readers[0]]
    for word in words:
        if word == "|":
            woven += steps[readers[0] : readers[0] + 1]
        elif word == "r":
            copies += 1
            woven.append(Step(Action.COMPUTE, maker.name, copies))
        else:
            woven += pieces[word]
    woven += steps[readers[0] + 1 :]
    result = poet_onnx.rewrite(path, device="a72", plan=plan_of(problem, woven))
    report = poet_onnx.verify(path, result.model, feeds=2)
    assert report.problems == ()


def node_of(graph: TrainingGraph, step: Step) -> Node:
    return next(node for node in graph.nodes if node.name == step.subject)


@pytest.mark.deep
def test_a_normalization_is_not_fused_with_the_sum_it_alone_reads(model_path: Callable[..., Path]) -> None:
    path = model_path("bert-2")
    _, problem = prepare(path)
    graph = problem.graph
    makers = {value: node for node in graph.nodes for value in graph.transient_writes(node)}
    steps = list(file_order_plan(problem).steps)
    copied = 0
    for norm in graph.nodes:
        if norm.op_type != "LayerNormalization":
            continue
        value = graph.tensors[norm.inputs[0]].buffer_owner
        readers = [node_of(graph, step).name for step in steps if value in graph.transient_reads(node_of(graph, step))]
        if value in makers and makers[value].op_type == "Add" and makers[value].recomputable and len(readers) == 2:
            place = next(index for index, step in enumerate(steps) if step.subject == readers[1])
            steps.insert(place, Step(Action.COMPUTE, makers[value].name, 1))
            copied += 1
    assert copied
    result = poet_onnx.rewrite(path, device="a72", plan=plan_of(problem, steps))
    report = poet_onnx.verify(path, result.model, feeds=2, optimized=True)
    assert report.problems == ()
