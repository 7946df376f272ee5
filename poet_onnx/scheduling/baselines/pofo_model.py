"""The chain that POFO's dynamic programme is about, and the programme.

A block is a run of neighbouring stages. A stage that is kept whole is a block of its own: what it saves is stored. The
stages of another block are run again in the backward pass, all at once: what crosses the block's end is stored. What is
stored stays in RAM or is paged. Every page-out ends before the loss, every page-in begins behind it; what the channel
does not carry beside computing is waited for, and so is room where memory is full.

The programme goes along the chain with, for the part of the step before and behind it, the bytes that stay, those not
yet written when the next stage runs forward, those fetched too early when it runs backward, and the least time. That is
the state of Beaumont, Eyraud-Dubois and Shilova (2021, section 4); seen backwards in time, fetching is like writing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from poet_onnx.scheduling.baselines.outcome import CannotError


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the chain.

    Attributes:
        forward_seconds, backward_seconds: of its nodes.
        forward_bytes, backward_bytes: that its nodes need beside what stages store and save.
        saved_bytes: that it saves for its backward pass, what crosses its end included.
        crossing_bytes: that cross its end.
    """

    forward_seconds: float
    backward_seconds: float
    forward_bytes: int
    backward_bytes: int
    saved_bytes: int
    crossing_bytes: int


class Block(NamedTuple):
    """Stages that are treated alike: first and last, whether they run again, whether what is stored is paged."""

    first: int
    last: int
    again: bool
    paged: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """What a chain has.

    Attributes:
        budget_bytes: for everything.
        out_bytes_per_second, in_bytes_per_second: of the channel.
        recompute, paging: what is allowed.
        beside: transfers run beside computing.
    """

    budget_bytes: int
    out_bytes_per_second: float
    in_bytes_per_second: float
    recompute: bool = True
    paging: bool = True
    beside: bool = True


class State(NamedTuple):
    """What is known behind a block: bytes that stay, that are to be written, that were fetched; seconds so far."""

    held: float
    leaving: float
    fetched: float
    seconds: float


Bytes: TypeAlias = tuple[float, float, float]
Chosen: TypeAlias = tuple[float, tuple[Block, ...]]
States: TypeAlias = dict[Bytes, Chosen]
"""The least seconds and the blocks that take them, by the bytes that stay, leave and were fetched."""


def after(stages: tuple[Stage, ...], terms: Terms, state: State, block: Block) -> State | None:
    """Return the state behind a block, None if it does not fit."""
    held, leaving, fetched, seconds = state
    run = stages[block.first : block.last + 1]
    before = stages[block.first - 1].crossing_bytes if block.first else 0
    for stage in run:
        need = held + stage.forward_bytes + stage.saved_bytes + (before if block.again else 0)
        waited = max(0.0, need + leaving - terms.budget_bytes)
        if waited > leaving:
            return None
        before = stage.crossing_bytes
        seconds += waited / terms.out_bytes_per_second + stage.forward_seconds
        leaving = max(0.0, leaving - waited - stage.forward_seconds * terms.out_bytes_per_second)
    need = held + max(stage.backward_bytes for stage in run) + sum(stage.saved_bytes for stage in run)
    back_seconds = sum(stage.backward_seconds for stage in run)
    if block.again:
        need = max(need, held + max(stage.forward_bytes for stage in run) + sum(stage.saved_bytes for stage in run))
        back_seconds += sum(stage.forward_seconds for stage in run)
    waited = max(0.0, need + fetched - terms.budget_bytes)
    if waited > fetched:
        return None
    seconds += waited / terms.in_bytes_per_second + back_seconds
    fetched = max(0.0, fetched - waited - back_seconds * terms.in_bytes_per_second)
    stored = run[-1].crossing_bytes if block.again else run[-1].saved_bytes
    if not block.paged:
        return State(held + stored, leaving, fetched, seconds)
    if not terms.beside:
        return State(held, 0.0, 0.0, seconds + stored / terms.out_bytes_per_second + stored / terms.in_bytes_per_second)
    return State(held, leaving + stored, fetched + stored, seconds)


def drained(terms: Terms, state: State) -> float:
    """Return the seconds of a chain once all is written before the loss and fetched behind it."""
    return state.seconds + state.leaving / terms.out_bytes_per_second + state.fetched / terms.in_bytes_per_second


def blocks_from(stages: tuple[Stage, ...], terms: Terms, first: int) -> Iterator[Block]:
    """Yield the blocks that may begin at a stage; the last stage, whose backward pass comes at once, is kept."""
    end = len(stages) - 1
    if first == end:
        yield Block(first, first, again=False, paged=False)
        return
    choices = (False, True) if terms.paging else (False,)
    for paged in choices:
        yield Block(first, first, again=False, paged=paged)
        for last in range(first, end) if terms.recompute else ():
            yield Block(first, last, again=True, paged=paged)


def best_blocks(stages: tuple[Stage, ...], terms: Terms, *, slots: int, end: float = math.inf) -> Chosen | None:
    """Return the least seconds and the blocks that take them, None if nothing fits.

    Args:
        stages: of the chain.
        terms: of the chain.
        slots: that bytes are rounded up to, of the budget, as the authors do; 0 to count all.
        end: moment of `time.monotonic` at which to stop.

    Raises:
        CannotError: if the programme is not through by then.
    """
    known: list[States] = [{} for _ in range(len(stages) + 1)]
    known[0][0.0, 0.0, 0.0] = 0.0, ()
    unit = terms.budget_bytes / slots if slots else 0.0
    for first in range(len(stages)):
        for (held, leaving, fetched), (seconds, chosen) in _undominated(known[first]):
            if time.monotonic() >= end:
                raise CannotError("Its dynamic programme was not through in the time limit.")
            for block in blocks_from(stages, terms, first):
                found = after(stages, terms, State(held, leaving, fetched, seconds), block)
                if found is None:
                    continue
                key = (_up(found.held, unit), _up(found.leaving, unit), _up(found.fetched, unit))
                there = known[block.last + 1]
                if key not in there or found.seconds < there[key][0]:
                    there[key] = found.seconds, (*chosen, block)
    ends = [(drained(terms, State(*key, seconds)), chosen) for key, (seconds, chosen) in known[-1].items()]
    return min(ends, default=None)


def _up(size: float, unit: float) -> float:
    return -(-size // unit) * unit if unit else size


def _undominated(states: States) -> Iterator[tuple[Bytes, Chosen]]:
    """Yield the states beside which none takes less time and fewer bytes of each kind."""
    kept: list[Bytes] = []
    for key, (seconds, chosen) in sorted(states.items(), key=lambda item: (item[1][0], item[0])):
        if not any(all(a <= b for a, b in zip(other, key, strict=True)) for other in kept):
            kept.append(key)
            yield key, (seconds, chosen)
