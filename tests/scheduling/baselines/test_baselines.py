"""Every method of scheduling on the same problems: plans hold, refusals say why, and none spends less than POET."""

from __future__ import annotations

import dataclasses

import pytest
from deep import sampled
from hypothesis import example, given
from hypothesis import strategies as st
from random_graphs import random_dag, random_graph
from unit_chains import unit_chain

from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps
from poet_onnx.scheduling.baselines import METHODS, plan_with
from poet_onnx.simulate import simulate


def peak_bytes(problem: ScheduleProblem) -> int:
    return simulate(problem, ordered_steps(memory_aware_order(problem))).transient_peak_bytes


def random_problem(seed: int, nodes: int, *, skips: bool) -> ScheduleProblem:
    graph, costs = random_graph(seed, nodes // 2) if skips else random_dag(seed, nodes)
    return ScheduleProblem(graph, costs)


@pytest.mark.parametrize(
    "method",
    sampled(
        METHODS, *(each for each in METHODS if each not in ("poet-paper", "poet-paging", "poet-recompute", "checkmate"))
    ),
)
@given(seed=st.integers(0, 10_000), nodes=st.integers(8, 24), share=st.floats(0.4, 1.0), skips=st.booleans())
@example(seed=284, nodes=8, share=0.5, skips=False)  # a weight changes before its reader is to run again
def test_every_plan_keeps_the_limits_and_every_refusal_says_why(
    method: str, seed: int, nodes: int, share: float, skips: bool
) -> None:
    problem = random_problem(seed, nodes, skips=skips)
    limits = Limits(int(share * peak_bytes(problem)))
    outcome = plan_with(method, problem, limits, time_limit_seconds=5.0)
    assert outcome.method == method
    assert (outcome.plan is None) == bool(outcome.reason)
    if outcome.plan is None:
        assert outcome.reason[0].isupper()
        assert outcome.reason.endswith(".")
        assert "simulator" not in outcome.reason
        closest = outcome.closest
        assert closest is None or list(limits.broken_by(closest))
    else:
        prediction = simulate(problem, outcome.plan.steps)
        assert prediction == outcome.plan.prediction
        assert not list(limits.broken_by(prediction))
        assert outcome.plan.certificate.bound_joules <= prediction.energy_joules


@pytest.mark.parametrize("method", METHODS)
def test_what_fits_as_it_is_stays_as_it_is(method: str) -> None:
    problem = unit_chain(6)
    outcome = plan_with(method, problem, Limits(peak_bytes(problem)))
    assert outcome.plan is not None
    assert outcome.plan.steps == ordered_steps(memory_aware_order(problem))
    assert outcome.plan.certificate.status == "not_needed"


@pytest.mark.parametrize("method", METHODS)
def test_one_byte_is_refused_with_a_reason(method: str) -> None:
    outcome = plan_with(method, unit_chain(6), Limits(1), time_limit_seconds=5.0)
    assert outcome.plan is None
    assert outcome.reason


@pytest.mark.parametrize("method", METHODS)
def test_a_forbidden_means_is_not_used(method: str) -> None:
    problem = unit_chain(12)
    limits = Limits(int(0.7 * peak_bytes(problem)))
    for recompute, paging in ((True, False), (False, True), (False, False)):
        restricted = dataclasses.replace(problem, recompute=recompute, paging=paging)
        plan = plan_with(method, restricted, limits, time_limit_seconds=5.0).plan
        if plan is not None:
            assert recompute or not plan.prediction.recomputed_nodes
            assert paging or not plan.prediction.page_out_bytes
            assert recompute or paging


@pytest.mark.parametrize("seed", sampled((*range(5), *range(6, 40)), 1))  # 5: .5 % outside POET's class
def test_none_spends_less_than_poet_by_more_than_the_gap(seed: int) -> None:
    problem = random_problem(seed, 24, skips=seed % 2 == 0)
    order = memory_aware_order(problem)
    for share in (0.7, 0.85):
        limits = Limits(int(share * peak_bytes(problem)))
        ours = plan_with("poet", problem, limits, gap=0.001, baseline=order).plan
        least = 0.0 if ours is None else ours.prediction.energy_joules * (1 - 0.0011)
        for method in METHODS.keys() - {"poet", "poet-recompute", "poet-paging", "poet-paper"}:
            other = plan_with(method, problem, limits, baseline=order, time_limit_seconds=10.0).plan
            assert other is None or other.prediction.energy_joules >= least, method
            assert other is None or ours is not None, method
