"""What a bound covers: no plan of the class that a certificate names spends less, whatever was asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from brute_force import least_energy
from deep import sampled
from random_graphs import random_dag
from small_graphs import small_graph

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.errors import InfeasibleError, LimitReachedError, PoetError
from poet_onnx.plan import ALL_PLANS, Action, Plan, PlanClass
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.quantities import budget_text
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.liveness import file_order
from poet_onnx.simulate import simulate

MEANS = ((True, True), (True, False), (False, True), (False, False))
"""Whether recompute and paging are allowed."""

PLACES = (0.0, 0.4, 0.8)
"""Budgets, between the smallest that works and the ordered peak."""


def order_of(plan: Plan) -> list[str]:
    return [step.subject for step in plan.steps if step.action is Action.COMPUTE and not step.copy]


def is_covered(plan: Plan, certified: Plan, covers: PlanClass) -> bool:
    """Return whether a plan keeps the limits of a certified one and is of a class, the solver's restrictions aside."""
    budget, deadline = certified.limits.budget_bytes, certified.limits.deadline_seconds
    return (
        plan.fingerprint == certified.fingerprint
        and (budget is None or plan.prediction.transient_peak_bytes <= budget)
        and (deadline is None or plan.prediction.seconds <= deadline * (1 + 1e-9))
        and covers.permits(plan.prediction)
        and (not covers.in_order or order_of(plan) == order_of(certified))
    )


def plans_in_one_order(seed: int) -> Iterator[Plan]:
    """Yield the plans of a random graph with and without every flag, for some budgets, deadlines and gaps."""
    graph, costs = random_dag(seed, 8 + seed % 15)
    free = ScheduleProblem(graph, costs)
    order = memory_aware_order(free)
    alone = simulate(free, ordered_steps(order))
    peak, smallest = alone.transient_peak_bytes, smallest_budget(free, order).budget_bytes
    for (recompute, paging), place, deadline in itertools.product(MEANS, PLACES, (None, 1.2)):
        problem = replace(free, recompute=recompute, paging=paging)
        seconds = None if deadline is None else deadline * alone.seconds
        limits = Limits(smallest + int(place * (peak - smallest)), seconds)
        for gap in (0.0, 0.3) if deadline is None else (0.01,):
            try:
                yield schedule(problem, limits, order=order, gap=gap, time_limit_seconds=2, explains=False)
            except (InfeasibleError, LimitReachedError):
                continue


@pytest.mark.parametrize("seed", sampled([2, 4, 6, 9, 11, 14, 15], 2, 9))
def test_no_plan_of_any_other_run_spends_less_than_a_bound_on_its_class(seed: int) -> None:
    plans = list(plans_in_one_order(seed))
    for certified, plan in itertools.product(plans, plans):
        certificate = certified.certificate
        assert certificate.covers.is_proper()
        assert certificate.covers.permits(certified.prediction)
        if is_covered(plan, certified, certificate.covers):
            energy = plan.prediction.energy_joules
            assert energy >= certificate.wide_bound_joules * (1 - 1e-9)
            if certificate.covers.hops is None:
                assert energy >= certificate.bound_joules * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(20, 40, 2))
def test_exhaustive_search_finds_no_plan_of_a_class_below_its_bound(seed: int) -> None:
    graph, costs = random_dag(seed, 4 + seed % 6, plain=True)
    costs = replace(costs, idle_watts=0.0)
    order = memory_aware_order(ScheduleProblem(graph, costs))
    for recompute, paging in MEANS:
        problem = ScheduleProblem(graph, costs, recompute=recompute, paging=paging)
        peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
        for budget in (int(0.7 * peak), int(0.85 * peak), peak - 1):
            limits = Limits(budget)
            try:
                certificate = schedule(problem, limits, order=order, gap=0.0, explains=False).certificate
            except InfeasibleError:
                continue
            # What else the class allows than this search, the bound has to hold for, too.
            allowed = replace(problem, recompute=certificate.covers.recompute, paging=certificate.covers.paging)
            least = least_energy(allowed, limits, order)
            assert least is not None
            assert certificate.wide_bound_joules <= least * (1 + 1e-6)


def _wide_in_the_middle(**allowed: bool) -> ScheduleProblem:
    """Return a step whose first value waits while a wide one is there: cheap to make again, dear to page."""
    graph = small_graph(
        [
            ("first*", "x", {"kept": 8000}),
            ("wide", "kept", {"large": 16_000}),
            ("narrow", "large", {"small": 1000}),
            ("last", "small kept", {"end": 1000}),
        ],
        ["end"],
    )
    nodes = {node.name: NodeCost(1.0, 1.0, 0) for node in graph.nodes}
    dear = {"kept": TransferCost(1.0, 5.0)}
    return ScheduleProblem(graph, CostTable("dear", nodes, dear, dear, asynchronous=False), **allowed)


