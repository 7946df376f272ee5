"""Plans under a limit on what a step writes: against exhaustive search, the simulator, and plans without the limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from brute_force import least_energy
from deep import sampled
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import random_dag, random_graph

from poet_onnx.errors import CheckFailedError, InfeasibleError
from poet_onnx.plan import Action, Plan
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.bound import least_overhead_in_order
from poet_onnx.scheduling.eviction import STORAGE, Prices, evict
from poet_onnx.scheduling.liveness import Liveness, build_instance
from poet_onnx.scheduling.model import formulate
from poet_onnx.scheduling.refusals import least_written
from poet_onnx.simulate import simulate


def _paging(seed: int, layers: int, place: float, *, recompute: bool = True) -> tuple[ScheduleProblem, Plan] | None:
    """Return a random problem with a budget that asks for paging, and its plan; None where it pages nothing."""
    graph, costs = random_graph(seed, layers)
    cheap = {name: replace(cost, joules=0.3 * cost.joules) for name, cost in costs.page_out.items()}
    problem = ScheduleProblem(graph, replace(costs, page_out=cheap), recompute=recompute)
    order = memory_aware_order(problem)
    smallest = smallest_budget(problem, order).budget_bytes
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    problem = replace(problem, budget_bytes=int(smallest + place * (peak - smallest)))
    plan = schedule(problem, gap=0.0, order=order)
    return (problem, plan) if plan.prediction.page_out_bytes else None


def _limited(problem: ScheduleProblem, plan: Plan, share: float) -> ScheduleProblem:
    """Return a problem that may write a share of what a plan writes."""
    return replace(problem, max_written_bytes=int(share * plan.prediction.page_out_bytes))


def _energy(problem: ScheduleProblem) -> float | None:
    """Return the energy of the best plan, which must keep the limit; None if there is none."""
    try:
        plan = schedule(problem, gap=0.0, order=memory_aware_order(problem))
    except InfeasibleError:
        return None
    assert plan.max_written_bytes == problem.max_written_bytes
    assert plan.prediction.page_out_bytes <= (problem.max_written_bytes or 0)
    assert simulate(problem, plan.steps) == plan.prediction
    return plan.prediction.energy_joules


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the small allowances of the model, so that it and exhaustive search see the same bytes."""
    monkeypatch.setattr("poet_onnx.scheduling.choices.TINY_FRACTION", 0.0)
    monkeypatch.setattr("poet_onnx.scheduling.memory_rows.TOKEN_BYTES_EACH", 0)
    monkeypatch.setattr("poet_onnx.simulate.versions.TOKEN_BYTES", 0)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("seed", sampled(range(30), 2, 7, 11, 19))
def test_energy_equals_exhaustive_search(seed: int) -> None:
    for place, recompute in ((0.0, True), (0.5, True), (0.5, False)):
        found = _paging(seed, 2 + seed % 3, place, recompute=recompute)
        for share in (0.0, 0.5, 0.8, 0.99) if found else ():
            limited = _limited(*found, share)  # type: ignore[misc]
            best = least_energy(limited, memory_aware_order(limited))
            assert _energy(limited) == (None if best is None else pytest.approx(best, rel=1e-9)), (place, share)


@given(seed=st.integers(0, 10**6), layers=st.integers(2, 9), place=st.floats(0.0, 0.9))
def test_what_may_be_written_costs_no_less_the_less_it_is(seed: int, layers: int, place: float) -> None:
    found = _paging(seed, layers, place)
    if found is None:
        return
    problem, free = found
    energies = [_energy(_limited(problem, free, share)) for share in (0.0, 0.4, 0.8, 1.0)]
    spent = [energy for energy in energies if energy is not None]
    assert energies == [None] * (4 - len(spent)) + spent
    for dearer, cheaper in pairwise(spent):
        assert cheaper <= dearer * (1 + 1e-7)
    assert spent[-1] <= free.prediction.energy_joules * (1 + 1e-7)


def test_the_simulator_refuses_what_writes_a_byte_too_much() -> None:
    problem, plan = _first(recompute=False)
    written = plan.prediction.page_out_bytes
    assert simulate(replace(problem, max_written_bytes=written), plan.steps).page_out_bytes == written
    with pytest.raises(CheckFailedError, match=f"writes {written:,} bytes to storage but may write {written - 1:,}"):
        simulate(replace(problem, max_written_bytes=written - 1), plan.steps)


def _first(layers: int = 6, *, recompute: bool = True) -> tuple[ScheduleProblem, Plan]:
    """Return the first random problem whose plan pages."""
    found = (_paging(seed, layers, 0.3, recompute=recompute) for seed in range(50))
    return next(one for one in found if one is not None)


def test_a_refusal_says_what_a_plan_writes_and_what_budget_works() -> None:
    problem, _ = _first(recompute=False)
    order = memory_aware_order(problem)
    least = least_written(problem, order, seconds=5.0)
    assert least is not None
    with pytest.raises(
        InfeasibleError, match=f"writes at most 0 bytes .* writes {least:,} bytes a step is known"
    ) as no:
        schedule(replace(problem, max_written_bytes=0), order=order)
    assert schedule(replace(problem, max_written_bytes=least), order=order).prediction.page_out_bytes == least
    works = replace(problem, max_written_bytes=0, budget_bytes=no.value.smallest_budget_bytes)
    assert schedule(works, order=order).prediction.page_out_bytes == 0


@pytest.mark.parametrize("seed", sampled(range(8), 0, 3))
def test_quick_plans_and_bounds_know_the_limit(seed: int) -> None:
    """A quick plan writes no more than it may, each value once; a bound with the limit is no lower, and holds."""
    graph, costs = random_dag(seed, 40)
    costs = replace(costs, page_out={name: replace(cost, joules=0.0) for name, cost in costs.page_out.items()})
    problem = ScheduleProblem(graph, costs)
    order = memory_aware_order(problem)
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    problem = replace(problem, budget_bytes=(smallest + 2 * peak) // 3)
    free = _quick_bytes(problem, order)
    assert free
    limited = replace(problem, max_written_bytes=free // 2)
    assert (_quick_bytes(limited, order) or 0) <= free // 2
    assert least_overhead_in_order(limited, order) >= least_overhead_in_order(problem, order) - 1e-9


def _quick_bytes(problem: ScheduleProblem, order: tuple[str, ...]) -> int | None:
    """Return what the first quick plan of an order writes; None if there is none."""
    lives = Liveness(problem)
    found = evict(lives, Prices.of(lives), lives.profile(lives.order_of(order)), problem.budget_bytes or 0)
    if found is None:
        return None
    return int(sum(lives.sizes[value] for value in set(found.value[found.placement == STORAGE].tolist())))


def test_without_the_limit_the_model_has_no_row_for_it() -> None:
    problem, plan = _first()
    order = memory_aware_order(problem)
    assert formulate(build_instance(problem, order)).written == []
    ample = replace(problem, max_written_bytes=10**12)
    assert formulate(build_instance(ample, order)).written == []
    (row,) = formulate(build_instance(_limited(problem, plan, 0.5), order)).written
    assert row.high is not None
    assert sum(row.terms.values()) > row.high


def test_a_value_is_written_once_however_often_it_is_read_back() -> None:
    problem, plan = _first()
    written = [step.subject for step in plan.steps if step.action is Action.PAGE_OUT_START]
    assert len(set(written)) == len(written)
    assert sum(problem.graph.tensors[name].size_bytes for name in written) == plan.prediction.page_out_bytes
