"""Segments whose ends are kept: Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost" (2016).

Section 4 divides a chain of n layers into segments, keeps what each hands to the next, and runs a segment again before
its backward pass. Segments of sqrt(n) layers need O(sqrt(n)) memory. Algorithm 3 closes a segment as soon as what it
makes exceeds b bytes, and searches for b. The last segment is kept whole, as every implementation does: its backward
pass comes at once. `chain` says how a graph becomes a chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from poet_onnx.plan import Step
from poet_onnx.scheduling.baselines.chain import Chain, chain_of
from poet_onnx.scheduling.baselines.outcome import Task
from poet_onnx.scheduling.baselines.tape import Tape

MOST_SIZES = 64
"""Segment sizes b that the search of Algorithm 3 looks at."""


def offer_sqrt(task: Task) -> str:
    """Offer the plan with segments of sqrt(n) stages."""
    chain = chain_of(task.instance)
    length = math.ceil(math.sqrt(len(chain.stages)))
    starts = range(0, len(chain.stages), length)
    task.offer(in_segments(chain, [range(start, min(start + length, len(chain.stages))) for start in starts]))
    return f"Segments of {length} of {len(chain.stages)} stages break a limit, and it has no other plan."


def offer_greedy(task: Task) -> str:
    """Offer plans with segments that close at b bytes, for many b."""
    chain = chain_of(task.instance)
    found = dict.fromkeys(tuple(segments) for segments in _by_size(chain))
    for segments in found:
        task.offer(in_segments(chain, segments))
        if task.is_late:
            break
    return f"None of the {len(found)} ways to divide {len(chain.stages)} stages by size keeps the limits."


def _by_size(chain: Chain) -> Iterator[list[range]]:
    """Yield the segments of Algorithm 3, for sizes from that of a stage to that of all."""
    made = [
        sum(chain.instance.sizes[v] for position in stage for v in chain.instance.writes[position])
        for stage in chain.stages
    ]
    low, high = max(1, min(made)), max(1, sum(made))
    for step in range(MOST_SIZES):
        most_bytes = low * (high / low) ** (step / (MOST_SIZES - 1))
        segments, first, size = [], 0, 0
        for stage, stage_bytes in enumerate(made):
            size += stage_bytes
            if size > most_bytes or stage == len(made) - 1:
                segments.append(range(first, stage + 1))
                first, size = stage + 1, 0
        yield segments


def in_segments(chain: Chain, segments: Sequence[range]) -> tuple[Step, ...]:
    """Return the steps that keep what each segment hands on, and run it again before its backward pass."""
    tape = Tape(chain.instance)
    ends = frozenset(value for segment in segments for value in chain.boundary[segment[-1]])
    saved = {segment: frozenset(value for stage in segment for value in chain.saved[stage]) for segment in segments}
    of_stage = {stage: segment for segment in segments for stage in segment}
    for segment in segments:
        chain.sweep(tape, segment, ends | saved[segment] if segment == segments[-1] else ends)

    def bring(stage: int, _: int) -> None:
        segment = of_stage[stage]
        chain.sweep(tape, segment, ends | saved[segment])

    chain.run_backward(tape, bring)
    return tuple(tape.steps)
