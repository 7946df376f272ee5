"""Deadlines: the order for a budget keeps them, and what is said of budgets that are too small for them holds."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proofs.finding import exact_bytes
from proofs.slow_storage import slow_problem
from proofs.timed import least_timed
from random_graphs import random_dag
from real_problems import real_problem

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.choices import Candidates, find_candidates
from poet_onnx.simulate import simulate


def _limited(seed: int) -> tuple[ScheduleProblem, Limits, tuple[str, ...]]:
    """Return a random problem, a budget and a deadline, and the baseline order."""
    rng = random.Random(seed)
    graph, costs = random_dag(seed, rng.randint(6, 20))
    problem = ScheduleProblem(graph, replace(costs, asynchronous=rng.random() < 0.7))
    order = memory_aware_order(problem)
    alone = simulate(problem, ordered_steps(order))
    smallest = smallest_budget(problem, order).budget_bytes
    budget = smallest + int((alone.transient_peak_bytes - smallest) * rng.choice([0.0, 0.3, 0.6]))
    seconds = alone.compute_seconds * rng.choice([1.0, 1.05, 1.2, 1.5])
    return problem, Limits(budget, seconds), order


def _planned(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...] | None) -> Plan | None:
    try:
        return schedule(problem, limits, gap=0.0, order=order, time_limit_seconds=3)
    except (InfeasibleError, LimitReachedError):
        return None


@pytest.mark.deep
def test_a_free_order_never_loses_against_the_rule_within_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poet_onnx.scheduling.order_search.MOST_WORK", 200_000)
    better = plans = 0
    for seed in range(20, 45):
        problem, limits, order = _limited(seed)
        in_baseline, free = _planned(problem, limits, order), _planned(problem, limits, None)
        if free is not None:
            simulate(problem, free.steps, limits)
        if in_baseline is None:
            better += free is not None
            continue
        plans += 1
        assert free is not None
        spent, allowed = free.certificate.objective_joules, in_baseline.certificate.objective_joules
        assert spent <= allowed * (1 + 1e-7)
        better += spent < allowed * (1 - 1e-7)
    assert plans > 10
    assert better > 1


def _synchronous(seed: int) -> tuple[ScheduleProblem, Limits, tuple[str, ...]]:
    """Return a limited problem whose transfers keep the processor from computing."""
    problem, limits, order = _limited(seed)
    return replace(problem, costs=replace(problem.costs, asynchronous=False)), limits, order


@pytest.mark.deep
def test_where_transfers_are_synchronous_what_is_dearer_and_slower_than_paging_is_left_out_without_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[list[int]] = [[], []]
    plans = 0
    for seed in range(60, 110):
        problem, limits, order = _synchronous(seed)
        both = []
        for number, prunes in enumerate((True, False)):

            def collect(*given: Any, number: int = number, prunes: bool = prunes, **named: Any) -> Candidates:
                with monkeypatch.context() as patch:
                    if not prunes:
                        patch.setattr("poet_onnx.scheduling.choices._dearer_than_paging", lambda *_: set())
                    found = find_candidates(*given, **named)
                counts[number].append(sum(map(len, found.slots)))
                return found

            monkeypatch.setattr("poet_onnx.scheduling.model.find_candidates", collect)
            both.append(_planned(problem, limits, order))
        thrifty, full = both
        assert (thrifty is None) == (full is None), seed
        if thrifty is not None and full is not None:
            plans += 1
            spent, allowed = thrifty.certificate.objective_joules, full.certificate.objective_joules
            assert spent == pytest.approx(allowed, rel=1e-7), seed
    assert plans > 20
    assert sum(counts[0]) < sum(counts[1])


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_within_a_deadline_stays_below_the_bound_on_its_budget(seed: int) -> None:
    with exact_bytes():
        problem, order = slow_problem(seed)
        seconds = 1.1 * sum(cost.seconds for cost in problem.costs.nodes.values())
        timed = Limits(deadline_seconds=seconds)
        found = smallest_budget(problem, order, limits=timed)
        assert found.bound_bytes <= found.budget_bytes
        below = timed.within(found.bound_bytes - 1)
        steps, all_seen = least_timed(problem, below, order, float("inf"), 200_000, first=True)
        assert all_seen
        assert steps is None


def test_a_refusal_names_a_budget_that_works() -> None:
    problem, order = slow_problem(55)
    seconds = 1.1 * sum(cost.seconds for cost in problem.costs.nodes.values())
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    refused = 0
    for budget in range(peak // 4, peak, peak // 8):
        try:
            schedule(problem, Limits(budget, seconds), order=order, time_limit_seconds=3)
        except (InfeasibleError, LimitReachedError) as error:
            works = int(re.findall(r"(?:a budget of|at least) ([\d,]+) bytes", str(error))[-1].replace(",", ""))
            assert budget < works
            simulate(problem, schedule(problem, Limits(works, seconds), order=order).steps, Limits(works, seconds))
            refused += 1
    assert refused > 0


def _without_seconds(plan: Plan) -> tuple[object, ...]:
    return plan.steps, replace(plan.certificate, solve_seconds=0.0)


@pytest.mark.deep
@pytest.mark.parametrize(("share", "times"), [(0.0, 1.1), (0.4, 1.0)])
def test_neither_a_busy_machine_nor_a_longer_time_limit_changes_a_plan(
    share: float, times: float, model_path: Callable[..., Path]
) -> None:
    problem = real_problem(model_path("resnet18"), "tx2")
    alone = simulate(problem, ordered_steps(memory_aware_order(problem)))
    smallest = smallest_budget(problem, limits=Limits(None, 1.1 * alone.compute_seconds)).budget_bytes
    budget = smallest + int(share * (alone.transient_peak_bytes - smallest))
    limits = Limits(budget, times * alone.compute_seconds)
    first = schedule(problem, limits)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        second = schedule(problem, limits, time_limit_seconds=600.0)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert first.certificate.status == "optimal"
    assert _without_seconds(first) == _without_seconds(second)
