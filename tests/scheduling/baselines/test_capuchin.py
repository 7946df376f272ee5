"""Peng et al. 2020: what has free time is paged, the longest first; the rest by the least delay."""

from __future__ import annotations

import pytest
from unit_chains import UNIT_BYTES, unit_chain

from poet_onnx.plan import Action, Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling import plan_with


def planned(layers: int, units: int, transfer_seconds: float) -> Plan:
    problem = unit_chain(layers, transfer_seconds=transfer_seconds)
    outcome = plan_with("capuchin", problem, Limits(UNIT_BYTES * units + 500))
    assert outcome.plan is not None, outcome.reason
    return outcome.plan


def paged(plan: Plan) -> set[str]:
    return {step.subject for step in plan.steps if step.action is Action.PAGE_OUT_START}


@pytest.mark.parametrize("away", [1, 2, 3])
def test_the_values_of_most_free_time_are_paged_first_and_nothing_waits(away: int) -> None:
    # Ten values and two gradients at the peak. v0 is read by node a1 at 2 s and by b1 at 18 s, v1 two seconds less.
    plan = planned(10, 12 - away, transfer_seconds=0.5)
    assert paged(plan) == {f"v{layer}" for layer in range(away)}
    assert plan.prediction.recomputed_nodes == 0
    assert plan.prediction.stall_seconds == pytest.approx(0.0)


def test_where_no_value_has_free_time_the_shorter_delay_decides() -> None:
    # A page-out and a page-in take 40 s; a value is made again in 1 s.
    plan = planned(10, 9, transfer_seconds=20.0)
    assert not paged(plan)
    assert plan.prediction.recomputed_nodes >= 3


def test_paging_comes_first_and_recompute_where_free_time_ends() -> None:
    # v0 has 18 - 2 - 2 * 7 = 2 s of free time, v1 none, and v2 would have to wait.
    plan = planned(10, 9, transfer_seconds=7.0)
    assert paged(plan) == {"v0", "v1"}
    assert plan.prediction.recomputed_nodes >= 1
