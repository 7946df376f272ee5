"""Transfers beside compute: within the budget, never slower, just in time, and near the best of all placements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import random_graph
from random_plans import random_plan

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.plan import Action, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate import replay, simulate
from poet_onnx.simulate.versions import TOKEN_BYTES
from poet_onnx.transfers import overlap, spread_out
from poet_onnx.transfers.timeline import SLOW_TRANSFERS

STARTS = {Action.PAGE_OUT_START: Action.PAGE_OUT_END, Action.PAGE_IN_START: Action.PAGE_IN_END}
TOLERANCE_SECONDS = 1e-6


def synchronous(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return a plan with both halves of every transfer where a page-out starts and where a page-in ends."""
    result: list[Step] = []
    for step in steps:
        if step.action in (Action.PAGE_OUT_START, Action.PAGE_IN_END):
            outwards = step.action is Action.PAGE_OUT_START
            first, second = list(STARTS.items())[0 if outwards else 1]
            result += [Step(first, step.subject), Step(second, step.subject)]
        elif step.action is Action.COMPUTE:
            result.append(step)
    return tuple(result)


def case(
    seed: int, layers: int, slack: float, transfers: int = 6, price: float = 0.0, *, stored: bool = False
) -> tuple[ScheduleProblem, Limits, tuple[Step, ...]]:
    """Return a random problem with asynchronous storage, a budget, and a valid plan of synchronous transfers.

    Args:
        seed: of graph and plan.
        layers: of the graph.
        slack: the budget is this part of the plan's peak above it.
        transfers: values that may be paged.
        price: of handing a transfer over and of waking the channel, in parts of what a computation takes on average.
        stored: every third node reads what it needs from a store first.
    """
    graph, costs = random_graph(seed, layers)
    each = price * sum(cost.seconds for cost in costs.nodes.values()) / len(costs.nodes)
    costs = replace(costs, asynchronous=True, hand_over_seconds=each, wake_seconds=2 * each)
    if stored:
        costs = replace(costs, nodes=dict(zip(costs.nodes, map(reading, costs.nodes.values(), count()), strict=True)))
    problem = ScheduleProblem(graph, costs)
    steps = synchronous(random_plan(problem, seed, recomputes=2, transfers=transfers).steps)
    peak = simulate(problem, steps).transient_peak_bytes
    return problem, Limits(int(peak * (1 + slack))), steps


def reading(cost: NodeCost, number: int) -> NodeCost:
    """Return what a node costs, of which every third one waits for the storage besides."""
    waits = cost.seconds * (number % 4 + 1) if number % 3 == 0 else 0.0
    return replace(cost, seconds=cost.seconds + waits, storage_seconds=waits)


def slower(problem: ScheduleProblem) -> ScheduleProblem:
    """Return a problem whose transfers take `SLOW_TRANSFERS` times as long."""

    def stretch(table: object) -> dict[str, TransferCost]:
        assert isinstance(table, dict)
        return {name: TransferCost(cost.seconds * SLOW_TRANSFERS, cost.joules) for name, cost in table.items()}

    costs = problem.costs
    nodes = {
        name: replace(
            cost,
            seconds=cost.seconds + cost.storage_seconds * (SLOW_TRANSFERS - 1),
            storage_seconds=cost.storage_seconds * SLOW_TRANSFERS,
        )
        for name, cost in costs.nodes.items()
    }
    moves = {"page_out": stretch(costs.page_out), "page_in": stretch(costs.page_in)}
    return replace(problem, costs=replace(costs, nodes=nodes, **moves))


@given(
    seed=st.integers(0, 10**6),
    layers=st.integers(2, 25),
    slack=st.sampled_from([0.0, 0.1, 0.5, 4.0]),
    price=st.sampled_from([0.0, 0.1, 1.0]),
    stored=st.booleans(),
)
def test_budget_and_order_are_kept_and_no_time_is_lost(
    seed: int, layers: int, slack: float, price: float, stored: bool
) -> None:
    problem, limits, steps = case(seed, layers, slack, price=price, stored=stored)
    spread = overlap(problem, limits, steps)
    before, after = simulate(problem, steps, limits), simulate(problem, spread, limits)
    assert after.transient_peak_bytes <= limits.transient_bytes
    assert after.seconds <= before.seconds + TOLERANCE_SECONDS
    assert after.energy_joules == pytest.approx(before.energy_joules)
    assert [s for s in spread if s.action is Action.COMPUTE] == [s for s in steps if s.action is Action.COMPUTE]
    assert sorted(map(str, spread)) == sorted(map(str, steps))
    assert overlap(problem, limits, steps) == spread


