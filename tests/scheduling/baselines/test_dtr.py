"""Kirisame et al. 2021: O(n) operations with O(sqrt n) memory on chains, and the three heuristics on a worked case."""

from __future__ import annotations

import math

import pytest
from unit_chains import UNIT_BYTES, unit_chain

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling import plan_with


def repeats(layers: int, method: str) -> float:
    """Return recomputes for each layer, with memory for twice the root of their number."""
    outcome = plan_with(method, unit_chain(layers), Limits(UNIT_BYTES * (2 * math.isqrt(layers) + 4)))
    assert outcome.plan is not None, outcome.reason
    return outcome.plan.prediction.recomputed_nodes / layers


@pytest.mark.parametrize("method", ["dtr", "dtr-eq"])
def test_chains_take_linear_work_in_root_memory(method: str) -> None:
    # Theorem 3.1; what lies beyond a forward and a backward pass is at most one more forward pass here.
    assert max(repeats(layers, method) for layers in (16, 64, 144, 256)) < 1.0


def test_without_the_neighborhood_work_grows_faster_than_the_chain() -> None:
    # Section 4.3 has h_local fall behind; on chains its work for each layer grows with their number.
    growth = [repeats(layers, "dtr-local") for layers in (16, 64, 144, 256)]
    assert growth == sorted(growth)
    assert growth[-1] > 3.0


def test_the_budget_without_room_for_one_node_names_the_node() -> None:
    outcome = plan_with("dtr", unit_chain(8), Limits(2 * UNIT_BYTES))
    assert outcome.plan is None
    assert outcome.reason == "At node 'b7' nothing more may leave, and 3,000 bytes are needed."


def test_budgets_down_to_a_few_values_are_reached_or_refused_as_thrashing() -> None:
    reached = []
    for units in range(2, 20):
        outcome = plan_with("dtr", unit_chain(20), Limits(UNIT_BYTES * units))
        reached.append(outcome.plan is not None)
        if outcome.plan is not None:
            assert outcome.plan.prediction.transient_peak_bytes <= UNIT_BYTES * units
    assert reached == [False, False, *[True] * 16]
