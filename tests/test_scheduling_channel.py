"""Rows of time and where they see transfers: what a model admits of plans that a person can follow."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_graphs import small_graph, steps_of

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import schedule
from poet_onnx.scheduling.building import formulate
from poet_onnx.scheduling.instance import build_instance, file_order
from poet_onnx.scheduling.timing import relaxed_timing
from poet_onnx.scheduling.transfers import spread_out
from poet_onnx.simulate import simulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from proofs.assignments import admits, supplies_of
from proofs.finding import exact_bytes
from proofs.timed import check_search


def _is_admitted(graph: TrainingGraph, costs: CostTable, steps: tuple[Step, ...], **rows: tuple[int, ...]) -> bool:
    """Return whether the model for the time and the peak that a plan has admits it; it waits for no transfer."""
    with exact_bytes():
        problem = ScheduleProblem(graph, costs)
        prediction = simulate(problem, steps)
        assert prediction.stall_seconds == pytest.approx(0.0)
        instance = build_instance(problem, file_order(graph))
        timing = replace(relaxed_timing(instance, prediction.seconds), **rows)
        model = formulate(instance, prediction.transient_peak_bytes, timing)
        supplies = supplies_of(model, steps)
        assert supplies is not None
        assert model.proves
        return admits(model, supplies)


def test_a_window_ends_behind_the_recomputes_of_its_last_stage() -> None:
    graph = small_graph(
        [
            ("fa", "x", {"a": 8000}),
            ("fb*", "x", {"b": 8000}),
            ("wide", "x", {"w": 16000}),
            ("middle", "w a", {"m": 4000}),
            ("again", "m", {"n": 16000}),
            ("end", "a b n", {"z": 4000}),
        ],
        ["z"],
    )
    nodes = {node.name: NodeCost(2.0 if node.name in ("fb", "wide") else 1.0, 1.0, 0) for node in graph.nodes}
    costs = CostTable("fast", nodes, {"a": TransferCost(1.0, 0.1)}, {"a": TransferCost(2.0, 0.1)}, asynchronous=True)
    steps = steps_of("fa >a fb a> <a wide a< middle again <a fb* a< end")
    assert _is_admitted(graph, costs, steps, begins=(4,), ends=(5,))


def test_what_is_made_before_a_window_may_leave_before_it_where_a_node_takes_no_time() -> None:
    """`v` leaves while `c` is made again; behind that, `z` runs in no time, and the window begins."""
    graph = small_graph(
        [
            ("fc*", "x", {"c": 4000}),
            ("fv", "x", {"v": 4000}),
            ("z", "c", {"vz": 400}),
            ("w", "vz", {"vw": 400}),
            ("a", "vw", {"va": 8000}),
            ("b", "va", {"vb": 400}),
            ("d", "vb", {"vd": 400}),
            ("end", "vd v", {"ve": 400}),
        ],
        ["ve"],
    )
    nodes = {node.name: NodeCost(0.0 if node.name == "z" else 1.0, 1.0, 0) for node in graph.nodes}
    costs = CostTable("slow", nodes, {"v": TransferCost(2.0, 0.1)}, {"v": TransferCost(0.5, 0.1)}, asynchronous=True)
    steps = steps_of("fc fv >v fc* z w v> a b <v d v< end")
    assert _is_admitted(graph, costs, steps, begins=(2, 3), ends=(4,), departures=(4,))


def test_what_is_certainly_on_its_way_is_counted_in_ram_once() -> None:
    graph = small_graph(
        [
            ("fp", "x", {"p": 4000}),
            ("fq", "p", {"q": 8000}),
            ("r", "x", {"r": 4000}),
            ("s", "r", {"s": 8000}),
            ("t", "s", {"t": 4000}),
            ("u", "t", {"u": 4000}),
            ("v", "u", {"v": 4000}),
            ("w", "v q", {"w": 4000}),
            ("y", "w p", {"y": 4000}),
        ],
        ["y"],
    )
    nodes = {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes}
    out = {"p": TransferCost(0.5, 0.1), "q": TransferCost(3.0, 0.1)}
    costs = CostTable("slow", nodes, out, dict.fromkeys(out, TransferCost(0.01, 0.1)), asynchronous=True)
    steps = steps_of("fp fq >p >q r p> s t u q> <q v q< <p w p< y")
    for end in (3, 4):
        assert _is_admitted(graph, costs, steps, begins=(0, 1, 2), ends=(end,), departures=(end,))


def test_a_value_that_leaves_holds_its_buffer_until_it_is_made_anew() -> None:
    graph = small_graph(
        [
            ("a*", "x", {"va": 8000}),
            ("b", "va", {"vb": 4000}),
            ("c", "vb", {"vc": 12_000}),
            ("d", "vc", {"vd": 4000}),
            ("e", "vd va", {"ve": 4000}),
        ],
        ["ve"],
    )
    nodes = {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes}
    slow = {"va": TransferCost(10.0, 0.1)}
    problem = ScheduleProblem(graph, CostTable("slow", nodes, slow, slow, asynchronous=True), 16_100)
    spread = spread_out(problem, steps_of("a >va va> b c d a* e"))
    assert simulate(problem, spread).transient_peak_bytes <= 16_100


@pytest.mark.parametrize(
    ("arrivals", "budget", "admitted"),
    [((), 17_500, True), ((3,), 17_500, False), ((3,), 21_500, True)],
)
def test_a_buffer_that_is_there_early_is_there_until_it_is_read(
    arrivals: tuple[int, ...], budget: int, admitted: bool
) -> None:
    """Three page-ins of 1.5 s do not fit behind `a`, which has run 4 s before they are read: one begins before it."""
    graph = small_graph(
        [
            ("fp", "x", {"p": 4000}),
            ("fq", "x", {"q": 4000}),
            ("fr", "x", {"r": 4000}),
            ("a", "x", {"va": 400}),
            ("wide", "va", {"w": 16_000}),
            ("c", "w", {"vc": 400}),
            ("d", "vc", {"vd": 400}),
            ("e", "vd", {"ve": 400}),
            ("end", "ve p q r", {"z": 400}),
        ],
        ["z"],
    )
    nodes = {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes}
    out, back = TransferCost(0.01, 0.1), TransferCost(1.5, 0.1)
    costs = CostTable("slow", nodes, dict.fromkeys("pqr", out), dict.fromkeys("pqr", back), asynchronous=True)
    with exact_bytes():
        instance = build_instance(ScheduleProblem(graph, costs), file_order(graph))
        model = formulate(
            instance, budget, replace(relaxed_timing(instance, 9.0), begins=(4,), ends=(8,), arrivals=arrivals)
        )
        supplies = supplies_of(model, steps_of("fp >p p> fq >q q> fr >r r> a wide c d e <p p< <q q< <r r< end"))
        assert supplies is not None
        assert admits(model, supplies) == admitted


def test_what_must_leave_soon_is_written_before_what_may_stay() -> None:
    """`v` takes 3 s and may stay until `wider`, `u` takes 0.8 s and must go before `wide`; `v` is made first."""
    graph = small_graph(
        [
            ("fv", "x", {"v": 8000}),
            ("fu", "x", {"u": 8000}),
            ("a", "x", {"va": 400}),
            ("wide", "va", {"w": 10_000}),
            ("c", "w", {"vc": 400}),
            ("d", "vc", {"vd": 400}),
            ("wider", "vd", {"ww": 16_000}),
            ("f", "ww", {"vf": 400}),
            ("g", "vf", {"vg": 400}),
            ("end", "vg u v", {"z": 400}),
        ],
        ["z"],
    )
    nodes = {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes}
    out = {"v": TransferCost(3.0, 0.1), "u": TransferCost(0.8, 0.1)}
    back = dict.fromkeys(out, TransferCost(0.5, 0.1))
    problem = ScheduleProblem(graph, CostTable("slow", nodes, out, back, asynchronous=True), 19_000, 10.0)
    with exact_bytes():
        plan = schedule(problem, gap=0.0, order=file_order(graph))
    assert plan.certificate.status == "optimal"
    assert plan.prediction.seconds == pytest.approx(10.0)
    started = [step.subject for step in plan.steps if step.action is Action.PAGE_OUT_START]
    assert started == ["u", "v"]


@pytest.mark.parametrize("seed", [8, 145, 235, 257, 259, 275])
def test_what_the_step_waits_in_one_place_it_cannot_wait_in_another(seed: int) -> None:
    """Each of these is settled, which it is not where every wait may take all the time that the deadline spares."""
    assert {finding.outcome for finding in check_search(seed)} <= {"infeasible, as proven", "optimal over all plans"}
