"""Chen et al. 2016: memory that grows with the root of the length, for at most one more forward pass."""

from __future__ import annotations

import math

import pytest
from unit_chains import UNIT_BYTES, unit_chain

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling.baselines import plan_with


@pytest.mark.parametrize("layers", [9, 16, 49, 100, 169])
def test_segments_of_sqrt_n_need_sqrt_n_memory_and_one_more_forward_pass(layers: int) -> None:
    problem = unit_chain(layers)
    root = math.isqrt(layers)
    # Section 4.1: sqrt(n) segment ends, and the sqrt(n) values of one segment; besides a gradient read and one made.
    outcome = plan_with("chen-sqrt", problem, Limits(UNIT_BYTES * (2 * root + 3)))
    assert outcome.plan is not None
    assert outcome.plan.prediction.recomputed_nodes <= layers
    one_less = plan_with("chen-sqrt", problem, Limits(UNIT_BYTES * (2 * root - 3)))
    assert one_less.plan is None
    assert one_less.closest is not None
    assert one_less.closest.transient_peak_bytes > UNIT_BYTES * (2 * root - 3)


@pytest.mark.deep
def test_greedy_fits_wherever_the_root_does_and_is_no_dearer() -> None:
    problem = unit_chain(64)
    for units in range(14, 30):
        limits = Limits(UNIT_BYTES * units)
        root, greedy = (plan_with(method, problem, limits).plan for method in ("chen-sqrt", "chen-greedy"))
        assert greedy is not None or root is None
        if root is not None and greedy is not None:
            assert greedy.prediction.energy_joules <= root.prediction.energy_joules * (1 + 1e-9)
