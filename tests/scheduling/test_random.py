"""Random graphs of many shapes: the proofs about them, and what these have found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from deep import sampled
from proofs.admitted import check_admitted
from proofs.equality import check_equality
from proofs.finding import Finding, exact_bytes
from proofs.monotone import check_model, check_monotone
from proofs.rows import check_rows
from proofs.timed import check_search
from proofs.validity import check_validity, random_problem
from small_graphs import small_graph, steps_of

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.errors import InfeasibleError
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import schedule
from poet_onnx.scheduling.liveness import file_order


def _recompute_only(graph: TrainingGraph) -> ScheduleProblem:
    nodes = {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes}
    return ScheduleProblem(graph, CostTable("none", nodes, {}, {}, asynchronous=False))


def test_a_recompute_may_read_a_graph_output() -> None:
    graph = small_graph(
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
    plan = schedule(_recompute_only(graph), Limits(20_000), gap=0.0)
    assert plan.prediction.recomputed_nodes == 1
    assert plan.prediction.energy_joules == 7.0


@pytest.mark.parametrize("budget", [19_999, 20_000])
def test_what_a_recompute_makes_in_vain_needs_room_too(budget: int) -> None:
    graph = small_graph(
        [
            ("both*", "x", {"large": 8000, "unread": 4000}),
            ("loss", "large", {"loss": 4000}),
            ("next", "loss", {"wide": 8000}),
            ("last", "wide", {"narrow": 8000}),
            ("end", "large narrow", {"end": 4000}),
        ],
        ["end"],
    )
    problem, limits = _recompute_only(graph), Limits(budget)
    if budget == 20_000:
        assert schedule(problem, limits, gap=0.0).prediction.recomputed_nodes == 1
        return
    with pytest.raises(InfeasibleError, match="the smallest found that works is 20,000 bytes"):
        schedule(problem, limits)


def test_a_value_is_fetched_behind_a_recompute_that_has_no_room_beside_it() -> None:
    """`b` could be recomputed from `va` in the last stage; where it is not, `va` need not be there before `c` is."""
    graph = small_graph(
        [
            ("a", "x", {"va": 8000}),
            ("b*", "va", {"vb": 4000}),
            ("c*", "vb", {"vc": 8000}),
            ("d", "vc", {"vd": 1000}),
            ("e", "vd", {"ve": 12_000}),
            ("f", "ve", {"vf": 500}),
            ("g", "vf va vc", {"vg": 500}),
        ],
        ["vg"],
    )
    nodes = {node.name: NodeCost(1.0, 0.5, 0) for node in graph.nodes}
    slow = {"va": TransferCost(1.0, 0.3)}
    problem = ScheduleProblem(graph, CostTable("slow", nodes, slow, slow, asynchronous=False))
    with exact_bytes():
        plan = schedule(problem, Limits(18_000), gap=0.0, order=file_order(graph))
    assert plan.steps == steps_of("a >va va> b c d e f c* <va va< g")
    assert plan.certificate.status == "optimal"


def test_a_value_is_fetched_for_the_reader_that_runs_and_not_for_an_earlier_one() -> None:
    """`p` could read `k` again before `c` runs again, but only `q` does, which comes behind `c`."""
    graph = small_graph(
        [
            ("a", "x", {"k": 6000}),
            ("p*", "k", {"vp": 500}),
            ("c*", "x", {"vc": 4000}),
            ("q*", "k", {"vq": 4000}),
            ("d", "vc vq vp", {"vd": 500}),
            ("e", "vd", {"ve": 14_000}),
            ("f", "ve", {"vf": 500}),
            ("g", "vf vc vq vp", {"vg": 500}),
        ],
        ["vg"],
    )
    nodes = {node.name: NodeCost(1.0, 1.0, 8000 if node.name == "c" else 0) for node in graph.nodes}
    slow = {"k": TransferCost(1.0, 0.3)}
    problem = ScheduleProblem(graph, CostTable("slow", nodes, slow, slow, asynchronous=False))
    with exact_bytes():
        plan = schedule(problem, Limits(15_000), gap=0.0, order=file_order(graph))
    assert plan.steps == steps_of("a >k k> p c <k k< q d e f c* <k k< q* g")
    assert plan.certificate.status == "optimal"


def test_what_a_recompute_makes_needs_room_even_if_it_is_fetched_right_behind() -> None:
    """To run `r` again, `s` could make `q` anew and leave `p` to a page-in; but `s` makes both, beside `h`."""
    graph = small_graph(
        [
            ("w*", "x", {"wide": 12_000}),
            ("s*", "wide", {"p": 4000, "q": 4000}),
            ("t*", "q", {"vt": 3000}),
            ("r*", "p vt", {"v": 4000}),
            ("m", "v", {"vm": 500}),
            ("b", "vm", {"vb": 17_900}),
            ("g", "vb", {"h": 4000}),
            ("e", "h v", {"ve": 500}),
        ],
        ["ve"],
    )
    nodes = {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes}
    prices = {"wide": 0.3, "p": 0.3, "v": 20.0}
    moves = {value: TransferCost(1.0, price) for value, price in prices.items()}
    problem = ScheduleProblem(graph, CostTable("dear", nodes, moves, moves, asynchronous=False))
    with exact_bytes():
        plan = schedule(problem, Limits(22_000), gap=0.0, order=file_order(graph))
    assert plan.steps == steps_of("w s t r >v v> m b g <v v< e")
    assert plan.certificate.status == "optimal"


def _check(check: Callable[[int], list[Finding]], seeds: range) -> set[str]:
    """Return the outcomes over some seeds; none may be a counterexample."""
    found = [finding for seed in seeds for finding in check(seed)]
    assert not [finding for finding in found if finding.failed]
    return {finding.outcome for finding in found}


@pytest.mark.parametrize("first", sampled(range(0, 100, 20), 0))
def test_energy_and_bound_equal_exhaustive_search_within_the_class(first: int) -> None:
    assert "equal" in _check(partial(check_equality, most_nodes=11), range(first, first + 20))


@pytest.mark.parametrize("first", sampled(range(0, 96, 24), 0))
def test_every_plan_and_every_incumbent_is_valid(first: int) -> None:
    outcomes = _check(partial(check_validity, most_nodes=30, time_limit_seconds=2.0), range(first, first + 24))
    assert "valid, optimal" in outcomes


def test_the_tokens_of_a_page_out_need_room_beside_the_value() -> None:
    problem, limits, order, _ = random_problem(458, 60)
    least = replace(limits, budget_bytes=2730)  # of the plans that the solver forms
    assert schedule(problem, least, order=order, time_limit_seconds=2.0).certificate.status == "optimal"


@pytest.mark.parametrize("first", sampled(range(0, 120, 15), 0))
def test_the_simulator_accepts_what_the_rows_admit(first: int) -> None:
    assert _check(check_admitted, range(first, first + 15)) == {"accepted"}


@pytest.mark.parametrize("first", sampled(range(0, 100, 50), 0))
def test_no_row_leaves_out_a_plan_that_keeps_budget_and_deadline(first: int) -> None:
    assert "admitted" in _check(check_rows, range(first, first + 50))


@pytest.mark.parametrize("first", sampled(range(0, 100, 25), 0))
def test_no_plan_denies_a_bound_or_a_proof_of_infeasibility(first: int) -> None:
    assert "optimal over all plans" in _check(partial(check_search, most_labels=10_000), range(first, first + 25))


@pytest.mark.parametrize("seed", sampled(range(3), 0))
def test_more_budget_or_time_never_costs_more(seed: int) -> None:
    assert "a plan" in _check(check_monotone, range(seed, seed + 1))


@pytest.mark.deep
@pytest.mark.parametrize("device", ["a72", "tx2"])
def test_more_budget_or_time_never_costs_more_for_a_model(model_path: Callable[..., Path], device: str) -> None:
    found = check_model(model_path("bert-2"), device)
    assert not [finding for finding in found if finding.failed]
