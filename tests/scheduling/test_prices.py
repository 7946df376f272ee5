"""Plans at a price for time: they keep the rows of time, as others seldom do, and cost little more than needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from random_graphs import enlarged, random_dag
from real_problems import real_problem

from poet_onnx.errors import InfeasibleError
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.attempt import improve_in_time, paged_start
from poet_onnx.scheduling.limit_rows import relaxed_timing
from poet_onnx.scheduling.liveness import build_instance
from poet_onnx.scheduling.model import Formulation, formulate
from poet_onnx.scheduling.steps import steps_of_assignment
from poet_onnx.simulate import simulate


def _short_of_time(seeds: range) -> Iterator[tuple[ScheduleProblem, Formulation]]:
    """Yield random problems on synchronous storage whose rows of time can bind, with their models."""
    for seed in seeds:
        rng = random.Random(seed)
        graph, costs = enlarged(*random_dag(seed, rng.randint(6, 20)))
        problem = ScheduleProblem(graph, replace(costs, asynchronous=False))
        order = memory_aware_order(problem)
        alone = simulate(problem, ordered_steps(order))
        # What recompute alone may keep to is less than what models with transfers have room for.
        smallest = smallest_budget(replace(problem, recompute=False), order).budget_bytes
        budget = smallest + int((alone.transient_peak_bytes - smallest) * rng.choice([0.0, 0.3, 0.6]))
        deadline = alone.compute_seconds * rng.choice([1.2, 1.5, 2.0])
        limits, instance = Limits(budget, deadline), build_instance(problem, order)
        model = formulate(instance, limits, relaxed_timing(instance, limits))
        if model.time and paged_start(model) is not None:
            yield problem, model


@pytest.mark.deep
def test_plans_in_time_are_found_and_come_close_to_the_optimum() -> None:
    missed = found = 0
    spent = least = 0.0
    for problem, model in _short_of_time(range(240)):
        start = paged_start(model)
        assert start is not None
        x = improve_in_time(model, start, time_limit_seconds=10.0)
        try:
            plan = schedule(problem, model.limits, gap=0.0, order=memory_aware_order(problem))
        except InfeasibleError:
            assert x is None, "a plan in time that does not exist"
            continue
        missed += x is None
        if x is not None:
            found += 1
            assert model.ceilings().holds(x)
            simulate(problem, steps_of_assignment(model, x), model.limits)  # within the budget and the deadline
            spent += model.joules(x)
            least += plan.prediction.energy_joules - problem.base_joules
    assert missed <= found / 20
    assert spent <= 1.1 * least


@pytest.mark.deep
def test_a_start_in_time_is_never_lost_nor_made_dearer() -> None:
    kept = 0
    for _, model in _short_of_time(range(150)):
        start = paged_start(model)
        if start is not None and model.ceilings().holds(start):
            kept += 1
            x = improve_in_time(model, start, time_limit_seconds=10.0)
            assert x is not None
            assert model.ceilings().holds(x)
            assert model.joules(x) <= model.joules(start) + 1e-12
    assert kept > 3


def test_a_real_network_on_slow_storage_has_a_good_start_within_a_tight_deadline(
    model_path: Callable[..., Path],
) -> None:
    problem = real_problem(model_path("mobilenet"), "m4")
    order = memory_aware_order(problem)
    alone = simulate(problem, ordered_steps(order))
    smallest = smallest_budget(problem, order).budget_bytes
    budget = (2 * smallest + alone.transient_peak_bytes) // 3
    limits, instance = Limits(budget, 1.3 * alone.compute_seconds), build_instance(problem, order)
    model = formulate(instance, limits, relaxed_timing(instance, limits))
    start = paged_start(model)
    assert start is not None
    assert not model.ceilings().holds(start)
    x = improve_in_time(model, start, time_limit_seconds=30.0)
    assert x is not None
    simulate(problem, steps_of_assignment(model, x), limits)  # within the budget and the deadline
