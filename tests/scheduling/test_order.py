"""Orders: the lowest peak, proven by exhaustive search where that is possible, and the order for a budget."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute_force import least_energy
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import enlarged, random_graph
from real_problems import real_problem

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.plan import Action, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.bound import least_overhead
from poet_onnx.scheduling.eviction import Eviction, evict, evict_and_count
from poet_onnx.scheduling.liveness import Liveness, Profile, build_instance, file_order
from poet_onnx.scheduling.order import Dependencies, memory_aware_order, peak_bound
from poet_onnx.scheduling.order_search import WORK_PER_TRIAL, OrderSearch, order_for
from poet_onnx.scheduling.quick_plan import quick_plan
from poet_onnx.scheduling.smallest import smallest_budget
from poet_onnx.scheduling.steps import steps_of_eviction
from poet_onnx.simulate import simulate


def _wide(seed: int, count: int) -> ScheduleProblem:
    """Return a random graph with many orders: two inputs at most, buffers that may be shared, outputs, updates."""
    bits = random.Random(seed)
    tensors = {name: Tensor(name, "FLOAT", (4,), 16, name, Residency.RESIDENT) for name in ("x", "state")}
    nodes: list[Node] = []
    made: list[str] = []
    readers: list[str] = []
    for number in range(count):
        reads = bits.sample(made, min(len(made), bits.choice([0, 1, 1, 2]))) or ["x"]
        size = bits.choice([100, 200, 400, 800])
        name = f"v{number}"
        kept = bits.random() < 0.1
        residency = Residency.OUTPUT if kept else Residency.TRANSIENT
        tensors[name] = Tensor(name, "FLOAT", (size // 4,), size, name, residency)
        shared = [(index, 0) for index, read in enumerate(reads) if tensors[read].size_bytes == size and not kept]
        changes = bits.random() < 0.15
        inputs = (*reads, "state") if changes or bits.random() < 0.15 else tuple(reads)
        after = tuple(readers) if changes else tuple(readers[:1])
        if "state" in inputs:
            readers = [f"n{number}"] if changes else [*readers, f"n{number}"]
        else:
            after = ()
        nodes.append(
            Node(
                f"n{number}",
                "Op",
                "",
                inputs,
                (name,),
                {},
                Phase.FORWARD,
                recomputable=False,
                updates=("state",) if changes else (),
                inplace=tuple(shared[:1]) if bits.random() < 0.5 else (),
                after=after,
            )
        )
        made.append(name)
    outputs = tuple(name for name in made if tensors[name].is_output)
    graph = TrainingGraph("wide", tuple(nodes), tensors, ("x", "state"), outputs, f"wide-{seed}-{count}")
    costs = {node.name: NodeCost(1.0, 1.0, bits.choice([0, 0, 50, 300])) for node in nodes}
    return ScheduleProblem(graph, CostTable("none", costs, {}, {}, asynchronous=False))


def _before(problem: ScheduleProblem) -> dict[str, list[str]]:
    liveness = Liveness(problem)
    ties = zip(liveness.names, Dependencies(liveness).before, strict=True)
    return {name: [liveness.names[other] for other in earlier] for name, earlier in ties}


def _least_peak(problem: ScheduleProblem) -> int:
    """Return the lowest peak of all orders: a walk over all sets of nodes that may have run.

    What is in memory follows from the set alone, and what a node needs from the set before it.
    """
    graph = problem.graph
    before = _before(problem)
    sizes = {name: tensor.size_bytes for name, tensor in graph.tensors.items()}
    nodes = {node.name: node for node in graph.nodes}
    readers: dict[str, set[str]] = {value: set() for node in graph.nodes for value in graph.transient_writes(node)}
    for node in graph.nodes:
        for value in graph.transient_reads(node):
            readers[value].add(node.name)
    best: dict[frozenset[str], int] = {frozenset(): 0}
    for _ in nodes:
        following: dict[frozenset[str], int] = {}
        for done, peak in best.items():
            alive = {value for name in done for value in graph.transient_writes(nodes[name])}
            alive = {value for value in alive if graph.tensors[value].is_output or readers[value] - done}
            for name, node in nodes.items():
                if name in done or not done.issuperset(before[name]):
                    continue
                level = sum(sizes[value] for value in alive | set(graph.transient_writes(node)))
                level += problem.costs.nodes[name].workspace_bytes
                for source, target in node.inplace:
                    value = node.inputs[source]
                    if readers[value] - done == {name} and not graph.tensors[value].is_output:
                        level -= sizes[node.outputs[target]]
                reached = done | {name}
                following[reached] = min(following.get(reached, 2**62), max(peak, level))
        best = following
    return best[frozenset(nodes)]


def _peak(problem: ScheduleProblem, order: tuple[str, ...]) -> int:
    return max(build_instance(problem, order).step_bytes())


def _is_allowed(problem: ScheduleProblem, order: tuple[str, ...]) -> bool:
    place = {name: number for number, name in enumerate(order)}
    before = _before(problem)
    return all(place[other] < place[name] for name in order for other in before[name])


@given(seed=st.integers(0, 10**6), count=st.integers(1, 9))
def test_no_order_is_below_the_oracle_and_the_bound_is_not_above_it(seed: int, count: int) -> None:
    problem = _wide(seed, count)
    order = memory_aware_order(problem)
    least = _least_peak(problem)
    assert _is_allowed(problem, order)
    assert (
        peak_bound(Dependencies(Liveness(problem)))
        <= least
        <= _peak(problem, order)
        <= _peak(problem, file_order(problem.graph))
    )


def test_most_random_graphs_get_their_lowest_peak() -> None:
    ratios = []
    for seed in range(150):
        problem = _wide(seed, 4 + seed % 7)
        ratios.append(_peak(problem, memory_aware_order(problem)) / _least_peak(problem))
    assert sum(ratio == 1 for ratio in ratios) >= 0.98 * len(ratios)
    assert max(ratios) < 1.1


@given(seed=st.integers(0, 10**6), layers=st.integers(1, 20), wide=st.booleans())
def test_profile_counts_as_the_instance_does(seed: int, layers: int, wide: bool) -> None:
    problem = _wide(seed, layers) if wide else ScheduleProblem(*random_graph(seed, layers))
    liveness = Liveness(problem)
    deps = Dependencies(liveness)
    numbered = (deps.drain_order(), deps.greedy_order())
    for order in (file_order(problem.graph), *map(liveness.names_of, numbered), memory_aware_order(problem)):
        profile = liveness.in_order(order)
        instance = build_instance(problem, order)
        assert profile.levels.tolist() == instance.step_bytes()
        assert liveness.names_of(profile.order) == order
        intervals = {
            (instance.values[value], first, last)
            for value in range(len(instance.values))
            for first, last in zip(
                (instance.producer[value], *instance.uses[value]), instance.uses[value], strict=False
            )
        }
        columns = (profile.intervals.value, profile.intervals.first, profile.intervals.last)
        assert {
            (liveness.values[v], a, b) for v, a, b in zip(*map(np.ndarray.tolist, columns), strict=True)
        } == intervals


@given(seed=st.integers(0, 10**6), count=st.integers(2, 20), data=st.data())
def test_moves_keep_every_dependency(seed: int, count: int, data: st.DataObject) -> None:
    problem = _wide(seed, count)
    liveness = Liveness(problem)
    deps = Dependencies(liveness)
    order = liveness.order_of(file_order(problem.graph))
    for _ in range(8):
        first = data.draw(st.integers(0, count - 2))
        last = data.draw(st.integers(first + 1, count - 1))
        position = liveness.position(order)
        pulled = deps.pull(order, position, [last], first)
        pushed = deps.push(order, position, first, last)
        for moved in (pulled, pushed):
            if moved is not None:
                assert _is_allowed(problem, liveness.names_of(moved))
                assert not np.array_equal(moved, order)
        if pulled is not None:
            node = int(order[last])
            assert first <= int(liveness.position(pulled)[node]) < last
        order = next((moved for moved in (pulled, pushed) if moved is not None), order)


def test_constants_run_right_before_their_reader() -> None:
    problem = _wide(3, 1)
    tensors = dict(problem.graph.tensors)
    for name in ("late", "a", "b", "c"):
        tensors[name] = Tensor(name, "FLOAT", (25,), 100, name)

    def node(name: str, reads: tuple[str, ...], writes: str) -> Node:
        return Node(name, "Op", "", reads, (writes,), {}, Phase.FORWARD, recomputable=False)

    nodes = (
        node("weight", ("state",), "late"),
        node("one", ("x",), "a"),
        node("two", ("a",), "b"),
        node("three", ("b", "late"), "c"),
    )
    graph = replace(problem.graph, nodes=nodes, tensors=tensors, outputs=())
    costs = {one.name: NodeCost(1.0, 1.0, 0) for one in nodes}
    liveness = Liveness(replace(problem, graph=graph, costs=replace(problem.costs, nodes=costs)))
    order = liveness.names_of(Dependencies(liveness).late_order(np.arange(4)))
    assert order == ("one", "two", "weight", "three")


@pytest.mark.parametrize("name", ["vgg16", "resnet18", "bert-2"])
def test_real_models_come_close_to_the_bound(name: str, model_path: Callable[..., Path]) -> None:
    problem = real_problem(model_path(name), "tx2")
    order = memory_aware_order(problem)
    assert _is_allowed(problem, order)
    bound = peak_bound(Dependencies(Liveness(problem)))
    assert bound <= _peak(problem, order) <= bound * 1.001


def _training(
    seed: int, layers: int, share: float, *, large: bool = False
) -> tuple[ScheduleProblem, tuple[str, ...], int]:
    """Return a random training graph, its order and a budget between its largest node and its peak."""
    graph, costs = random_graph(seed, layers)
    if large:
        graph, costs = enlarged(graph, costs)
    problem = ScheduleProblem(graph, costs)
    order = memory_aware_order(problem)
    instance = build_instance(problem, order)
    least = max(instance.smallest_node_bytes(position) for position in range(len(order)))
    return problem, order, int(least + share * (max(instance.step_bytes()) - least))


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), layers=st.integers(2, 20), share=st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_quick_plans_hold_and_cost_no_less_than_the_bound(seed: int, layers: int, share: float) -> None:
    problem, order, budget = _training(seed, layers, share, large=True)
    liveness = Liveness(problem)
    profile = liveness.in_order(order)
    plan = quick_plan(profile, Limits(budget))
    bound = least_overhead(profile, Limits(budget))
    if plan is None:
        assert share < 1
        return
    prediction = simulate(problem, plan.steps, Limits(budget))
    assert prediction == plan.prediction
    assert tuple(s.subject for s in plan.steps if s.action is Action.COMPUTE and not s.copy) == order
    assert bound <= (prediction.energy_joules - problem.base_joules) * (1 + 1e-9) + 1e-9


def test_quick_plans_bring_back_only_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval that was cut for a recompute may outlive it."""
    tried: list[tuple[Step, ...]] = []

    def kept(eviction: Eviction) -> tuple[Step, ...]:
        tried.append(steps_of_eviction(eviction))
        return tried[-1]

    monkeypatch.setattr("poet_onnx.scheduling.quick_plan.steps_of_eviction", kept)
    # The first of these had values paged in that were paged in again before anything read them.
    for seed, share in (
        (26, 0.1),
        (105, 0.3),
        (212, 0.2),
        (236, 0.3),
        *((seed, 0.05 * (seed % 9)) for seed in range(30)),
    ):
        problem, order, budget = _training(seed, 3 + seed % 40, share, large=bool(seed % 2))
        tried.clear()
        quick_plan(Liveness(problem).in_order(order), Limits(budget))
        for steps in tried:
            assert not list(_unread(problem, steps)), f"seed {seed}"


