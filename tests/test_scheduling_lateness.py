"""Rows of time beside the nodes that need most RAM: where they are, and that they refute only what cannot be done."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace
from pathlib import Path

from small_graphs import small_graph

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import ordered_steps, smallest_budget
from poet_onnx.scheduling.building import formulate
from poet_onnx.scheduling.instance import Instance, build_instance, file_order
from poet_onnx.scheduling.lateness import rows_beside_bottlenecks
from poet_onnx.scheduling.outcome import Limits
from poet_onnx.scheduling.solver import is_infeasible
from poet_onnx.scheduling.timing import Timing, relaxed_timing
from poet_onnx.simulate import simulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from proofs.finding import exact_bytes
from proofs.slow_storage import slow_problem
from proofs.timed import SLACKS, least_timed

LIMITS = Limits(gap=0.0, overhead_gap=0.0, time_limit_seconds=30.0)


def _instance() -> Instance:
    """Return a graph in which `w` leaves little room; `a` and `b` are made before it is there and read behind it."""
    graph = small_graph(
        [
            ("fs", "x", {"s": 400}),
            ("fa", "s", {"a": 8000}),
            ("fb", "a", {"b": 8000}),
            ("thin", "b", {"t": 500}),
            ("wide", "t", {"w": 16500}),
            ("back", "w", {"c": 400}),
            ("rb", "c b", {"d": 400}),
            ("ra", "d a", {"e": 400}),
            ("rs", "e s", {"z": 400}),
        ],
        ["z"],
    )
    costs = CostTable(
        "slow",
        {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes},
        {name: TransferCost(2.0, 0.1) for name in "ab"},
        {name: TransferCost(2.0, 0.1) for name in "ab"},
        asynchronous=True,
    )
    problem = ScheduleProblem(graph, costs)
    return build_instance(problem, file_order(graph))


def test_what_is_made_before_a_bottleneck_and_read_behind_it_is_to_fit_in_between() -> None:
    instance = _instance()
    rows = rows_beside_bottlenecks(instance, 20_000, relaxed_timing(instance, 12.0))
    # `a` is made by node 1, `b` by node 2, and both can leave from the next node on; `s` cannot leave at all. The nodes
    # that make and read `w` are 4 and 5.
    assert (rows.begins, rows.ends) == ((2, 3, 6), (4, 6, 7))
    assert (rows.departures, rows.arrivals) == ((4,), (5,))
    assert rows.leaves_none_out


def test_where_all_fits_or_no_node_needs_most_of_the_budget_there_are_no_rows() -> None:
    instance = _instance()
    exact = relaxed_timing(instance, 12.0)
    for budget_bytes in (34_000, max(instance.step_bytes())):
        assert rows_beside_bottlenecks(instance, budget_bytes, exact) == exact


def test_where_nothing_is_paged_there_are_no_rows() -> None:
    instance = _instance()
    exact = relaxed_timing(instance, 12.0)
    recomputed = replace(instance, problem=replace(instance.problem, paging=False))
    assert rows_beside_bottlenecks(recomputed, 20_000, exact) == exact


def test_rows_that_there_are_are_kept() -> None:
    instance = _instance()
    exact = relaxed_timing(instance, 12.0)
    known = replace(exact, begins=(0,), ends=(8,), departures=(5,), arrivals=(3,))
    rows = rows_beside_bottlenecks(instance, 20_000, known)
    assert rows == rows_beside_bottlenecks(instance, 20_000, exact).with_rows_of(known)


def _refutes(instance: Instance, budget_bytes: int, timing: Timing) -> bool:
    return is_infeasible(formulate(instance, budget_bytes, timing), LIMITS, branches=True)


def test_what_is_refuted_beside_bottlenecks_cannot_be_done_and_more_is_than_without_these_rows() -> None:
    with_rows = without = plans = 0
    for seed in range(80):
        rng = random.Random(seed)
        with exact_bytes():
            problem, order = slow_problem(seed)
            smallest = smallest_budget(problem, order).budget_bytes
            peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
            budget = smallest + int((peak - smallest) * rng.choice([0.0, 0.2]))
            seconds = sum(cost.seconds for cost in problem.costs.nodes.values()) * rng.choice(SLACKS)
            limited = replace(problem, budget_bytes=budget, deadline_seconds=seconds)
            instance = build_instance(limited, order)
            exact = relaxed_timing(instance, seconds)
            rows = rows_beside_bottlenecks(instance, budget, exact)
            if rows == exact:
                continue
            without += _refutes(instance, budget, exact)
            if _refutes(instance, budget, rows):
                with_rows += 1
                found, all_seen = least_timed(limited, order, math.inf, 200_000, first=True)
                assert all_seen
                assert found is None, seed
            else:
                plans += least_timed(limited, order, math.inf, 200_000, first=True)[0] is not None
    assert with_rows > without > 0
    assert plans > 10
