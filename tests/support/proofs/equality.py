"""Energy and bound equal the least energy of the class, found by exhaustive search; the class against all plans."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from benchmark.exhaustive import least_overhead
from brute_force import least_overhead_of_class
from random_graphs import random_dag

from poet_onnx.plan import Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.liveness import build_instance
from poet_onnx.scheduling.model import formulate
from poet_onnx.simulate import simulate
from proofs.assignments import admits, restores_of
from proofs.finding import FAILED, Finding, exact_bytes
from proofs.validity import METHODS

PLACES = (0.0, 0.3, 0.7)
"""Budgets, between the smallest that works in the class and the ordered peak."""

SAME = 1e-6
"""Share of the energy that the solver's tolerances are worth."""


def check_equality(seed: int, *, most_nodes: int = 14, most_states: int = 20_000) -> list[Finding]:
    """Compare the scheduler with exhaustive search on one graph, with every method and several budgets.

    Every second graph has nothing that the search over all plans does not know; there it is asked as well.
    """
    plain = seed % 2 == 0
    graph, costs = random_dag(seed, 4 + seed * 3 % (most_nodes - 3), plain=plain)
    if costs.asynchronous:
        # What a step that waits spends at idle power is no part of the class's energy: transfers may all be hidden.
        costs = replace(costs, idle_watts=0.0)
    found = []
    with exact_bytes():
        for method, (recompute, paging) in METHODS.items():
            problem = ScheduleProblem(graph, costs, recompute=recompute, paging=paging)
            order = memory_aware_order(problem)
            for limits in _budgets(problem, order):
                case = f"seed {seed}, {len(order)} nodes, {method}, budget {limits.budget_bytes}"
                found += _compare(problem, limits, order, method, case)
                if plain:
                    found += _compare_all(problem, limits, order, (f"{method}, all plans", case), most_states)
    return found


def _budgets(problem: ScheduleProblem, order: tuple[str, ...]) -> Iterator[Limits]:
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    for budget in sorted({smallest + int((peak - smallest) * place) for place in PLACES}):
        if budget < peak:
            yield Limits(budget)


def _planned(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...]) -> Plan:
    return schedule(problem, limits, gap=0.0, order=order, time_limit_seconds=600)


def _compare(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], method: str, case: str) -> list[Finding]:
    plan = _planned(problem, limits, order)
    energy, bound = plan.prediction.energy_joules, plan.certificate.bound_joules
    model = formulate(build_instance(problem, order), limits)
    overhead = least_overhead_of_class(model.candidates, limits.transient_bytes)
    best = math.inf if overhead is None else problem.base_joules + overhead
    outcome, difference = "equal", 0.0 if overhead is None else (energy - best) / best
    if difference > SAME:
        outcome = f"{FAILED}: the search is cheaper"
    elif overhead is None or difference < -SAME:
        restores = restores_of(model, plan.steps)
        is_inside = restores is not None and admits(model, restores)
        outcome = f"{FAILED}: the search is dearer" if is_inside else "a plan outside the class was found"
    elif abs(bound - best) > SAME * best:
        outcome = f"{FAILED}: the bound is not the search's energy"
    return [Finding("equality", method, outcome, difference, f"{case}: {energy}, bound {bound}, search {best}")]


def _compare_all(
    problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], named: tuple[str, str], most_states: int
) -> list[Finding]:
    group, case = named
    energy = _planned(problem, limits, order).prediction.energy_joules
    overhead = least_overhead(problem, limits, order, most_states=most_states)
    if overhead is None:
        return [Finding("equality", group, "search gave up", 0.0, case)]
    best = problem.base_joules + overhead
    difference = (energy - best) / best
    if difference < -SAME:
        return [Finding("equality", group, f"{FAILED}: the search is dearer", difference, case)]
    outcome = "equal" if difference <= SAME else "a plan outside the class is cheaper"
    return [Finding("equality", group, outcome, difference, f"{case}: {energy}, search {best}")]
