"""Griewank & Walther 2000: counts of forward steps, and the schedules that attain them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import pytest
from unit_chains import unit_chain

from poet_onnx.scheduling import memory_aware_order
from poet_onnx.scheduling.baselines.chain import chain_of
from poet_onnx.scheduling.baselines.revolve import beta, first_snapshot, repeats_of, with_snapshots
from poet_onnx.scheduling.baselines.tidy import tidied
from poet_onnx.scheduling.liveness import build_instance
from poet_onnx.simulate import replay


@cache
def least_steps(length: int, snapshots: int) -> int:
    """Return the fewest steps forward, by trying every place of the next snapshot; the oracle."""
    if length == 1:
        return 0
    if snapshots == 1:
        return length * (length - 1) // 2
    return min(
        before + least_steps(length - before, snapshots - 1) + least_steps(before, snapshots)
        for before in range(1, length)
    )


def published_steps(length: int, snapshots: int) -> int:
    """Return t(l, s) = r l - beta(s+1, r-1)."""
    repeats = repeats_of(length, snapshots)
    return repeats * length - beta(snapshots + 1, repeats - 1)


def test_binomial_numbers_are_those_published() -> None:
    # Table 1 of "Algorithm 799": longest chains for s snapshots and r repeats.
    assert [beta(snapshots, 3) for snapshots in (1, 2, 3, 4, 5)] == [4, 10, 20, 35, 56]
    assert repeats_of(10, 2) == 3
    assert repeats_of(11, 2) == 4


@pytest.mark.parametrize("snapshots", range(1, 7))
def test_the_formula_and_the_place_of_the_snapshot_are_optimal(snapshots: int) -> None:
    for length in range(1, 40):
        assert published_steps(length, snapshots) == least_steps(length, snapshots)
        if length > 1 and snapshots > 1:
            before = first_snapshot(length, snapshots)
            found = before + least_steps(length - before, snapshots - 1) + least_steps(before, snapshots)
            assert found == least_steps(length, snapshots)


@pytest.mark.parametrize(("layers", "snapshots"), [(4, 1), (10, 2), (12, 3), (20, 3), (35, 4), (9, 9), (50, 3)])
def test_plans_run_as_many_steps_and_hold_as_many_snapshots_as_published(layers: int, snapshots: int) -> None:
    problem = unit_chain(layers, taped=True)
    chain = chain_of(build_instance(problem, memory_aware_order(problem)))
    ends = [*range(2, 2 * layers, 2), len(chain.stages)]  # a tape and a state each, the loss with the last
    layered = chain.grouped([range(first, last) for first, last in pairwise([0, *ends])])
    plan = tidied(problem, with_snapshots(layered, snapshots))
    runs = Counter(step.subject for step in plan)
    forward = sum(count for name, count in runs.items() if name.startswith("f"))
    assert forward == least_steps(layers, snapshots) + layers
    assert max(count for name, count in runs.items() if name.startswith("f")) <= repeats_of(layers, snapshots) + 1
    replay(problem, plan)