def moved(steps: Sequence[Step], index: int, computations: int) -> tuple[Step, ...] | None:
    """Return a plan in which a step stands beyond so many more computations, or None where there are none left."""
    step, direction = steps[index], 1 if computations > 0 else -1
    place, passed = index, 0
    while passed < abs(computations):
        place += direction
        if not 0 <= place < len(steps):
            return None
        passed += steps[place].action is Action.COMPUTE
    rest = [*steps[:index], *steps[index + 1 :]]
    rest.insert(place, step)
    return tuple(rest)


def neighbours(steps: Sequence[Step], later: bool) -> Iterator[tuple[Step, ...]]:
    """Yield plans in which one page-in starts, or one page-out ends, one computation later or earlier."""
    for index, step in enumerate(steps):
        if step.action in (Action.PAGE_IN_START, Action.PAGE_OUT_END):
            outwards = step.action is Action.PAGE_OUT_END
            other = moved(steps, index, 1 if later != outwards else -1)
            if other is not None:
                yield other


def seconds(problem: ScheduleProblem, limits: Limits, steps: Sequence[Step]) -> float:
    """Return the predicted time; infinite for what is no valid plan within the budget."""
    try:
        return simulate(problem, steps, limits).seconds
    except CheckFailedError:
        return float("inf")


def held(problem: ScheduleProblem, steps: Sequence[Step]) -> int:
    """Return the bytes that are alive during the computations, summed over these."""
    levels = replay(problem, steps).step_bytes
    return sum(level for level, step in zip(levels, steps, strict=True) if step.action is Action.COMPUTE)


@given(
    seed=st.integers(0, 10**6),
    layers=st.integers(2, 15),
    slack=st.sampled_from([0.0, 0.3, 4.0]),
    stored=st.booleans(),
)
def test_no_page_in_starts_earlier_and_no_page_out_ends_later_than_helps(
    seed: int, layers: int, slack: float, stored: bool
) -> None:
    problem, limits, steps = case(seed, layers, slack, stored=stored)
    spread = overlap(problem, limits, steps)
    slow, tight = slower(problem), limits.within(limits.transient_bytes - TOKEN_BYTES)  # kept for tokens
    # Nearer to its reader or maker, a transfer would cost time, now or when transfers are slow.
    for shorter in neighbours(spread, later=True):
        now, then = seconds(problem, tight, shorter), seconds(slow, limits, shorter)
        if now <= seconds(problem, limits, spread) and then <= seconds(slow, limits, spread):
            assert held(problem, shorter) >= held(problem, spread), "memory is held for nothing"
    # Further away it would not save any, or not fit.
    for longer in neighbours(spread, later=False):
        assert seconds(problem, tight, longer) >= seconds(problem, limits, spread) - TOLERANCE_SECONDS


