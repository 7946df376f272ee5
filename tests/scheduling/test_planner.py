"""The front door: what a plan's status says, and what an interrupt leaves."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from deep import sampled
from random_graphs import random_dag
from real_problems import real_problem

from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import Progress, SimulatedPlan, memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.simulate import simulate


def _between(problem: ScheduleProblem, place: float) -> Limits:
    """Return a budget between the smallest that works and the peak."""
    order = memory_aware_order(problem)
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    return Limits(smallest + int(place * (peak - smallest)))


@pytest.mark.deep
def test_solved_to_the_end_the_gap_of_an_optimal_plan_is_rounding_alone_and_no_other_blames_the_time() -> None:
    """What the solver proves and what the simulator counts differ in the last digits; with no gap that was too much.

    Only what a plan spends while it waits for transfers may leave a gap: the model does not know of it.
    """
    statuses = []
    for seed in range(40):
        graph, costs = random_dag(seed, 8 + seed % 17)
        problem = ScheduleProblem(graph, costs)
        plan = schedule(problem, _between(problem, 0.3), gap=0.0, time_limit_seconds=30)
        certificate, waiting_joules = plan.certificate, costs.idle_watts * plan.prediction.stall_seconds
        assert (certificate.status == "feasible") == (certificate.gap > 1e-9), seed
        assert certificate.objective_joules - certificate.bound_joules <= waiting_joules + 1e-9, seed
        statuses.append(certificate.status)
    assert set(statuses) <= {"optimal", "not_needed", "feasible"}
    assert statuses.count("optimal") >= 30
    assert statuses.count("feasible") <= 3


def test_the_model_knows_that_an_output_takes_over_what_is_away_until_a_later_reader() -> None:
    """A node writes into what it read where that was paged out before: without this its model has no plan here."""
    graph, costs = random_dag(17, 8)
    problem = ScheduleProblem(graph, costs)
    certificate = schedule(problem, _between(problem, 0.3), gap=0.0).certificate
    assert certificate.status == "optimal"
    assert certificate.bound_joules == pytest.approx(certificate.objective_joules)


def _interrupt_the_process() -> None:
    signal.raise_signal(signal.SIGINT)


def _interrupt_python() -> None:
    """As Python's own handler does, when a signal that it has taken is served while the solver calls back."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupt", sampled([_interrupt_the_process, _interrupt_python], _interrupt_the_process))
@pytest.mark.parametrize("after", sampled([1, 3], 3))  # before the solver starts, and while it runs
def test_interrupted_it_returns_the_best_plan_told_of_with_a_bound(
    model_path: Callable[..., Path], after: int, interrupt: Callable[[], None]
) -> None:
    problem = real_problem(model_path("resnet18"), "tx2")
    limits = _between(problem, 0.05)
    told: list[Progress] = []

    def listen(progress: Progress) -> None:
        if math.isfinite(progress.objective_joules):
            told.append(progress)
        if len(told) == after:
            interrupt()

    plan = schedule(problem, limits, gap=0.0, time_limit_seconds=60, progress=listen)
    certificate = plan.certificate
    assert certificate.status == "interrupted"
    assert certificate.solve_seconds < 30
    assert certificate.objective_joules <= min(one.objective_joules for one in told[:after]) * (1 + 1e-9)
    assert 0 < certificate.bound_joules <= certificate.objective_joules
    assert plan.prediction.transient_peak_bytes <= (limits.budget_bytes or 0)


def test_the_memory_aware_order_is_not_made_again_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(problem: ScheduleProblem) -> tuple[str, ...]:
        pytest.fail(f"an order was made for {problem.graph.name}")

    graph, costs = random_dag(5, 20)
    problem = ScheduleProblem(graph, costs)
    limits = _between(problem, 0.3)
    baseline, alone = SimulatedPlan.in_order(problem, memory_aware_order(problem)), schedule(problem, limits)
    for module in ("planner", "order_search"):
        monkeypatch.setattr(f"poet_onnx.scheduling.{module}.memory_aware_order", fail)
    assert schedule(problem, limits, baseline=baseline).steps == alone.steps
    assert schedule(problem, Limits(), baseline=baseline).steps == baseline.steps
