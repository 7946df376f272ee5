"""The scheduler against exhaustive search, against itself and against the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from brute_force import least_energy
from deep import sampled
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import random_graph
from real_problems import real_problem

from poet_onnx.costing.costs import TransferCost
from poet_onnx.errors import InfeasibleError
from poet_onnx.plan import Action, Plan, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.liveness import build_instance, file_order
from poet_onnx.simulate import simulate
from poet_onnx.transfers import overlap

METHODS = [(True, True), (True, False), (False, True)]


def _problem(seed: int, layers: int, recompute: bool = True, paging: bool = True) -> ScheduleProblem:
    graph, costs = random_graph(seed, layers)
    return ScheduleProblem(graph, costs, recompute=recompute, paging=paging)


def _peak(problem: ScheduleProblem) -> int:
    steps = ordered_steps(memory_aware_order(problem))
    return simulate(problem, steps).transient_peak_bytes


def _at(problem: ScheduleProblem, fraction: float) -> Limits:
    """Return a budget between the smallest that works and the ordered peak."""
    smallest = smallest_budget(problem).budget_bytes
    return Limits(int(smallest + (_peak(problem) - smallest) * fraction))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("recompute", "paging"), METHODS)
@pytest.mark.parametrize("seed", sampled(range(12), 2, 7))
def test_energy_equals_exhaustive_search(seed: int, recompute: bool, paging: bool) -> None:
    for fraction in (0.0, 0.3, 0.7):
        problem = _problem(seed, 2 + seed % 3, recompute, paging)
        limits, order = _at(problem, fraction), memory_aware_order(problem)
        plan = schedule(problem, limits, gap=0.0, order=order)
        best = least_energy(problem, limits, order)
        assert plan.prediction.energy_joules == pytest.approx(best, rel=1e-9)
        assert plan.certificate.bound_joules == pytest.approx(best, rel=1e-6)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("recompute", "paging"), METHODS)
@pytest.mark.parametrize("seed", sampled(range(12), 2, 7))
def test_no_plan_exists_below_the_smallest_budget(seed: int, recompute: bool, paging: bool) -> None:
    problem = _problem(seed, 2 + seed % 3, recompute, paging)
    smallest = smallest_budget(problem)
    below, order = Limits(smallest.budget_bytes - 1), memory_aware_order(problem)
    assert least_energy(problem, below, order) is None
    assert smallest.bound_bytes == smallest.budget_bytes
    with pytest.raises(InfeasibleError, match=f"{smallest.budget_bytes:,} bytes") as caught:
        schedule(problem, below, order=order)
    assert caught.value.smallest_budget_bytes == smallest.budget_bytes


@given(
    seed=st.integers(0, 10**6),
    layers=st.integers(1, 25),
    method=st.sampled_from(METHODS),
    fraction=st.floats(0.0, 1.0),
    slack=st.one_of(st.none(), st.floats(1.0, 2.0)),
)
def test_every_plan_keeps_its_promises(
    seed: int, layers: int, method: tuple[bool, bool], fraction: float, slack: float | None
) -> None:
    """Within a deadline too there is a plan: one made without any, which the simulator replays in time."""
    problem = _problem(seed, layers, *method)
    limits = _at(problem, fraction)
    plan = schedule(problem, limits)
    _assert_sound(problem, limits, plan)
    if slack is not None:
        limits = replace(limits, deadline_seconds=slack * simulate(problem, plan.steps).seconds)
        _assert_sound(problem, limits, schedule(problem, limits))


def _assert_sound(problem: ScheduleProblem, limits: Limits, plan: Plan) -> None:
    assert simulate(problem, plan.steps, limits) == plan.prediction
    assert plan.limits == limits
    assert limits.budget_bytes is not None
    assert plan.prediction.transient_peak_bytes <= limits.budget_bytes
    certificate = plan.certificate
    assert certificate.objective_joules == plan.prediction.energy_joules
    assert certificate.bound_joules <= certificate.objective_joules
    if limits.deadline_seconds is not None:
        assert plan.prediction.seconds <= limits.deadline_seconds * (1 + 1e-9)
    elif certificate.status == "optimal":
        assert certificate.gap <= 0.01


@pytest.mark.parametrize("seed", sampled(range(6), 0, 5))
def test_a_smaller_budget_never_costs_less(seed: int) -> None:
    problem = _problem(seed, 14)
    order = memory_aware_order(problem)
    energies = [
        schedule(problem, _at(problem, fraction), gap=0.0, order=order).prediction.energy_joules
        for fraction in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert energies == sorted(energies, reverse=True)


def test_asynchronous_plans_hide_transfers_and_stay_within_budget() -> None:
    hidden = 0
    for seed in range(20):
        problem = _problem(seed, 12)
        if not problem.costs.asynchronous:
            continue
        plan = schedule(problem, _at(problem, 0.5))
        starts = [index for index, step in enumerate(plan.steps) if step.action is Action.PAGE_IN_START]
        apart = [index for index in starts if plan.steps[index + 1].action is not Action.PAGE_IN_END]
        hidden += len(apart)
        moved = sum(
            problem.costs.page_out[step.subject].seconds
            if step.action is Action.PAGE_OUT_START
            else problem.costs.page_in[step.subject].seconds
            for step in plan.steps
            if step.action in (Action.PAGE_OUT_START, Action.PAGE_IN_START)
        )
        assert plan.prediction.stall_seconds <= moved + 1e-9
    assert hidden > 0


def test_deadline_below_compute_is_infeasible_and_says_what_would_do() -> None:
    problem = _problem(3, 8)
    seconds = sum(cost.seconds for cost in problem.costs.nodes.values())
    with pytest.raises(InfeasibleError, match=f"{seconds:.6g} s"):
        schedule(problem, Limits(deadline_seconds=seconds * 0.9))


def test_nothing_to_do_is_said_so() -> None:
    problem = _problem(4, 8)
    plan = schedule(problem, Limits(_peak(problem)))
    assert plan.certificate.status == "not_needed"
    assert plan.certificate.gap == 0.0
    assert plan.prediction.recomputed_nodes == plan.prediction.page_out_bytes == 0


def test_same_problem_same_plan() -> None:
    problem = _problem(5, 18)
    first, second = (schedule(problem, _at(problem, 0.2)) for _ in range(2))
    assert first.steps == second.steps


@given(seed=st.integers(0, 10**6), layers=st.integers(1, 30))
def test_order_is_never_worse_than_the_file(seed: int, layers: int) -> None:
    problem = _problem(seed, layers)
    order = memory_aware_order(problem)
    ordered = simulate(problem, ordered_steps(order)).transient_peak_bytes
    assert ordered <= simulate(problem, ordered_steps(file_order(problem.graph))).transient_peak_bytes
    assert ordered == max(build_instance(problem, order).step_bytes())


def test_a_page_out_ends_before_its_value_is_made_anew() -> None:
    problem = _problem(1, 10)
    slow = {value: TransferCost(1000.0, cost.joules) for value, cost in problem.costs.page_out.items()}
    problem = replace(problem, costs=replace(problem.costs, page_out=slow, asynchronous=True))
    steps = list(ordered_steps(file_order(problem.graph)))
    page = [Step(Action.PAGE_OUT_START, "v0"), Step(Action.PAGE_OUT_END, "v0")]
    fetch = [Step(Action.PAGE_IN_START, "v0"), Step(Action.PAGE_IN_END, "v0")]
    again = Step(Action.COMPUTE, "f0", 1)
    spread = overlap(problem, Limits(), [steps[0], *page, *steps[1:4], again, *fetch, *steps[4:]])
    assert simulate(problem, spread).recomputed_nodes == 1
    assert spread.index(page[1]) < spread.index(again)


@pytest.mark.deep
def test_on_a_real_model_no_time_limit_costs_no_more_than_one(model_path: Callable[..., Path]) -> None:
    """A solver that was stopped at a gap and resumed proved a false optimum here."""
    problem = real_problem(model_path("resnet18"), "m4")
    order = memory_aware_order(problem)
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    limits = Limits(smallest + int((0.95 * peak - smallest) / 9))
    free = schedule(problem, limits, order=order)
    seconds = 1.1 * sum(cost.seconds for cost in problem.costs.nodes.values())
    timed = schedule(problem, replace(limits, deadline_seconds=seconds), order=order)
    assert free.certificate.bound_joules <= timed.certificate.objective_joules * (1 + 1e-9)
    assert free.certificate.objective_joules <= timed.certificate.objective_joules * (1 + 1e-6)