def placements(steps: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """Yield every way to end page-outs later and to start page-ins earlier, valid or not; at most 20,000 ways."""
    computations = [step for step in steps if step.action is Action.COMPUTE]
    found: list[tuple[Step, int]] = []
    passed = 0
    for step in steps:
        passed += step.action is Action.COMPUTE
        if step.action in STARTS:
            found.append((step, passed))
    ranges = [
        range(at, len(computations) + 1) if step.action is Action.PAGE_OUT_START else range(at + 1)
        for step, at in found
    ]
    for chosen in itertools.islice(itertools.product(*ranges), 20_000):
        boundaries: list[list[tuple[int, int, Step]]] = [[] for _ in range(len(computations) + 1)]
        for number, ((step, at), other) in enumerate(zip(found, chosen, strict=True)):
            outwards = step.action is Action.PAGE_OUT_START
            start, end = (at, other) if outwards else (other, at)
            rank = 0 if outwards else 2
            boundaries[start].append((rank, 2 * number, step))
            boundaries[end].append((rank + (start < end), 2 * number + 1, Step(STARTS[step.action], step.subject)))
        result: list[Step] = []
        for boundary, computation in zip(boundaries, [*computations, None], strict=True):
            result += [step for _, _, step in sorted(boundary, key=lambda entry: entry[:2])]
            if computation is not None:
                result.append(computation)
        yield tuple(result)


@pytest.mark.parametrize("price", [0.0, 0.3])
def test_small_plans_are_nearly_all_as_fast_as_the_best_placement(price: float) -> None:
    best_found = compared = 0
    for seed in range(60):
        problem, limits, steps = case(seed, 2 + seed % 2, (0.0, 0.2)[seed % 2], transfers=1 + seed % 2, price=price)
        if all(step.action is Action.COMPUTE for step in steps):
            continue
        best = min(seconds(problem, limits, placement) for placement in placements(steps))
        found = seconds(problem, limits, overlap(problem, limits, steps))
        assert found >= best - TOLERANCE_SECONDS, "exhaustive search missed a placement"
        compared += 1
        best_found += found <= best + TOLERANCE_SECONDS
    assert compared >= 40
    assert best_found >= 0.95 * compared


def chain(durations: Sequence[float], transfer_seconds: float) -> tuple[ScheduleProblem, tuple[Step, ...]]:
    """Return x -> v0 -> v1 -> ... whose last node reads v0 too; v0 is away in between."""
    count = len(durations)
    tensors = {"x": Tensor("x", "FLOAT", (16,), 64, "x", Residency.RESIDENT)}
    for number in range(count):
        residency = Residency.OUTPUT if number == count - 1 else Residency.TRANSIENT
        tensors[f"v{number}"] = Tensor(f"v{number}", "FLOAT", (16,), 64, f"v{number}", residency)
    nodes = []
    for number in range(count):
        reads = ("x",) if number == 0 else (f"v{number - 1}",)
        reads += ("v0",) if number == count - 1 else ()
        nodes.append(Node(f"n{number}", "Op", "", reads, (f"v{number}",), {}, Phase.FORWARD, False))
    graph = TrainingGraph("chain", tuple(nodes), tensors, ("x",), (f"v{count - 1}",), "chain")
    moves = {name: TransferCost(transfer_seconds, 1.0) for name in tensors if name != "x"}
    costs = {f"n{number}": NodeCost(taken, taken, 0) for number, taken in enumerate(durations)}
    problem = ScheduleProblem(graph, CostTable("chain", costs, moves, moves, True))
    steps = [Step(Action.COMPUTE, f"n{number}") for number in range(count)]
    away = [Step(Action.PAGE_OUT_START, "v0"), Step(Action.PAGE_OUT_END, "v0")]
    back = [Step(Action.PAGE_IN_START, "v0"), Step(Action.PAGE_IN_END, "v0")]
    return problem, (*steps[:1], *away, *steps[1:-1], *back, *steps[-1:])


def lead(steps: Sequence[Step]) -> int:
    """Return the computations between a page-in's start and its end."""
    start = next(index for index, step in enumerate(steps) if step.action is Action.PAGE_IN_START)
    end = next(index for index, step in enumerate(steps) if step.action is Action.PAGE_IN_END)
    return sum(1 for step in steps[start:end] if step.action is Action.COMPUTE)


def test_lead_is_a_matter_of_time_and_not_of_the_number_of_nodes() -> None:
    quick, slow = [1.0] * 20, [1.0] * 10 + [8.0] * 10
    leads = []
    for durations in (quick, slow):
        problem, steps = chain(durations, 6.0)
        spread = overlap(problem, Limits(), steps)
        assert simulate(problem, spread).stall_seconds == 0.0
        leads.append(lead(spread))
    assert leads == [8, 1]  # 6 s x 1.25 are 8 nodes of 1 s, and one of 8 s


def test_a_transfer_is_handed_over_where_it_hides_more_than_that_takes() -> None:
    for transfer_seconds, hides in ((6.0, True), (0.25, False)):
        problem, steps = chain([1.0] * 20, transfer_seconds)
        problem = replace(problem, costs=replace(problem.costs, hand_over_seconds=0.5, wake_seconds=1.5))
        spread, whole = simulate(problem, overlap(problem, Limits(), steps)), simulate(problem, steps)
        assert whole.seconds == pytest.approx(20.0 + 2 * transfer_seconds)
        assert spread.seconds == pytest.approx(20.0 + 2 * 0.5 if hides else whole.seconds)
        assert spread.stall_seconds == pytest.approx(0.0 if hides else 2 * transfer_seconds)


def test_memory_that_is_there_anyway_hides_transfers_in_a_full_budget() -> None:
    problem, steps = chain([1.0] * 20, 6.0)
    peak = simulate(problem, steps).transient_peak_bytes
    spread = overlap(problem, Limits(peak), steps)
    # v0 is alive while the next node reads it: the page-out has that second for nothing, and nothing else is free.
    assert list(map(str, spread)) == list(map(str, [*steps[:2], steps[3], steps[2], *steps[4:]]))
    assert simulate(problem, spread).stall_seconds == pytest.approx(6.0 - 1.0 + 6.0)
    roomy = overlap(problem, Limits(peak + 64 + TOKEN_BYTES), steps)
    assert simulate(problem, roomy).stall_seconds == 0.0
    assert simulate(problem, roomy).transient_peak_bytes <= peak + 64 + TOKEN_BYTES


def test_a_page_in_that_must_wait_for_memory_sends_no_other_into_it_before_its_time() -> None:
    # a is read before a node with a large workspace, b behind it: b cannot come before, so the channel is free for a.
    names = ["make_a", "make_b", *(f"work{number}" for number in range(8)), "read_a", "large", "read_b"]
    values = {"make_a": "a", "make_b": "b"} | {name: f"of_{name}" for name in names[2:]}
    tensors = {"x": Tensor("x", "FLOAT", (16,), 64, "x", Residency.RESIDENT)}
    tensors |= {value: Tensor(value, "FLOAT", (16,), 64, value) for value in values.values()}
    reads = {"read_a": ("x", "a"), "read_b": ("x", "b")}
    nodes = [Node(name, "Op", "", reads.get(name, ("x",)), (values[name],), {}, Phase.FORWARD, False) for name in names]
    graph = TrainingGraph("late", tuple(nodes), tensors, ("x",), ("of_read_b",), "late")
    taken = dict.fromkeys(names, 0.5) | {"read_a": 0.1, "large": 0.1}
    costs = {name: NodeCost(taken[name], 1.0, 640 if name == "large" else 0) for name in names}
    moves = {value: TransferCost(1.0, 1.0) for value in ("a", "b")}
    problem = ScheduleProblem(graph, CostTable("late", costs, moves, moves, True))
    steps = []
    for name in names:
        back = {"read_a": "a", "read_b": "b"}.get(name)
        steps += [Step(Action.PAGE_IN_START, back), Step(Action.PAGE_IN_END, back)] if back else []
        steps.append(Step(Action.COMPUTE, name))
        if values[name] in moves:
            steps += [Step(Action.PAGE_OUT_START, values[name]), Step(Action.PAGE_OUT_END, values[name])]
    peak = simulate(problem, steps).transient_peak_bytes
    spread = spread_out(problem, Limits(peak), steps)
    assert lead(spread) == 2  # of a: 1 s beside nodes of .5 s
    assert simulate(problem, spread).stall_seconds == pytest.approx(1.0)  # for b


def test_a_page_in_follows_the_page_out_of_its_value() -> None:
    problem, steps = chain([1.0] * 6, 5.0)
    spread = overlap(problem, Limits(), steps)
    prediction = simulate(problem, spread)  # raises where a page-in starts before its page-out has ended
    assert prediction.stall_seconds == pytest.approx(6.0)  # 10 s of transfers beside 4 s of computation


def test_synchronous_storage_and_plans_without_transfers_stay_as_they_are() -> None:
    problem, steps = chain([1.0] * 6, 5.0)
    alone = replace(problem, costs=replace(problem.costs, asynchronous=False))
    assert overlap(alone, Limits(), steps) == steps
    computations = tuple(step for step in steps if step.action is Action.COMPUTE)
    assert overlap(problem, Limits(), computations) == computations
