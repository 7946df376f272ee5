"""Windows of stages in which transfers must fit: they admit plans that a person can follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proofs.assignments import admits, restores_of
from proofs.finding import exact_bytes
from small_graphs import small_graph, steps_of

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.deadline import relaxed_timing
from poet_onnx.scheduling.liveness import build_instance, file_order
from poet_onnx.scheduling.model import formulate
from poet_onnx.simulate import simulate


def _is_admitted(graph: TrainingGraph, costs: CostTable, steps: tuple[Step, ...], **rows: tuple[int, ...]) -> bool:
    """Return whether the model for the time and the peak that a plan has admits it; it waits for no transfer."""
    with exact_bytes():
        problem = ScheduleProblem(graph, costs)
        prediction = simulate(problem, steps)
        assert prediction.stall_seconds == pytest.approx(0.0)
        instance = build_instance(problem, file_order(graph))
        limits = Limits(prediction.transient_peak_bytes, prediction.seconds)
        timing = relaxed_timing(instance, limits)
        assert timing is not None
        model = formulate(instance, limits, replace(timing, **rows))
        restores = restores_of(model, steps)
        assert restores is not None
        assert model.proves
        return admits(model, restores)


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
    assert _is_admitted(graph, costs, steps, begins=(2, 3), ends=(4,))


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
        assert _is_admitted(graph, costs, steps, begins=(0, 1, 2), ends=(end,))
