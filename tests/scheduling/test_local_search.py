"""The local search: it never breaks a schedule, never makes it dearer, and comes close to the solver's optimum."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from deep import sampled
from proofs.finding import exact_bytes
from random_graphs import random_graph
from tight_models import tight_model

from poet_onnx.errors import LimitReachedError
from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, schedule
from poet_onnx.scheduling.attempt import paged_start, start_from
from poet_onnx.scheduling.liveness import Liveness
from poet_onnx.scheduling.local_search import improve
from poet_onnx.scheduling.quick_plan import quick_plan
from poet_onnx.scheduling.steps import steps_of_assignment
from poet_onnx.simulate import simulate


@pytest.mark.parametrize("options", [{}, {"paging": False}, {"recompute": False}], ids=str)
@pytest.mark.parametrize("seed", sampled(range(25), *range(8)))
def test_every_improvement_is_a_valid_cheaper_schedule(seed: int, options: dict[str, bool]) -> None:
    problem, _, model = tight_model(seed, 4 + seed % 20, (seed % 4) / 4, **options)
    start = paged_start(model)
    if start is None:
        return
    improved = improve(model, start, time_limit_seconds=2.0)
    assert model.joules(improved) <= model.joules(start) + 1e-12
    assert improved == model.complete(model.restores(improved))
    assert model.ceilings().excess_bytes(improved) <= 0
    for row in model.rows:
        total = sum(coefficient * improved[variable] for variable, coefficient in row.terms.items())
        assert row.low is None or total >= row.low - 1e-9
        assert row.high is None or total <= row.high + 1e-9
    prediction = simulate(problem, steps_of_assignment(model, improved))
    base = sum(cost.joules for cost in problem.costs.nodes.values())
    assert prediction.energy_joules == pytest.approx(base + model.joules(improved), rel=1e-9)


def _quick_steps(problem: ScheduleProblem, limits: Limits) -> tuple[Step, ...]:
    liveness = Liveness(problem)
    profile = liveness.in_order(memory_aware_order(problem))
    quick = quick_plan(profile, limits)
    return quick.steps if quick is not None else ()


@pytest.mark.deep
def test_the_search_alone_comes_close_to_the_optimum() -> None:
    spent = best = 0.0
    with exact_bytes():  # tokens are as large as these values
        for seed in range(12):
            problem, limits, model = tight_model(seed, 12, 0.3)
            start = start_from(model, _quick_steps(problem, limits))
            assert start is not None
            spent += model.joules(improve(model, start, time_limit_seconds=2.0))
            plan = schedule(problem, limits, gap=0.0, order=memory_aware_order(problem))
            best += plan.prediction.energy_joules - sum(cost.joules for cost in problem.costs.nodes.values())
    assert spent <= 1.1 * best


def test_a_deadline_that_no_plan_was_found_for_is_no_proof() -> None:
    graph, costs = random_graph(5, 12)
    problem = ScheduleProblem(graph, replace(costs, asynchronous=True), recompute=False)
    seconds = sum(cost.seconds for cost in costs.nodes.values())
    limits = Limits(1962, seconds * 1.2)  # at the smallest, 1906 bytes, the relaxation proves that there is none
    with pytest.raises(LimitReachedError, match=r"the fastest found takes .* at least ([\d,]+) bytes") as found:
        schedule(problem, limits)
    budget = int(re.findall(r"a budget of at least ([\d,]+) bytes", str(found.value))[-1].replace(",", ""))
    assert schedule(problem, limits.within(budget)).prediction.seconds <= seconds * 1.2