def _unread(problem: ScheduleProblem, steps: Sequence[Step]) -> Iterator[str]:
    """Yield what comes back, and comes back again or is never read."""
    nodes = {node.name: node for node in problem.graph.nodes}
    unread: dict[str, set[str]] = {}  # values, by what brought them back
    for step in steps:
        node = nodes[step.subject] if step.action is Action.COMPUTE else None
        read = set(() if node is None else problem.graph.transient_reads(node))
        unread = {name: values for name, values in unread.items() if values.isdisjoint(read)}
        if step.action is Action.PAGE_IN_START or step.copy:
            if step.subject in unread:
                yield step.subject
            unread[step.subject] = {step.subject} if node is None else set(problem.graph.transient_writes(node))
    yield from unread


def test_a_search_ends_where_no_order_has_a_quick_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at in vain counts, too: nothing else ends a search without a clock."""
    problem, order, budget = _training(3, 30, 0.0, large=True)
    limits, looked = Limits(budget // 4), list[int]()

    def counted(profile: Profile, limits: Limits) -> tuple[Eviction | None, int]:
        plan, visits = evict_and_count(profile, limits)
        assert plan is None
        looked.append(visits)
        return plan, visits

    monkeypatch.setattr("poet_onnx.scheduling.order_search.evict_and_count", counted)
    profile = Liveness(problem).in_order(order)
    monkeypatch.setattr("poet_onnx.scheduling.order_search.MOST_WORK", 20 * (WORK_PER_TRIAL + len(profile.order)))
    search = OrderSearch(profile, limits, end=math.inf, seed=0)
    search.candidates()
    assert min(looked) > len(profile.order)
    assert search.work == sum(looked) + len(looked) * (WORK_PER_TRIAL + len(profile.order))
    assert len(looked) < 20


def test_quick_plans_are_found_nearly_everywhere() -> None:
    found = 0
    for seed in range(60):
        problem, order, budget = _training(seed, 5 + seed % 20, 0.5, large=True)
        liveness = Liveness(problem)
        profile = liveness.in_order(order)
        plan = evict(profile, Limits(budget))
        found += plan is not None
    assert found >= 50


@pytest.mark.deep
def test_no_plan_of_any_kind_is_below_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poet_onnx.simulate.versions.TOKEN_BYTES", 0)
    compared = tight = 0
    for seed in range(16):
        problem, order, budget = _training(seed, 3 + seed % 2, 0.2 * (seed % 4))
        liveness = Liveness(problem)
        profile = liveness.in_order(order)
        bound = least_overhead(profile, Limits(budget))
        best = least_energy(problem, Limits(budget), order)
        if best is None:
            continue
        overhead = best - problem.base_joules
        assert bound <= overhead + 1e-6
        compared += overhead > 0
        tight += overhead > 0 and bound >= 0.999 * overhead
    assert compared >= 6
    assert tight >= compared // 4


@settings(max_examples=5)
@given(seed=st.integers(0, 10**6), layers=st.integers(2, 10), share=st.sampled_from([0.3, 0.6, 1.0]))
def test_the_order_for_a_budget_is_proven_better_or_the_rule(seed: int, layers: int, share: float) -> None:
    problem, baseline, budget = _training(seed, layers, share, large=True)
    choice = order_for(problem, Limits(budget))
    assert _is_allowed(problem, choice.order)
    if choice.plan is not None:
        assert simulate(problem, choice.plan.steps, Limits(budget)) == choice.plan.prediction
    if choice.order != baseline:
        assert choice.plan is not None
        assert choice.plan.prediction.energy_joules < choice.baseline_bound_joules
    assert choice == order_for(problem, Limits(budget))


@pytest.mark.parametrize("seed", [9, 28, 47])
def test_another_order_is_taken_where_it_is_proven_better(seed: int) -> None:
    problem = _wide(seed, 14)
    tensors = {name: replace(t, size_bytes=t.size_bytes * 1000) for name, t in problem.graph.tensors.items()}
    nodes = {name: replace(c, workspace_bytes=c.workspace_bytes * 1000) for name, c in problem.costs.nodes.items()}
    values = [value for node in problem.graph.nodes for value in problem.graph.transient_writes(node)]
    moves = {value: TransferCost(1.0, tensors[value].size_bytes / 1e5) for value in values}
    costs = replace(problem.costs, nodes=nodes, page_out=moves, page_in=moves, asynchronous=True)
    problem = replace(problem, graph=replace(problem.graph, tensors=tensors), costs=costs)
    baseline = memory_aware_order(problem)
    instance = build_instance(problem, baseline)
    budget = (max(map(instance.smallest_node_bytes, range(14))) + _peak(problem, baseline)) // 2
    choice = order_for(problem, Limits(budget))
    assert choice.order != baseline
    assert _is_allowed(problem, choice.order)
    assert choice.plan is not None
    prediction = choice.plan.prediction
    assert prediction.energy_joules < choice.baseline_bound_joules
    if choice.baseline_plan is not None:
        assert choice.baseline_bound_joules <= choice.baseline_plan.prediction.energy_joules
    assert simulate(problem, choice.plan.steps, Limits(budget)) == prediction


@pytest.mark.parametrize(("name", "share"), [("transformer", 0.6)])
def test_the_order_for_a_budget_of_real_models(name: str, share: float, model_path: Callable[..., Path]) -> None:
    problem = real_problem(model_path(name), "tx2")
    budget = int(share * _peak(problem, memory_aware_order(problem)))
    choice = order_for(problem, Limits(budget))
    assert _is_allowed(problem, choice.order)
    assert choice.plan is not None
    assert choice.baseline_plan is not None
    assert simulate(problem, choice.plan.steps, Limits(budget)) == choice.plan.prediction
    assert choice.plan.prediction.energy_joules <= choice.baseline_plan.prediction.energy_joules


@pytest.mark.deep
def test_a_little_more_memory_does_not_lead_to_a_worse_order(model_path: Callable[..., Path]) -> None:
    problem = real_problem(model_path("mobilenet"), "a72")
    baseline = memory_aware_order(problem)
    peak = _peak(problem, baseline)
    smallest = -(-smallest_budget(problem, baseline).budget_bytes // 1024) * 1024  # in KiB, as people type it
    energies: list[float] = []
    for share in (0.0, 0.004, 0.01):
        plans: list[tuple[Step, ...]] = []
        budget = smallest + int(share * (peak - smallest))
        order_for(problem, Limits(budget), found=plans.append)
        energies.append(min(simulate(problem, steps).energy_joules for steps in plans))
        assert energies[-1] <= 1.07 * min(energies)  # a local search: up to 5.9 % worse was seen
