"""Plans under a limit on what a step writes: against exhaustive search, the simulator, and plans without the limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from brute_force import least_energy
from deep import sampled
from hypothesis import example, given
from hypothesis import strategies as st
from random_graphs import random_dag, random_graph

from poet_onnx.errors import CheckFailedError, InfeasibleError
from poet_onnx.plan import Action, Plan
from poet_onnx.plan.limits import TRANSFER_LIMITS, Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.bound import least_overhead_in_order
from poet_onnx.scheduling.eviction import STORAGE, evict
from poet_onnx.scheduling.liveness import Liveness, build_instance
from poet_onnx.scheduling.model import formulate
from poet_onnx.scheduling.refusals import least_moved
from poet_onnx.simulate import simulate


@dataclass(frozen=True)
class Paged:
    """A problem, limits that ask for paging, and the plan for them."""

    problem: ScheduleProblem
    limits: Limits
    plan: Plan

    def writing(self, share: float) -> Limits:
        """Return the limits with one on what is written: a share of what the plan writes."""
        return replace(self.limits, max_written_bytes=int(share * self.plan.prediction.page_out_bytes))


def _paging(seed: int, layers: int, place: float, *, recompute: bool = True) -> Paged | None:
    """Return a random problem with a budget that asks for paging, and its plan; None where it pages nothing."""
    graph, costs = random_graph(seed, layers)
    cheap = {name: replace(cost, joules=0.3 * cost.joules) for name, cost in costs.page_out.items()}
    problem = ScheduleProblem(graph, replace(costs, page_out=cheap), recompute=recompute)
    order = memory_aware_order(problem)
    smallest = smallest_budget(problem, order).budget_bytes
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    limits = Limits(int(smallest + place * (peak - smallest)))
    plan = schedule(problem, limits, gap=0.0, order=order)
    return Paged(problem, limits, plan) if plan.prediction.page_out_bytes else None


def _best(problem: ScheduleProblem, limits: Limits) -> Plan | None:
    """Return the best plan, which must keep the limit; None if there is none."""
    try:
        plan = schedule(problem, limits, gap=0.0, order=memory_aware_order(problem))
    except InfeasibleError:
        return None
    assert plan.limits.max_written_bytes == limits.max_written_bytes
    assert plan.prediction.page_out_bytes <= (limits.max_written_bytes or 0)
    assert simulate(problem, plan.steps, limits) == plan.prediction
    return plan


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("seed", sampled(range(30), 2, 7, 11, 19))
def test_energy_equals_exhaustive_search(seed: int) -> None:
    for place, recompute in ((0.0, True), (0.5, True), (0.5, False)):
        found = _paging(seed, 2 + seed % 3, place, recompute=recompute)
        if found is None:
            continue
        order = memory_aware_order(found.problem)
        for share in (0.0, 0.5, 0.8, 0.99):
            best = least_energy(found.problem, found.writing(share), order)
            plan = _best(found.problem, found.writing(share))
            assert (plan is None) == (best is None), (place, share)
            assert plan is None or plan.prediction.energy_joules == pytest.approx(best, rel=1e-9), (place, share)


@pytest.mark.deep
@example(seed=999_999, layers=8, place=0.35121858968669034)
@example(seed=1_000_000, layers=8, place=0.6796875)
@given(seed=st.integers(0, 10**6), layers=st.integers(2, 9), place=st.floats(0.0, 0.9))
def test_no_plan_that_may_write_less_spends_less_than_the_bound_for_more(seed: int, layers: int, place: float) -> None:
    found = _paging(seed, layers, place)
    if found is None:
        return
    best = [_best(found.problem, found.writing(share)) for share in (0.0, 0.4, 0.8, 1.0)]
    plans = [plan for plan in best if plan is not None]
    assert best == [None] * (4 - len(plans)) + plans
    for less, more in pairwise(plans):  # its own class of plans may be without the one for less; its wide bound is not
        assert more.certificate.wide_bound_joules is not None
        assert more.certificate.wide_bound_joules <= less.prediction.energy_joules * (1 + 1e-7)
    same, alone = plans[-1].prediction.energy_joules, found.plan.prediction.energy_joules
    assert same <= alone  # what it writes anyway, it may write
    assert same == alone or found.plan.certificate.status == "feasible", "another search may find less than no proof"


def test_the_simulator_refuses_what_writes_a_byte_too_much() -> None:
    paged = _first(recompute=False)
    problem, steps, written = paged.problem, paged.plan.steps, paged.plan.prediction.page_out_bytes
    assert simulate(problem, steps, Limits(max_written_bytes=written)).page_out_bytes == written
    with pytest.raises(CheckFailedError, match=f"writes {written:,} bytes to storage but may write {written - 1:,}"):
        simulate(problem, steps, Limits(max_written_bytes=written - 1))


def _first(layers: int = 6, *, recompute: bool = True) -> Paged:
    """Return the first random problem whose plan pages."""
    found = (_paging(seed, layers, 0.3, recompute=recompute) for seed in range(50))
    return next(one for one in found if one is not None)


def test_a_refusal_says_what_a_plan_writes_and_what_budget_works() -> None:
    paged = _first(recompute=False)
    problem, limits, order = paged.problem, paged.limits, memory_aware_order(paged.problem)
    (written,) = TRANSFER_LIMITS
    least = least_moved(problem, limits, order, written)
    assert least is not None
    with pytest.raises(
        InfeasibleError, match=f"writes at most 0 bytes .* writes {least:,} bytes a step is known"
    ) as no:
        schedule(problem, replace(limits, max_written_bytes=0), order=order)
    least_writing = schedule(problem, replace(limits, max_written_bytes=least), order=order)
    assert least_writing.prediction.page_out_bytes == least
    works = Limits(no.value.smallest_budget_bytes, max_written_bytes=0)
    assert schedule(problem, works, order=order).prediction.page_out_bytes == 0


@pytest.mark.parametrize("seed", sampled((0, *range(2, 9)), 0, 3))  # whose quick plans write
def test_quick_plans_and_bounds_know_the_limit(seed: int) -> None:
    """A quick plan writes no more than it may, each value once; a bound with the limit is no lower, and holds."""
    graph, costs = random_dag(seed, 40)
    costs = replace(costs, page_out={name: replace(cost, joules=0.0) for name, cost in costs.page_out.items()})
    problem = ScheduleProblem(graph, costs)
    order = memory_aware_order(problem)
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    limits = Limits((smallest + 2 * peak) // 3)
    free = _quick_bytes(problem, limits, order)
    assert free
    limited = replace(limits, max_written_bytes=free // 2)
    assert (_quick_bytes(problem, limited, order) or 0) <= free // 2
    least = least_overhead_in_order(problem, limited, order)
    assert least >= least_overhead_in_order(problem, limits, order) - 1e-9


def _quick_bytes(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...]) -> int | None:
    """Return what the first quick plan of an order writes; None if there is none."""
    liveness = Liveness(problem)
    found = evict(liveness.in_order(order), limits)
    if found is None:
        return None
    return int(sum(liveness.sizes[value] for value in set(found.value[found.placement == STORAGE].tolist())))


def test_without_the_limit_the_model_has_no_row_for_it() -> None:
    paged = _first()
    instance = build_instance(paged.problem, memory_aware_order(paged.problem))
    assert formulate(instance, paged.limits).moved == []
    assert formulate(instance, replace(paged.limits, max_written_bytes=10**12)).moved == []
    (row,) = formulate(instance, paged.writing(0.5)).moved
    assert row.high is not None
    assert sum(row.terms.values()) > row.high


def test_a_value_is_written_once_however_often_it_is_read_back() -> None:
    paged = _first()
    written = [step.subject for step in paged.plan.steps if step.action is Action.PAGE_OUT_START]
    assert len(set(written)) == len(written)
    sizes = [paged.problem.graph.tensors[name].size_bytes for name in written]
    assert sum(sizes) == paged.plan.prediction.page_out_bytes
