"""The simulator against plans worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paged_problem import IN, OUT, compute, node, page, paged_problem, tensor

from poet_onnx.costing.costs import NodeCost, TransferCost
from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import Action, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate import replay, simulate
from poet_onnx.simulate.versions import TOKEN_BYTES


def test_plain_order() -> None:
    result = replay(paged_problem(), compute("A", "B", "C"))
    assert result.step_bytes == (400, 400 + 100 + 50, 400 + 100 + 40)
    assert result.prediction.transient_peak_bytes == 550
    assert result.prediction.energy_joules == 9.0
    assert result.prediction.seconds == 3.0
    assert result.prediction.resident_bytes == 8
    assert result.live_at_peak == (("a", 400), ("b", 100))


def test_recompute_frees_a_value_in_between() -> None:
    steps = [*compute("A", "B"), Step(Action.COMPUTE, "A", 1), *compute("C")]
    prediction = simulate(paged_problem(), steps)
    assert prediction.recomputed_nodes == 1
    assert prediction.energy_joules == 11.0


def test_synchronous_paging_stops_the_clock_and_leaves_one_token() -> None:
    steps = [
        *compute("A"),
        *page("a", *OUT),
        *compute("B"),
        *page("a", *IN),
        *compute("C"),
    ]
    result = replay(paged_problem(asynchronous=False), steps)
    assert result.prediction.seconds == 3.0 + 4.0 + 2.0
    assert result.prediction.stall_seconds == 6.0
    assert result.prediction.energy_joules == 9.75
    assert result.prediction.page_out_bytes == result.prediction.page_in_bytes == 400
    # The token lives from the page-out to the page-in, which is one node and so needs no ticket.
    assert result.step_bytes == (400, 400, 400 + TOKEN_BYTES, 550 + TOKEN_BYTES, 500 + TOKEN_BYTES, 500, 540)


def test_asynchronous_transfers_hide_behind_compute_and_hold_their_buffers() -> None:
    start_out, end_out = OUT
    steps = [
        *compute("A"),
        *page("a", start_out),
        *compute("B"),
        *page("a", end_out, *IN),
        *compute("C"),
    ]
    result = replay(paged_problem(), steps)
    assert result.prediction.seconds == 1.0 + 4.0 + 2.0 + 1.0
    assert result.step_bytes[2] == 550 + TOKEN_BYTES


def test_a_node_that_reads_a_store_waits_for_transfers_and_they_for_it() -> None:
    start_out, end_out = OUT
    steps = [
        *compute("A"),
        *page("a", start_out),
        *compute("B"),
        *page("a", end_out),
        *page("a", *IN),
        *compute("C"),
    ]
    problem = paged_problem()
    reading = {"B": NodeCost(1.0 + 3.0, 3.0, 50, storage_seconds=3.0)}
    problem = replace(problem, costs=replace(problem.costs, nodes={**problem.costs.nodes, **reading}))
    prediction = simulate(problem, steps)
    assert prediction.seconds == 1.0 + 4.0 + 3.0 + 1.0 + 2.0 + 1.0, "a is written first, then B reads and computes"
    assert prediction.compute_seconds == 3.0
    first = [*compute("A", "B"), *page("a", *OUT), *page("a", *IN), *compute("C")]
    assert simulate(problem, first).seconds == 1.0 + 3.0 + 1.0 + 4.0 + 2.0 + 1.0


def test_a_step_ends_with_the_commit_of_its_store() -> None:
    problem = paged_problem()
    costs = replace(problem.costs, idle_watts=2.0)
    steps = [*compute("A"), *page("a", *OUT), *compute("B"), *page("a", *IN), *compute("C")]
    before = simulate(replace(problem, costs=costs), steps)
    committing = replace(problem, costs=replace(costs, commit=TransferCost(3.0, 5.0)))
    after = simulate(committing, steps)
    assert after.seconds == before.seconds + 3.0
    assert after.compute_seconds == before.compute_seconds
    assert after.energy_joules == before.energy_joules + 5.0 + 3.0 * 2.0
    assert committing.base_joules == replace(problem, costs=costs).base_joules + 5.0 + 3.0 * 2.0


def test_handing_a_transfer_over_and_waking_the_channel_take_time() -> None:
    start_out, end_out = OUT
    start_in, end_in = IN
    steps = [
        *compute("A"),
        *page("a", start_out),
        *compute("B"),
        *page("b", start_out),
        *page("a", end_out),
        *page("b", end_out),
        *page("a", start_in, end_in),
        *compute("C"),
    ]
    problem = paged_problem()
    problem = replace(problem, costs=replace(problem.costs, hand_over_seconds=0.25, wake_seconds=0.5))
    prediction = simulate(problem, steps)
    # The channel is asleep for a, still busy with it when b comes, and not asked where the step itself pages a in.
    written = 1.0 + 0.25 + 0.5 + 4.0 + 4.0
    assert prediction.seconds == written + 2.0 + 1.0
    assert prediction.compute_seconds == 3.0 + 2 * 0.25
    assert prediction.stall_seconds == prediction.seconds - prediction.compute_seconds
    asleep = replace(problem, costs=replace(problem.costs, asynchronous=False))
    whole = [
        *compute("A"),
        *page("a", *OUT),
        *compute("B"),
        *page("a", *IN),
        *compute("C"),
    ]
    assert simulate(asleep, whole).seconds == simulate(problem, whole).seconds == 3.0 + 4.0 + 2.0


def test_in_place_output_takes_over_a_dying_input() -> None:
    problem = paged_problem()
    nodes = list(problem.graph.nodes)
    nodes[1] = replace(nodes[1], inplace=((0, 0),))
    nodes[2] = replace(nodes[2], inputs=("b",))
    tensors = {**problem.graph.tensors, "b": tensor("b", 400)}
    graph = replace(problem.graph, nodes=tuple(nodes), tensors=tensors)
    assert replay(replace(problem, graph=graph), compute("A", "B", "C")).step_bytes == (400, 450, 440)
    # If a later node still reads the input, both buffers exist.
    nodes[2] = replace(nodes[2], inputs=("a", "b"))
    graph = replace(graph, nodes=tuple(nodes))
    assert replay(replace(problem, graph=graph), compute("A", "B", "C")).step_bytes == (400, 850, 840)


def test_graph_outputs_live_to_the_end() -> None:
    problem = paged_problem()
    nodes = (*problem.graph.nodes, node("D", ("b",), ("d",)))
    tensors = {**problem.graph.tensors, "d": tensor("d", 4)}
    costs = replace(problem.costs, nodes={**problem.costs.nodes, "D": NodeCost(0.0, 0.0, 0)})
    problem = replace(problem, graph=replace(problem.graph, nodes=nodes, tensors=tensors), costs=costs)
    assert replay(problem, compute("A", "B", "C", "D")).step_bytes[-1] == 100 + 40 + 4


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (compute("A", "C"), "not in memory"),
        (compute("A", "B"), "never runs node 'C'"),
        (compute("A", "A", "B", "C"), "copy 1 is next"),
        ([*compute("A", "B"), *page("a", *IN), *compute("C")], "not in storage"),
        ([*compute("A"), *page("a", OUT[0]), *compute("B", "C")], "never ended"),
        (
            [*compute("A"), *page("a", *OUT), *page("a", IN[0]), *compute("B", "C")],
            "not in memory",
        ),
        ([*compute("A"), *page("x", *OUT), *compute("B", "C")], "no transient value"),
        (compute("A", "B", "C", "Z"), "does not have"),
    ],
)
def test_invalid_plans_are_refused(steps: list[Step], message: str) -> None:
    with pytest.raises(CheckFailedError, match=message):
        simulate(paged_problem(), steps)


def test_limits_are_hard() -> None:
    steps = compute("A", "B", "C")
    with pytest.raises(CheckFailedError, match="550 bytes"):
        simulate(paged_problem(), steps, Limits(549))
    with pytest.raises(CheckFailedError, match="deadline"):
        simulate(paged_problem(), steps, Limits(deadline_seconds=2.9))


def test_recompute_must_not_see_a_changed_resident() -> None:
    problem = paged_problem()
    tensors = {**problem.graph.tensors, "u": tensor("u", 4)}
    nodes = (
        problem.graph.nodes[0],
        problem.graph.nodes[1],
        node("U", ("b",), ("u",), updates=("x",), recomputable=False),
        problem.graph.nodes[2],
    )
    costs = replace(problem.costs, nodes={**problem.costs.nodes, "U": NodeCost(0.0, 0.0, 0)})
    problem = replace(problem, graph=replace(problem.graph, nodes=nodes, tensors=tensors), costs=costs)
    with pytest.raises(CheckFailedError, match="has changed 'x'"):
        simulate(problem, [*compute("A", "B", "U"), Step(Action.COMPUTE, "A", 1), *compute("C")])


def _updating() -> ScheduleProblem:
    """Return A that reads x, a view of x, and U that changes x behind both."""
    problem = paged_problem()
    tensors = {**problem.graph.tensors, "v": tensor("v", 8, owner="x"), "n": tensor("n", 8, owner="x")}
    view = node("V", ("x",), ("v",), view=True)
    update = node("U", ("x",), ("n",), recomputable=False, updates=("x",), after=("A", "V"))
    costs = {**problem.costs.nodes, "V": NodeCost(0.0, 0.0, 0), "U": NodeCost(1.0, 1.0, 0)}
    graph = replace(problem.graph, nodes=(view, *problem.graph.nodes, update), tensors=tensors)
    return replace(problem, graph=graph, costs=replace(problem.costs, nodes=costs))


def test_what_must_follow_a_view_may_run_at_any_time() -> None:
    assert simulate(_updating(), compute("A", "U", "B", "C")).seconds == 4.0
    with pytest.raises(CheckFailedError, match="node 'U' before 'A', which it must follow"):
        simulate(_updating(), compute("U", "A", "B", "C"))


def test_a_plan_without_an_update_is_refused_whatever_it_recomputes() -> None:
    steps = [*compute("A", "B"), Step(Action.COMPUTE, "A", 1), *compute("C")]
    with pytest.raises(CheckFailedError, match="never runs node 'U'"):
        simulate(_updating(), steps)
