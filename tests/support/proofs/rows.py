"""No row leaves out a plan that keeps budget and deadline: random plans against the model of their own limits."""

from __future__ import annotations

import random
from dataclasses import replace

from random_graphs import random_dag
from random_plans import plan_of, random_plan

from poet_onnx.plan import Action, Plan, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.ancestry import Ancestry
from poet_onnx.scheduling.limit_rows import relaxed_timing
from poet_onnx.scheduling.liveness import Instance, build_instance
from poet_onnx.scheduling.model import formulate
from poet_onnx.transfers import overlap, spread_out
from proofs.assignments import admits, restores_of
from proofs.finding import FAILED, Finding, exact_bytes

LATER = (1.0, 1.0, 1.02, 1.2)
"""Deadlines, as multiples of the time that the plan takes."""


def check_rows(seed: int, *, most_nodes: int = 30) -> list[Finding]:
    """Take a random plan's own peak and time as limits; return whether the model for them admits the plan."""
    rng = random.Random(seed)
    with exact_bytes():
        problem = _problem(seed, rng, most_nodes)
        problem, plan = _plan(problem, seed, rng)
        order = [step.subject for step in plan.steps if step.action is Action.COMPUTE and not step.copy]
        instance = build_instance(problem, order)
        limits = Limits(plan.prediction.transient_peak_bytes, plan.prediction.seconds * rng.choice(LATER))
        kind = "asynchronous" if problem.costs.asynchronous else "synchronous"
        again = "with recompute" if plan.prediction.recomputed_nodes else "paging only"
        case = f"seed {seed}, {len(order)} nodes"
        return [Finding("rows", f"{again}, {kind}", _outcome(instance, limits, plan), 0.0, case)]


def _problem(seed: int, rng: random.Random, most_nodes: int) -> ScheduleProblem:
    """Return a random problem whose nodes take over no buffers, which the model counts only where that is certain."""
    graph, costs = random_dag(seed, 4 + seed * 7 % (most_nodes - 3))
    graph = replace(graph, nodes=tuple(replace(node, inplace=()) for node in graph.nodes))
    return ScheduleProblem(graph, replace(costs, asynchronous=rng.random() < 0.8))


def _busy(problem: ScheduleProblem, steps: tuple[Step, ...], load: float) -> ScheduleProblem:
    """Return a problem whose transfers are so fast that a plan's keep the channel busy for a share of its time."""
    costs = problem.costs
    tables = {Action.PAGE_OUT_START: costs.page_out, Action.PAGE_IN_START: costs.page_in}
    moving = sum(tables[step.action][step.subject].seconds for step in steps if step.action in tables)
    running = sum(costs.nodes[step.subject].seconds for step in steps if step.action is Action.COMPUTE)
    if not moving:
        return problem
    out, back = (
        {value: replace(cost, seconds=cost.seconds * load * running / moving) for value, cost in table.items()}
        for table in (costs.page_out, costs.page_in)
    )
    return replace(problem, costs=replace(costs, page_out=out, page_in=back))


def _plan(problem: ScheduleProblem, seed: int, rng: random.Random) -> tuple[ScheduleProblem, Plan]:
    """Return a random plan, mostly with its transfers spread, so that hardly any time is left to it."""
    steps = random_plan(problem, seed, recomputes=rng.choice([0, 0, 1, 2, 3]), transfers=rng.randint(1, 10)).steps
    for value in dict.fromkeys(step.subject for step in steps if step.action is Action.PAGE_IN_END):
        if rng.random() < 0.5:
            steps = _fetched_again(problem, steps, value, rng)
    problem = _busy(problem, steps, rng.choice([0.2, 0.4, 0.7, 1.0, 1.5]))
    plan = plan_of(problem, list(steps))
    if rng.random() < 0.8:
        budget = rng.choice([None, None, int(plan.prediction.transient_peak_bytes * rng.choice([1.0, 1.1, 1.4]))])
        place = rng.choice([overlap, spread_out])
        plan = plan_of(problem, list(place(problem, Limits(budget), steps)))
    return problem, plan


def _fetched_again(
    problem: ScheduleProblem, steps: tuple[Step, ...], value: str, rng: random.Random
) -> tuple[Step, ...]:
    """Return the steps with a value paged in once more before a later reader, if it has one and is not made again."""
    nodes = {node.name: node for node in problem.graph.nodes}
    arrived = steps.index(Step(Action.PAGE_IN_END, value))
    runs = [index for index in range(arrived, len(steps)) if steps[index].action is Action.COMPUTE]
    reads = [index for index in runs if value in problem.graph.transient_reads(nodes[steps[index].subject])]
    if len(reads) < 2 or any(value in problem.graph.transient_writes(nodes[steps[index].subject]) for index in runs):
        return steps
    number = rng.randrange(1, len(reads))
    end = reads[number]
    start = rng.randint(reads[number - 1] + 1, end)
    begin, arrive = Step(Action.PAGE_IN_START, value), Step(Action.PAGE_IN_END, value)
    return (*steps[:start], begin, *steps[start:end], arrive, *steps[end:])


def _outcome(instance: Instance, limits: Limits, plan: Plan) -> str:
    model = formulate(instance, limits, relaxed_timing(instance, limits))
    if not model.proves:
        return f"{FAILED}: the model says that it leaves plans out"
    restores = restores_of(model, plan.steps)
    if restores is None:
        return "outside the class"
    if Ancestry(model).violated(model.complete(restores)):
        return f"{FAILED}: what is recomputed is said to come from nothing"
    if model.memory.fixed_bytes <= limits.transient_bytes and admits(model, restores):
        return "admitted" if restores.recomputed or restores.paged_in else "admitted, nothing to decide"
    late = replace(limits, deadline_seconds=1e6 * (limits.deadline_seconds or 0.0))
    timeless = formulate(instance, late, relaxed_timing(instance, late))
    restores = restores_of(timeless, plan.steps)
    if restores is None or not admits(timeless, restores):
        return f"{FAILED}: left out by the rows of memory"
    return f"{FAILED}: left out by the rows of time"