ROOM = Limits(24_500)


def test_a_bound_without_recompute_is_not_one_of_plans_that_recompute() -> None:
    paged, free = (_wide_in_the_middle(recompute=recompute) for recompute in (False, True))
    order = file_order(paged.graph)
    dear, cheap = (schedule(problem, ROOM, order=order, gap=0.0) for problem in (paged, free))
    assert cheap.prediction.energy_joules < dear.certificate.bound_joules == dear.prediction.energy_joules
    assert dear.certificate.covers == PlanClass(recompute=False)
    assert "page and do not recompute" in str(dear.certificate.covers)
    assert cheap.certificate.covers.recompute
    assert schedule(free).certificate.covers == ALL_PLANS


def test_a_device_without_storage_has_bounds_on_plans_that_do_not_page() -> None:
    problem = _wide_in_the_middle()
    alone = replace(problem, costs=replace(problem.costs, page_out={}, page_in={}))
    assert not schedule(alone, ROOM, order=file_order(alone.graph)).certificate.covers.paging


@pytest.mark.parametrize(
    ("recompute", "paging", "storage", "advice"),
    [
        (True, True, True, ""),
        (True, True, False, ""),
        (True, False, False, ""),
        (False, True, True, ", or allow recompute, which may help"),
        (True, False, True, ", or allow paging, which may help"),
        (False, False, True, ", or allow recompute or paging, which may help"),
        (False, False, False, ", or allow recompute, which may help"),
    ],
)
def test_a_refusal_advises_to_allow_what_was_forbidden_alone(
    *, recompute: bool, paging: bool, storage: bool, advice: str
) -> None:
    problem = _wide_in_the_middle(recompute=recompute, paging=paging)
    if not storage:
        problem = replace(problem, costs=replace(problem.costs, page_out={}, page_in={}))
    with pytest.raises(InfeasibleError) as refused:
        schedule(problem, Limits(24_000 if not (recompute or paging) else 17_000))
    # One node needs 24,000 bytes by itself: below that nothing that could be allowed would help.
    works = refused.value.smallest_budget_bytes
    assert works is not None
    assert str(refused.value).endswith(f"give at least {budget_text(works)}{advice if works == 25_000 else ''}.")


def test_a_deadline_is_advised_about_where_there_is_one() -> None:
    problem = _wide_in_the_middle()
    order = file_order(problem.graph)
    nodes = {name: replace(cost, seconds=1.0) for name, cost in problem.costs.nodes.items()}
    problem = replace(problem, costs=replace(problem.costs, nodes=nodes), recompute=False)
    with pytest.raises(PoetError, match="or allow recompute or more time, which may help"):
        schedule(problem, replace(ROOM, deadline_seconds=4.0), order=order)
    assert schedule(problem, replace(ROOM, deadline_seconds=6.1), order=order).prediction.page_in_bytes == 8000


@pytest.mark.parametrize("seed", [3, 6, 10])  # the solver is needed for these
def test_a_step_without_any_joules_of_its_own_is_planned(seed: int) -> None:
    graph, costs = random_dag(seed, 8 + seed % 13)
    nodes = {name: replace(cost, joules=0.0) for name, cost in costs.nodes.items()}
    for idle_watts in (0.0, 1.0):
        problem = ScheduleProblem(graph, replace(costs, nodes=nodes, idle_watts=idle_watts))
        order = memory_aware_order(problem)
        alone = simulate(problem, ordered_steps(order))
        for deadline in (None, 1.5 * alone.seconds):
            budget = smallest_budget(problem, order, limits=Limits(deadline_seconds=deadline)).budget_bytes
            plan = schedule(problem, Limits(budget, deadline), order=order, gap=0.0, time_limit_seconds=5)
            assert alone.energy_joules <= plan.certificate.bound_joules <= plan.prediction.energy_joules


@pytest.mark.parametrize("seed", [1, 7, 20])
def test_permission_to_page_takes_no_room_where_paging_costs_more_than_it_saves(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poet_onnx.scheduling.choices.TINY_FRACTION", 0.0)
    graph, costs = random_dag(seed, 20)
    dear = {name: replace(cost, joules=1000 * cost.joules) for name, cost in costs.page_in.items()}
    both = ScheduleProblem(graph, replace(costs, page_in=dear))
    alone = replace(both, paging=False)
    order = memory_aware_order(both)
    smallest = smallest_budget(alone, order).budget_bytes
    peak = simulate(both, ordered_steps(order)).transient_peak_bytes
    plan = schedule(alone, Limits(smallest + (peak - smallest) // 3), order=order, gap=0.0)
    exact = Limits(plan.prediction.transient_peak_bytes)  # tokens of 16 bytes would take a few per cent of it
    energies = [schedule(each, exact, order=order, gap=0.0).prediction.energy_joules for each in (alone, both)]
    assert energies[1] <= energies[0] * (1 + 1e-9)
