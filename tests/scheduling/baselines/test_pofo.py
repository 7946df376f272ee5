"""Beaumont et al. 2021: the dynamic programme against every choice of its class, and plans that carry a choice out."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit_chains import UNIT_BYTES, unit_chain

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling import plan_with
from poet_onnx.scheduling.baselines import CannotError
from poet_onnx.scheduling.baselines.pofo_model import Block, Stage, Terms, best_blocks

OUT, IN = 50.0, 80.0
"""Bytes a second."""


def choices(stages: int, first: int = 0) -> Iterator[tuple[Block, ...]]:
    """Yield every way to keep, page or run again each stage of a chain, the last of which is kept."""
    if first == stages - 1:
        yield (Block(first, first, again=False, paged=False),)
        return
    for last in range(first, stages - 1):
        for again in (False, True):
            for paged in (False, True) if again or last == first else ():
                for rest in choices(stages, last + 1):
                    yield (Block(first, last, again, paged), *rest)


def one_way(
    needs: list[list[tuple[float, float]]], stored: list[tuple[float, bool]], rate: float, budget: float
) -> float:
    """Return the seconds of blocks one after the other while what is paged leaves, infinite without room.

    Args:
        needs: by block, (bytes, seconds) of each of its nodes.
        stored: by block, what it leaves behind, and whether that is paged.
        rate: of the channel.
        budget: in bytes.
    """
    queue = held = seconds = 0.0
    for nodes, (size, is_paged) in zip(needs, stored, strict=True):
        for need, lasts in nodes:
            wait = max(0.0, held + need + queue - budget)
            if wait > queue:
                return float("inf")
            seconds += wait / rate + lasts
            queue = max(0.0, queue - wait - lasts * rate)
        queue, held = (queue + size, held) if is_paged else (queue, held + size)
    return seconds + queue / rate


def seconds_of(stages: tuple[Stage, ...], blocks: tuple[Block, ...], budget: float) -> float:
    """Return the seconds of a choice: of the way to the loss, and of the way back, looked at from its end."""
    there, back, stored = [], [], []
    for block in blocks:
        run = stages[block.first : block.last + 1]
        ends = [0 if not block.first else stages[block.first - 1].crossing_bytes, *(s.crossing_bytes for s in run)]
        there.append(
            [
                (s.forward_bytes + s.saved_bytes + (end if block.again else 0), s.forward_seconds)
                for s, end in zip(run, ends, strict=False)
            ]
        )
        saved = sum(s.saved_bytes for s in run)
        need = saved + max(max(s.backward_bytes, s.forward_bytes if block.again else 0) for s in run)
        back.append([(need, sum(s.backward_seconds + (s.forward_seconds if block.again else 0.0) for s in run))])
        stored.append((run[-1].crossing_bytes if block.again else run[-1].saved_bytes, block.paged))
    return one_way(there, stored, OUT, budget) + one_way(back, stored, IN, budget)


SIZES = st.integers(1, 100)
STAGES = st.builds(
    lambda forward, backward, work, undo, saved, share: Stage(forward, backward, work, undo, saved, int(saved * share)),
    st.floats(0.0, 2.0),
    st.floats(0.0, 3.0),
    SIZES,
    SIZES,
    SIZES,
    st.floats(0.1, 1.0),
)


@given(stages=st.lists(STAGES, min_size=1, max_size=5).map(tuple), share=st.floats(0.2, 1.0))
def test_the_programme_finds_the_least_time_of_all_choices(stages: tuple[Stage, ...], share: float) -> None:
    budget = int(share * (200 + sum(stage.saved_bytes for stage in stages)))
    least = min(seconds_of(stages, blocks, budget) for blocks in choices(len(stages)))
    found = best_blocks(stages, Terms(budget, OUT, IN), slots=0)
    if least == float("inf"):
        assert found is None
    else:
        assert found is not None
        assert found[0] == pytest.approx(least)
        assert seconds_of(stages, found[1], budget) == pytest.approx(least)


@given(stages=st.lists(STAGES, min_size=2, max_size=5).map(tuple), share=st.floats(0.3, 1.0))
def test_rounded_bytes_never_find_more_than_there_is(stages: tuple[Stage, ...], share: float) -> None:
    terms = Terms(int(share * (200 + sum(stage.saved_bytes for stage in stages))), OUT, IN)
    exact, rounded = (best_blocks(stages, terms, slots=slots) for slots in (0, 20))
    assert rounded is None or (exact is not None and exact[0] <= rounded[0] * (1 + 1e-9))


@pytest.mark.parametrize(("transfer_seconds", "pages"), [(0.1, True), (20.0, False)])
def test_it_pages_where_that_is_fast_and_recomputes_where_it_is_slow(transfer_seconds: float, *, pages: bool) -> None:
    problem = unit_chain(12, transfer_seconds=transfer_seconds)
    outcome = plan_with("pofo", problem, Limits(UNIT_BYTES * 11 + 400))
    assert outcome.plan is not None, outcome.reason
    assert bool(outcome.plan.prediction.page_out_bytes) == pages
    assert bool(outcome.plan.prediction.recomputed_nodes) != pages


def test_the_programme_ends_with_its_time() -> None:
    stages = (Stage(1.0, 1.0, 1, 1, 10, 5),) * 20
    terms = Terms(60, OUT, IN)
    assert best_blocks(stages, terms, slots=32, end=time.monotonic() + 3600.0) is not None
    with pytest.raises(CannotError, match="not through in the time limit"):
        best_blocks(stages, terms, slots=32, end=time.monotonic())
