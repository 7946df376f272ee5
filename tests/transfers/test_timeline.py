"""The time of transfers that move one by one: as if all were looked at anew; nothing stays of what is taken back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poet_onnx.transfers.timeline import SLOW_TRANSFERS, Timeline, Transfer

TICK_SECONDS = 1e-9


def made(rng: random.Random, transfers: int, boundaries: int) -> tuple[list[Transfer], list[float]]:
    """Return page-outs and page-ins at random places, and the clock of the computations."""
    clock = list(accumulate((rng.choice([0.0, 0.1, 0.5, 1.0]) for _ in range(boundaries)), initial=0.0))
    found = []
    for number in range(transfers):
        start, end = sorted(rng.choices(range(boundaries + 1), k=2))
        leaves = number < transfers // 2
        found.append(Transfer(f"v{number}", leaves, rng.choice([0.1, 0.5, 2.0]), 1, start, end, 0, boundaries))
    for boundary in rng.sample(range(boundaries), k=rng.randint(0, boundaries // 2)):
        places = (boundary,) * 4
        found.append(Transfer(f"n{boundary}", False, rng.choice([0.1, 2.0]), 0, *places, is_within_node=True))
    return found, clock


def timeline(transfers: Sequence[Transfer], clock: Sequence[float], price: float) -> Timeline:
    return Timeline(transfers, clock, hand_over_seconds=price, wake_seconds=2 * price)


def in_full(one: Timeline, clock: Sequence[float], price: float, slowness: float) -> float:
    """Return the time of the step, looked at from its beginning."""
    channel = stalled = 0.0
    done: dict[Transfer, float] = {}
    for boundary, starts, transfer in one.halves():
        now = clock[boundary] + stalled
        if starts and transfer.is_handed_over:
            stalled += price
            now += price
            channel = channel if channel > now else now + 2 * price
        if starts:
            done[transfer] = channel = max(now, channel) + slowness * transfer.seconds
        else:
            stalled += max(0.0, done[transfer] - now)
    return clock[-1] + stalled


@given(
    seed=st.integers(0, 10**6),
    transfers=st.integers(1, 12),
    boundaries=st.integers(1, 30),
    price=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_halves_that_move_leave_the_time_that_all_together_take(
    seed: int, transfers: int, boundaries: int, price: float
) -> None:
    rng = random.Random(seed)
    found, clock = made(rng, transfers, boundaries)
    moved = timeline(found, clock, price)
    assert moved.seconds(float("inf"), TICK_SECONDS) is not None
    moved.keep()
    for _ in range(40):
        transfer = rng.choice(found[:transfers])
        half = rng.choice(["start", "end"])
        here = getattr(transfer, half)
        low, high = (0, transfer.end) if half == "start" else (transfer.start, boundaries)
        moved.put(transfer, half, rng.randint(low, high))
        assert moved.halves() == timeline(found, clock, price).halves()
        seconds = [in_full(moved, clock, price, slowness) for slowness in (1.0, SLOW_TRANSFERS)]
        most = rng.choice([float("inf"), round(seconds[0] / TICK_SECONDS), round(seconds[0] / TICK_SECONDS) - 1])
        asked = moved.seconds(most, TICK_SECONDS)
        if most < round(seconds[0] / TICK_SECONDS):
            # Stalls that come before the end say it; what the end alone shows may be told as it is.
            assert asked is None or asked[0] > most
        else:
            assert asked == tuple(round(each / TICK_SECONDS) for each in seconds)
        if asked is not None and rng.random() < 0.5:
            moved.keep()
        else:
            moved.take_back(transfer, half, here)


def test_a_half_that_moves_where_the_channel_is_idle_is_looked_at_alone() -> None:
    clock = [float(second) for second in range(1001)]
    found = [Transfer(f"v{n}", True, 0.5, 1, 10 * n, 10 * n + 2, 0, 1000) for n in range(100)]
    moved = timeline(found, clock, 0.0)
    assert moved.seconds(float("inf"), TICK_SECONDS) == (10**12, 10**12)
    moved.keep()
    before = moved.visited
    moved.put(found[50], "end", 501)
    assert moved.seconds(float("inf"), TICK_SECONDS) == (10**12, 10**12)
    assert 0 < moved.visited - before < 10


@pytest.mark.parametrize("most_ticks", [999, 1])
def test_a_step_that_takes_too_long_is_not_looked_at_to_its_end(most_ticks: int) -> None:
    clock = [float(second) for second in range(101)]
    found = [Transfer(f"v{n}", True, 50.0, 1, n, n + 1, 0, 100) for n in range(100)]
    late = timeline(found, clock, 0.0)
    assert late.seconds(most_ticks, 1.0) is None
    assert late.visited < 150
