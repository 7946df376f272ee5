"""Checkmate (Jain et al. 2020) and the paper's program: optima of small graphs, against search among all plans."""

from __future__ import annotations

import dataclasses
import time

import pytest
from brute_force import least_energy
from random_graphs import random_dag
from unit_chains import UNIT_BYTES, unit_chain

from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, plan_with
from poet_onnx.scheduling.baselines.checkmate import in_seconds
from poet_onnx.scheduling.baselines.linear import LinearModel, solve
from poet_onnx.scheduling.baselines.paper_form import estimate_size, paper_form
from poet_onnx.scheduling.liveness import build_instance
from poet_onnx.simulate import simulate


def least(problem: ScheduleProblem, limits: Limits) -> float | None:
    """Return the least energy of any plan in the memory-aware order."""
    return least_energy(problem, limits, memory_aware_order(problem))


@pytest.mark.parametrize("layers", [3, 4, 5])
def test_checkmate_takes_the_least_time_of_all_plans_of_a_chain(layers: int) -> None:
    problem = unit_chain(layers)
    for units in range(3, layers + 2):
        limits = Limits(UNIT_BYTES * units)
        outcome = plan_with("checkmate", problem, limits, gap=0.0)
        best = least(in_seconds(problem), limits)
        assert (outcome.plan is None) == (best is None)
        if outcome.plan is None:
            assert outcome.is_proven
        else:
            assert outcome.plan.prediction.seconds == pytest.approx(best)
            assert outcome.plan.prediction.page_out_bytes == 0
            assert f"{best:.6g} s" in outcome.proves or outcome.plan.certificate.status == "not_needed"


def plain_problem(seed: int) -> tuple[ScheduleProblem, Limits]:
    """Return a random graph of which exhaustive search counts the same bytes, and a tight budget."""
    graph, costs = random_dag(seed, 9, plain=True)
    tensors = {name: dataclasses.replace(t, size_bytes=1000 * t.size_bytes) for name, t in graph.tensors.items()}
    problem = ScheduleProblem(dataclasses.replace(graph, tensors=tensors), dataclasses.replace(costs, idle_watts=0.0))
    workless = {name: dataclasses.replace(cost, workspace_bytes=0) for name, cost in costs.nodes.items()}
    problem = dataclasses.replace(problem, costs=dataclasses.replace(problem.costs, nodes=workless))
    peak = simulate(problem, ordered_steps(memory_aware_order(problem))).transient_peak_bytes
    return problem, Limits(int(0.8 * peak))


@pytest.mark.parametrize("seed", range(12))
def test_on_random_graphs_nothing_is_below_the_least_of_all_plans_and_most_is_at_it(seed: int) -> None:
    problem, limits = plain_problem(seed)
    for method, free in (("checkmate", in_seconds(problem)), ("poet-paper", problem)):
        best = least(free, limits)
        outcome = plan_with(method, problem, limits, gap=0.0, time_limit_seconds=20.0)
        if best is None:
            assert outcome.plan is None
        elif outcome.plan is not None:
            found = outcome.plan.prediction
            assert (found.seconds if method == "checkmate" else found.energy_joules) >= best * (1 - 1e-6)
        if outcome.plan is not None and outcome.bound_joules is not None:
            assert outcome.bound_joules <= outcome.plan.prediction.energy_joules * (1 + 1e-6)


def test_the_papers_program_is_optimal_where_paging_and_recompute_mix() -> None:
    problem = unit_chain(4, transfer_seconds=0.4)
    for units in (4, 5):
        limits = Limits(UNIT_BYTES * units + 200)  # tokens are 8 bytes each
        outcome = plan_with("poet-paper", problem, limits, gap=0.0)
        best = least(problem, limits)
        assert outcome.plan is not None
        assert best is not None
        # A value is written a stage after it was made, and a fetched one is there for a whole stage: that may cost.
        assert best * (1 - 1e-6) <= outcome.plan.prediction.energy_joules <= best + 2.0
        assert outcome.bound_joules == pytest.approx(outcome.plan.prediction.energy_joules)


def test_the_papers_deadline_counts_no_transfers() -> None:
    problem = unit_chain(8, transfer_seconds=3.0)
    problem = dataclasses.replace(problem, recompute=False)
    limits = Limits(UNIT_BYTES * 6 + 200, deadline_seconds=17.0)
    outcome = plan_with("poet-paper", problem, limits)
    assert outcome.plan is None
    assert "transfers" in outcome.reason
    assert outcome.closest is not None
    assert outcome.closest.compute_seconds <= 17.0 < outcome.closest.seconds


def test_size_is_known_before_the_program_is_built() -> None:
    graph, costs = random_dag(3, 24)
    instance = build_instance(ScheduleProblem(graph, costs), memory_aware_order(ScheduleProblem(graph, costs)))
    built = len(paper_form(instance, Limits(3000)).model.cost)
    assert 0.8 * built <= estimate_size(instance) <= 1.5 * built


def test_programs_reach_the_solver_as_they_are() -> None:
    model = LinearModel()
    items = [model.choice(-value) for value in (6.0, 5.0, 4.0)]
    rest = model.level(0.5)
    model.at_most(dict(zip(items, (5.0, 4.0, 3.0), strict=True)), 7.5)
    model.equal({items[0]: 1.0, rest: -2.0}, 0.0)
    solution = solve(model, gap=0.0, end=time.monotonic() + 60.0, seed=0)
    assert solution.values == pytest.approx((0.0, 1.0, 1.0, 0.0))
    assert solution.bound == pytest.approx(-9.0)
    model.at_most({rest: -1.0}, -0.6)
    assert solve(model, gap=0.0, end=time.monotonic() + 60.0, seed=0).is_infeasible
