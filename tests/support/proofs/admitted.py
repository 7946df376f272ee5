"""The simulator accepts what the model's rows admit: walks from one assignment to another, each carried out."""

from __future__ import annotations

import random
from collections.abc import Iterator

from random_graphs import random_attention, random_dag

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, smallest_budget
from poet_onnx.scheduling.attempt import paged_start
from poet_onnx.scheduling.liveness import build_instance
from poet_onnx.scheduling.model import Formulation, Restores, formulate
from poet_onnx.scheduling.steps import steps_of_assignment
from poet_onnx.simulate import simulate
from proofs.finding import FAILED, Finding

STEPS = 60
"""Steps of each walk."""

PLACES = (0.0, 0.1, 0.2, 0.4)
"""Budgets, from the smallest that works to the peak."""

ROUNDING = 1e-9


def check_admitted(seed: int, *, most_nodes: int = 44) -> list[Finding]:
    """Walk over assignments that the model of a random problem admits; return how many the simulator accepts."""
    rng = random.Random(seed)
    kind = "attention" if seed % 2 else "of any shape"
    graph, costs = (
        random_attention(seed, 1 + seed % 3) if seed % 2 else random_dag(seed, 4 + seed * 7 % (most_nodes - 3))
    )
    problem = ScheduleProblem(graph, costs)
    order = memory_aware_order(problem)
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    limits = Limits(smallest + int((peak - smallest) * rng.choice(PLACES)))
    model = formulate(build_instance(problem, order), limits)
    accepted = 0
    for x in walk(model, rng):
        try:
            simulate(problem, steps_of_assignment(model, x), limits)
        except CheckFailedError as error:
            case = f"seed {seed}, {len(order)} nodes: {error}"
            return [Finding("admitted", kind, f"{FAILED}: refused", 0.0, case)]
        accepted += 1
    return [Finding("admitted", kind, "accepted", float(accepted), f"seed {seed}")]


def walk(model: Formulation, rng: random.Random) -> Iterator[list[float]]:
    """Yield assignments that all rows hold for, each a few changes away from an earlier one."""
    start = paged_start(model)
    here = None if start is None else model.restores(start)
    for _ in range(STEPS if here is not None else 0):
        assert here is not None
        x = model.complete(model.useful(_changed(model, here, rng)))
        if _holds(model, x):
            yield x
            here = model.restores(x) if rng.random() < 0.8 else here


def _changed(model: Formulation, restores: Restores, rng: random.Random) -> Restores:
    """Return restores with some taken out and others put in, often such of one stage."""
    recomputed, paged_in = set(restores.recomputed), set(restores.paged_in)
    stages = sorted({stage for stage, _ in model.recompute})
    pages = sorted(model.page_in)
    for _ in range(rng.randint(1, 4)):
        if stages and rng.random() < 0.5:
            stage = rng.choice(stages)
            recomputed ^= {rng.choice([key for key in sorted(model.recompute) if key[0] == stage])}
            if rng.random() < 0.5:
                there = [key for key in pages if model.candidates.events[key[0]][key[1]].stage == stage]
                paged_in ^= {key for key in there if rng.random() < 0.4}
        elif pages:
            paged_in ^= {rng.choice(pages)}
    return Restores(frozenset(recomputed), frozenset(paged_in))


def _holds(model: Formulation, x: list[float]) -> bool:
    """Return whether an assignment satisfies every row."""
    for row in model.rows:
        level = sum(coefficient * x[variable] for variable, coefficient in row.terms.items())
        if row.low is not None and level < row.low - ROUNDING:
            return False
        if row.high is not None and level > row.high + ROUNDING:
            return False
    return model.ceilings().excess_bytes(x) <= 0
