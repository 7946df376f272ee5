"""The bound from an order's memory: rows that a neighbour implies are left out, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from random_graphs import random_dag
from real_problems import real_problem
from small_graphs import small_graph

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import bound, memory_aware_order
from poet_onnx.scheduling.bound import _implies, _Rows, least_overhead
from poet_onnx.scheduling.liveness import Liveness


def bounds(problem: ScheduleProblem, share: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[int]]:
    """Return the bound, and the number of rows, with the rows that others imply left out and with all."""
    liveness = Liveness(problem)
    profile = liveness.in_order(memory_aware_order(problem))
    budget = int(share * profile.peak_bytes)
    found, rows = [], []
    for implies in (_implies, lambda *_: False):
        with monkeypatch.context() as patch:
            patch.setattr(bound, "_implies", implies)
            patch.setattr(bound, "MOST_NODES", 100_000)
            found.append(least_overhead(profile, Limits(budget)))
            rows.append(len(_Rows(profile, budget).needs()))
    return found, rows


@pytest.mark.parametrize("share", [0.7, 0.8, 0.9])
def test_rows_that_a_neighbour_implies_change_nothing(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    costly = 0
    for seed in range(25):
        graph, costs = random_dag(seed, 10 + seed)
        (fewer, all_of_them), (few, many) = bounds(ScheduleProblem(graph, costs), share, monkeypatch)
        assert fewer == pytest.approx(all_of_them, rel=1e-6), seed
        assert few <= many
        costly += 0 < fewer < float("inf")
    assert costly >= 5


def test_few_rows_are_left_of_a_real_model(model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (fewer, all_of_them), (few, many) = bounds(real_problem(model_path("resnet18"), "tx2"), 0.8, monkeypatch)
    assert fewer == pytest.approx(all_of_them, rel=1e-6)
    assert fewer > 0
    assert few <= 0.5 * many


@pytest.mark.parametrize(
    ("row", "other", "expected"),
    [
        ((5, {1: 3, 2: 4}), (5, {1: 3, 2: 4}), True),
        ((5, {1: 3, 2: 4}), (2, {2: 4}), True),  # at most 3 of the 5 are not in the other
        ((5, {1: 3, 2: 4}), (3, {2: 4}), False),
        ((5, {1: 3, 2: 4}), (4, {1: 2, 2: 4}), True),  # one byte of interval 1 is not
        ((5, {1: 3}), (5, {1: 3, 2: 4}), True),
        ((4, {1: 3}), (5, {1: 3, 2: 4}), False),
    ],
)
def test_what_a_row_implies(row: tuple[int, dict[int, int]], other: tuple[int, dict[int, int]], expected: bool) -> None:
    assert _implies(row, other) is expected


def test_a_long_chain_of_reruns_has_a_price() -> None:
    """A value is made of 2,000 others, each of which the next one alone reads; a transfer costs more than all runs."""
    links = [(f"n{number}*", f"v{number - 1}" if number else "x", {f"v{number}": 64}) for number in range(2000)]
    graph = small_graph([*links, ("large", "x", {"l": 640}), ("last", "v1999 l", {"y": 64})], outputs=("y",))
    moves = dict.fromkeys(graph.tensors, TransferCost(5000.0, 5000.0))
    nodes = {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes}
    liveness = Liveness(ScheduleProblem(graph, CostTable("unit", nodes, moves, moves, asynchronous=True)))
    profile = liveness.in_order([node.name for node in graph.nodes])
    interval = int((profile.intervals.value == liveness.values.index("v1999")).argmax())
    assert _Rows(profile, 64).prices_of(interval) == (5000.0, 2000.0)
