"""Random graphs of many shapes: the short version of scripts/scheduling_proofs.py, and what it has found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from poet_onnx.costs import CostTable, NodeCost
from poet_onnx.errors import InfeasibleError
from poet_onnx.graph import Node, Phase, Tensor, TrainingGraph
from poet_onnx.problem import ScheduleProblem
from poet_onnx.scheduling import schedule


def _graph(nodes: Sequence[tuple[str, str, dict[str, int]]], outputs: Sequence[str]) -> TrainingGraph:
    """Return a graph of (name, what it reads, bytes of what it makes); a name with a star may be recomputed."""
    tensors = {"x": Tensor("x", "FLOAT", (16,), 64, "x", True, False)}
    for _, _, made in nodes:
        for name, size in made.items():
            tensors[name] = Tensor(name, "FLOAT", (size // 4,), size, name, False, name in outputs)
    found = tuple(
        Node(name.strip("*"), "Op", "", tuple(reads.split()), tuple(made), {}, Phase.FORWARD, name.endswith("*"))
        for name, reads, made in nodes
    )
    return TrainingGraph("small", found, tensors, ("x",), tuple(outputs), "small")


def _recompute_only(graph: TrainingGraph, budget_bytes: int) -> ScheduleProblem:
    nodes = {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes}
    return ScheduleProblem(graph, CostTable("none", nodes, {}, {}, asynchronous=False), budget_bytes)


def test_a_recompute_may_read_a_graph_output() -> None:
    graph = _graph(
        [
            ("first", "x", {"kept": 4000}),
            ("again*", "kept", {"large": 8000}),
            ("loss", "large", {"loss": 4000}),
            ("next", "loss", {"wide": 8000}),
            ("last", "wide", {"narrow": 4000}),
            ("end", "large narrow", {"end": 4000}),
        ],
        ["kept", "end"],
    )
    plan = schedule(_recompute_only(graph, 20_000), gap=0.0)
    assert plan.prediction.recomputed_nodes == 1
    assert plan.prediction.energy_joules == 7.0


@pytest.mark.parametrize("budget", [19_999, 20_000])
def test_what_a_recompute_makes_in_vain_needs_room_too(budget: int) -> None:
    graph = _graph(
        [
            ("both*", "x", {"large": 8000, "unread": 4000}),
            ("loss", "large", {"loss": 4000}),
            ("next", "loss", {"wide": 8000}),
            ("last", "wide", {"narrow": 8000}),
            ("end", "large narrow", {"end": 4000}),
        ],
        ["end"],
    )
    problem = _recompute_only(graph, budget)
    if budget == 20_000:
        assert schedule(problem, gap=0.0).prediction.recomputed_nodes == 1
        return
    with pytest.raises(InfeasibleError, match="the smallest that works is 20,000 bytes"):
        schedule(problem)
