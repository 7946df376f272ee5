"""The smallest budget and the sweeps: what they reach, and how little they look at for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from random_graphs import enlarged, random_dag
from real_problems import real_problem

from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, smallest, smallest_budget, solver
from poet_onnx.scheduling.liveness import Liveness
from poet_onnx.scheduling.steps import ordered_steps
from poet_onnx.scheduling.sweeps import fewest_restores, lowest
from poet_onnx.simulate import simulate


def large(seed: int, *, paging: bool, nodes: int = 150) -> ScheduleProblem:
    graph, costs = enlarged(*random_dag(seed, nodes))
    return ScheduleProblem(graph, costs, paging=paging)


@pytest.mark.parametrize("model", ["transformer", "mobilenet"])
def test_with_paging_the_budget_is_what_a_node_needs_after_a_handful_of_replays(
    model: str, model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = []

    def counted(problem: ScheduleProblem, steps: object) -> object:
        replays.append(steps)
        return simulate(problem, steps)  # type: ignore[arg-type]

    def fail(*_: object, **__: object) -> None:
        pytest.fail("a model is built, or an order searched, for what paging alone reaches")

    monkeypatch.setattr(smallest, "simulate", counted)
    for name in ("formulate", "quick_plan", "OrderSearch"):
        monkeypatch.setattr(smallest, name, fail)
    problem = real_problem(model_path(model), "a72")
    found = smallest_budget(problem)
    assert found.node_bytes == found.bound_bytes <= found.budget_bytes <= (1 + smallest.PRECISION) * found.node_bytes
    assert str(found.covers).startswith("all plans")
    assert len(replays) <= 3


@pytest.mark.deep
def test_the_solver_stops_between_cuts_too(model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The cuts of one node of ResNet-50 took 24 minutes."""
    iterations = []

    def counted(scip: Any) -> bool:
        is_interrupted = optimize(scip)
        iterations.append(scip.getNLPIterations())
        return is_interrupted

    optimize = solver.optimize
    monkeypatch.setattr(solver, "optimize", counted)
    problem = replace(real_problem(model_path("gpt"), "a72"), paging=False)
    smallest_budget(problem)
    assert 0 < max(iterations) <= 2 * solver.MOST_BUDGET_ITERATIONS


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("paging", [False, True])
def test_sweeps_go_down_with_few_restores(seed: int, paging: bool) -> None:
    problem = large(seed, paging=paging)
    order = memory_aware_order(problem)
    profile = Liveness(problem).in_order(order)
    low_bytes, peak_bytes = smallest.least_peak_bytes(problem), profile.peak_bytes
    least = simulate(problem, lowest(profile, low_bytes))
    assert low_bytes <= least.transient_peak_bytes <= peak_bytes
    budgets = [int(low_bytes + share * (peak_bytes - low_bytes)) for share in (0.9, 0.6, 0.3)]
    peaks = [simulate(problem, steps).transient_peak_bytes for steps in fewest_restores(profile, budgets)]
    for budget in budgets:  # tokens and scratch come on top
        assert not paging or any(peak <= 1.01 * budget for peak in peaks)
    assert max(peaks, default=0) <= 1.01 * max(budgets)
    assert lowest(profile, peak_bytes) == ordered_steps(order)


def test_what_is_found_without_paging_may_be_handed_on() -> None:
    problem = large(1, paging=True, nodes=20)
    order = memory_aware_order(problem)
    unpaged = smallest_budget(ScheduleProblem(problem.graph, problem.costs, paging=False), order, varied=True)
    assert smallest_budget(problem, order, varied=True, unpaged=unpaged) == smallest_budget(problem, order, varied=True)


def test_the_search_ends_where_budgets_are_a_byte_apart() -> None:
    for seed in range(40):
        problem = ScheduleProblem(*random_dag(seed, 4 + seed % 8))
        order = memory_aware_order(problem)
        profile = Liveness(problem).in_order(order)
        low_bytes = smallest.least_peak_bytes(problem)
        assert low_bytes <= simulate(problem, lowest(profile, low_bytes)).transient_peak_bytes
