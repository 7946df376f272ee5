"""Random valid plans: any order, recomputation and paging wherever they are legal, sensible or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.plan import ALL_PLANS, Action, Certificate, Plan, Step, gaps
from poet_onnx.plan.limits import UNLIMITED
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate import simulate


def plan_of(problem: ScheduleProblem, steps: list[Step]) -> Plan:
    """Return steps as a plan, with the simulator's prediction."""
    graph, prediction = problem.graph, simulate(problem, steps)
    energy = prediction.energy_joules
    bound = min(energy, problem.base_joules)
    gap, overhead_gap = gaps(energy, bound, problem.base_joules)
    certificate = Certificate("other_costs", energy, bound, gap, overhead_gap, ALL_PLANS, bound, "none", 0, 1, 0.0)
    return Plan(graph.fingerprint, problem.costs.device, UNLIMITED, tuple(steps), prediction, certificate)


def file_order_plan(problem: ScheduleProblem) -> Plan:
    """Return the plan that runs every node once, in the order of the file."""
    return plan_of(problem, [Step(Action.COMPUTE, node.name) for node in problem.graph.nodes if not node.view])


def random_plan(problem: ScheduleProblem, seed: int, *, recomputes: int = 8, transfers: int = 8) -> Plan:
    """Return a random valid plan; it may recompute and page whatever the problem allows."""
    rng = random.Random(seed)
    nodes = {node.name: node for node in problem.graph.nodes if not node.view}
    steps = [Step(Action.COMPUTE, name) for name in _random_order(problem.graph, nodes, rng)]
    for _ in range(recomputes):
        steps = _recompute(problem.graph, nodes, steps, rng)
    for _ in range(transfers):
        steps = _transfer(problem.graph, nodes, steps, rng)
    return plan_of(replace(problem, recompute=True, paging=True), steps)


def _random_order(graph: TrainingGraph, nodes: dict[str, Node], rng: random.Random) -> list[str]:
    maker = {value: node.name for node in nodes.values() for value in graph.transient_writes(node)}
    waiting = {
        node.name: {maker[value] for value in graph.transient_reads(node)} | (nodes.keys() & set(node.after))
        for node in nodes.values()
    }
    order: list[str] = []
    while waiting:
        ready = [name for name, needs in waiting.items() if needs.isdisjoint(waiting)]
        order.append(ready[0] if rng.random() < 0.7 else rng.choice(ready))
        del waiting[order[-1]]
    return order


def _recompute(graph: TrainingGraph, nodes: dict[str, Node], steps: list[Step], rng: random.Random) -> list[Step]:
    """Run some node again before some later reader of what it makes."""
    writers = {resident for node in nodes.values() for resident in node.updates}
    candidates = [
        node
        for node in nodes.values()
        if node.recomputable
        and writers.isdisjoint(set(node.inputs) - set(node.updates))
        and graph.transient_writes(node)
    ]
    if not candidates:
        return steps
    node = rng.choice(candidates)
    first = next(index for index, step in enumerate(steps) if step.subject == node.name)
    readers = [
        index
        for index, step in enumerate(steps)
        if index > first + 1 and set(graph.transient_reads(nodes[step.subject])) & set(graph.transient_writes(node))
    ]
    if not readers:
        return steps
    place = rng.choice(readers)
    steps = [*steps[:place], Step(Action.COMPUTE, node.name), *steps[place:]]
    counts: dict[str, int] = {}
    numbered = []
    for step in steps:
        numbered.append(Step(Action.COMPUTE, step.subject, counts.get(step.subject, 0)))
        counts[step.subject] = counts.get(step.subject, 0) + 1
    return numbered


def _transfer(graph: TrainingGraph, nodes: dict[str, Node], steps: list[Step], rng: random.Random) -> list[Step]:
    """Page some value out and in again, each either at once or in two halves with steps between them."""
    value = rng.choice([value for node in nodes.values() for value in graph.transient_writes(node)])
    if any(step.subject == value for step in steps):
        return steps

    def touches(step: Step, of: Callable[[Node], tuple[str, ...]]) -> bool:
        return step.action is Action.COMPUTE and value in of(nodes[step.subject])

    makes = [index for index, step in enumerate(steps) if touches(step, graph.transient_writes)]
    reads = [index for index, step in enumerate(steps) if touches(step, graph.transient_reads)]
    if not reads:
        return steps
    arrive = rng.choice(reads)
    made = max(index for index in makes if index < arrive)
    leave = rng.randint(made + 1, arrive)
    left = min(arrive, leave + rng.choice([0, 0, 1, 4]))
    begin = max([left, *(index + 1 for index in makes + reads if index < arrive)])
    begin = rng.randint(begin, arrive)
    inserted = [
        (leave, Step(Action.PAGE_OUT_START, value)),
        (left, Step(Action.PAGE_OUT_END, value)),
        (begin, Step(Action.PAGE_IN_START, value)),
        (arrive, Step(Action.PAGE_IN_END, value)),
    ]
    result = []
    for index, step in enumerate([*steps, None]):
        result += [new for place, new in inserted if place == index]
        if step is not None:
            result.append(step)
    return result
