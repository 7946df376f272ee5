"""Packing against all there is for a few slots, and against what must hold for many."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations

import pytest
from deep import sampled
from hypothesis import given
from hypothesis import strategies as st

from poet_onnx.addresses.packing import pack
from poet_onnx.addresses.slots import Packing, Slot, liveness_peak_bytes


def meet(first: Slot, second: Slot) -> bool:
    return first.born <= second.dies and second.born <= first.dies


def smallest_region(slots: Sequence[Slot]) -> int:
    """Return the smallest region, found by placing the slots in every order at the lowest address that is free."""
    best = sum(slot.size_bytes + slot.alignment_bytes for slot in slots)
    for order in permutations(slots):
        placed: list[tuple[Slot, int]] = []
        for slot in order:
            others = [(at, at + other.size_bytes) for other, at in placed if meet(slot, other)]
            starts = [0, *(-(-end // slot.alignment_bytes) * slot.alignment_bytes for _, end in others)]
            placed.append(
                (slot, min(s for s in starts if all(s + slot.size_bytes <= low or s >= high for low, high in others)))
            )
        best = min(best, max(at + slot.size_bytes for slot, at in placed))
    return best


def check(slots: Sequence[Slot], packing: Packing) -> None:
    assert len(packing.offsets) == len(slots)
    placed = list(zip(slots, packing.offsets, strict=True))
    for slot, offset in placed:
        assert offset >= 0
        assert offset % slot.alignment_bytes == 0
    for index, (slot, offset) in enumerate(placed):
        for other, at in placed[:index]:
            assert not meet(slot, other) or offset + slot.size_bytes <= at or at + other.size_bytes <= offset
    assert packing.region_bytes == max((at + slot.size_bytes for slot, at in placed), default=0)
    assert packing.region_bytes >= liveness_peak_bytes(slots)


def random_slots(
    seed: int, count: int, steps: int, *, most: int = 9, large: int = 256, unit_bytes: int = 64
) -> list[Slot]:
    rng = random.Random(seed)
    slots = []
    for _ in range(count):
        born, other = rng.randrange(steps), rng.randrange(steps)
        size_bytes = unit_bytes * rng.randint(1, most)
        slots.append(Slot(min(born, other), max(born, other), size_bytes, rng.choice([64, 64, 64, large])))
    return slots


@pytest.mark.parametrize("seed", sampled(range(300), *range(0, 300, 15)))
def test_a_few_slots_get_the_smallest_region(seed: int) -> None:
    """Sizes are many pages, so that no region but the smallest is close enough to the peak to end the search."""
    rng = random.Random(1000 + seed)
    slots = random_slots(seed, rng.randint(1, 6), rng.choice([3, 5, 8]), unit_bytes=2**20, large=2**21)
    packing = pack(slots)
    check(slots, packing)
    assert packing.region_bytes == smallest_region(slots)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 40), st.sampled_from([64, 64, 64, 4096])),
        max_size=40,
    )
)
def test_slots_that_live_at_once_never_overlap(drawn: list[tuple[int, int, int, int]]) -> None:
    slots = [Slot(born, born + life, 64 * size, alignment) for born, life, size, alignment in drawn]
    check(slots, pack(slots))


@pytest.mark.parametrize("seed", range(4))
def test_nested_and_passing_lives_need_hardly_more_than_their_peak(seed: int) -> None:
    """A training step's: activations from forward to backward, and values of a few steps."""
    rng = random.Random(seed)
    steps, slots = 200, []
    for step in range(0, 90, 2):
        slots.append(Slot(step, steps - step - rng.randint(0, 3), 64 * rng.randint(1, 4000), 64))
    for step in range(steps - 4):
        slots.append(Slot(step, step + rng.randint(0, 4), 64 * rng.randint(1, 4000), 64))
    packing = pack(slots)
    check(slots, packing)
    assert packing.region_bytes <= 1.001 * liveness_peak_bytes(slots)


def test_packing_is_the_same_every_time() -> None:
    slots = random_slots(5, 60, 40, most=500, large=4096)
    assert pack(slots) == pack(slots)


@pytest.mark.deep
def test_thousands_of_slots_need_little_more_than_their_peak() -> None:
    slots = random_slots(7, 2000, 3000, most=500, large=4096)
    packing = pack(slots)
    check(slots, packing)
    assert packing.region_bytes <= 1.05 * liveness_peak_bytes(slots)


def cut(rng: random.Random, born: int, dies: int, units: int, pieces: int) -> list[Slot]:
    """Cut a rectangle of steps and memory into about so many slots, which fill it without a gap."""
    if pieces == 1 or (dies == born and units == 1):
        return [Slot(born, dies, 64 * units, 64)]
    few = rng.randint(1, pieces - 1)
    if units == 1 or (dies > born and rng.random() < 0.5):
        last = rng.randint(born, dies - 1)
        return cut(rng, born, last, units, few) + cut(rng, last + 1, dies, units, pieces - few)
    lower = rng.randint(1, units - 1)
    return cut(rng, born, dies, lower, few) + cut(rng, born, dies, units - lower, pieces - few)


@pytest.mark.parametrize("seed", range(4))
def test_a_rectangle_cut_to_pieces_is_put_together_again(seed: int) -> None:
    """All steps are as full as the peak, which is harder than any plan: plans are full at a few."""
    rng = random.Random(seed)
    slots = cut(rng, 0, 400, 20_000, 300)
    rng.shuffle(slots)
    packing = pack(slots)
    check(slots, packing)
    assert liveness_peak_bytes(slots) == 64 * 20_000
    assert packing.region_bytes <= 1.01 * liveness_peak_bytes(slots)


def test_nothing_needs_no_region() -> None:
    assert pack([]) == Packing((), 0)
    assert liveness_peak_bytes([]) == 0
