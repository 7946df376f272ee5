"""Rows (4) of the model: what is in RAM at each slot and each node, kept as values that stay through a range of rows.

A value that is retained is in every row from one of its events to the next, so that a thousand-node model has millions
of terms but only thousands of ranges. Sums over rows are made from the ranges; terms are written out for SCIP alone.

Two nodes: a makes k of 8 bytes, c in between makes and frees 4, b reads k. With a budget of 10 the row of c's node is
8 S[k,0] <= 10 - 4: k may not stay in RAM beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poet_onnx.scheduling.choices import Candidates, Event
from poet_onnx.scheduling.liveness import Instance

if TYPE_CHECKING:
    from poet_onnx.scheduling.model import Formulation

RECENT_SLOTS = 8
"""Rows of the same stage that a row is compared with, to drop it if it is implied."""

TOKEN_BYTES_EACH = 16
"""Bytes of the tokens of each value that is paged."""


@dataclass
class Row:
    """low <= sum coefficient * variable <= high; a missing side is None."""

    terms: dict[int, float]
    low: float | None = None
    high: float | None = None


class Span(NamedTuple):
    """A variable with the bytes that it keeps in RAM from one row up to, not including, another."""

    variable: int
    size_bytes: int
    begin: int
    end: int


@dataclass(frozen=True)
class MemoryRows:
    """The rows that can bind.

    Attributes:
        room: right-hand side of each row, bytes: the budget less what is always there.
        local: terms of each row that no span holds.
        spans: terms of ranges of rows.
        fixed_bytes: the largest number of bytes that no choice can avoid, over all rows, kept or not.
    """

    room: tuple[float, ...] = ()
    local: tuple[dict[int, float], ...] = ()
    spans: tuple[Span, ...] = ()
    fixed_bytes: int = 0

    def rows(self) -> Iterator[Row]:
        """Yield every row with all its terms."""
        starting: dict[int, list[Span]] = {}
        ending: dict[int, list[Span]] = {}
        for span in self.spans:
            starting.setdefault(span.begin, []).append(span)
            ending.setdefault(span.end, []).append(span)
        waiting: dict[int, float] = {}
        for number, (room, local) in enumerate(zip(self.room, self.local, strict=True)):
            for span in ending.get(number, ()):
                waiting[span.variable] -= span.size_bytes
                if not waiting[span.variable]:
                    del waiting[span.variable]
            for span in starting.get(number, ()):
                waiting[span.variable] = waiting.get(span.variable, 0.0) + span.size_bytes
            terms = dict(waiting)
            for variable, size in local.items():
                terms[variable] = terms.get(variable, 0.0) + size
            yield Row(terms, high=room)


class _Builder:
    """Collects rows stage by stage, each with what is always in RAM."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.first_row: list[int] = []
        self.fixed_bytes = 0
        self._room: list[float] = []
        self._local: list[dict[int, float]] = []

    def begin_stage(self) -> None:
        """Begin the rows of the next stage."""
        self.first_row.append(len(self._room))

    def add(self, terms: dict[int, float], fixed_bytes: int) -> None:
        """Add a row of the current stage, `terms` + `fixed_bytes` + what is kept <= budget, unless implied."""
        self.fixed_bytes = max(self.fixed_bytes, fixed_bytes)
        room = self.budget_bytes - fixed_bytes
        for other in range(max(self.first_row[-1], len(self._room) - RECENT_SLOTS), len(self._room)):
            if self._room[other] <= room and _is_at_least(self._local[other], terms):
                return
        self._room.append(room)
        self._local.append(terms)

    def finished(self, kept: Iterable[tuple[int, int, int, int]]) -> MemoryRows:
        """Return the rows that some choice could exceed.

        Args:
            kept: variables, the bytes that each keeps in RAM, the first such stage and the one behind the last.
        """
        count = len(self._room)
        begins = [*self.first_row, count]
        ranges = [(variable, size, begins[first], begins[end]) for variable, size, first, end in kept]
        change = np.zeros(count + 1)
        for _, size, begin, end in ranges:
            change[begin] += size
            change[end] -= size
        most = np.array([sum(size for size in terms.values() if size > 0) for terms in self._local])
        binding = np.cumsum(change)[:count] + most > np.array(self._room)
        place = np.concatenate([[0], np.cumsum(binding)]).tolist()
        rows = np.flatnonzero(binding).tolist()
        spans = (Span(variable, size, place[begin], place[end]) for variable, size, begin, end in ranges)
        return MemoryRows(
            tuple(self._room[row] for row in rows),
            tuple(self._local[row] for row in rows),
            tuple(span for span in spans if span.begin < span.end),
            self.fixed_bytes,
        )


def _is_at_least(terms: dict[int, float], others: dict[int, float]) -> bool:
    """Return whether a sum of variables is never less than another one."""
    if any(terms.get(variable, 0.0) < size for variable, size in others.items()):
        return False
    return all(size >= 0 or variable in others for variable, size in terms.items())


class Ceilings:
    """Rows terms <= high as arrays: those of memory, then others; evaluated all together or variable by variable."""

    def __init__(self, memory: MemoryRows, others: Sequence[Row], variables: int) -> None:
        self.memory_rows = len(memory.room)
        self.high = np.array([*memory.room, *(row.high for row in others)], dtype=np.float64)
        # Seconds are rounded by floating point; bytes are whole numbers, and not one of them may be too many.
        self.limit = self.high + np.minimum(0.5, 1e-9 * np.maximum(1.0, np.abs(self.high)))
        terms = [*memory.local, *(row.terms for row in others)]
        self.row, self.column, self.value = _flat(terms)
        order = np.argsort(self.column, kind="stable")
        self.row, self.column, self.value = self.row[order], self.column[order], self.value[order]
        self.first = np.searchsorted(self.column, np.arange(variables + 1))
        columns = np.array(memory.spans, dtype=np.int64).reshape(-1, 4).T
        self.span_variable, self.span_size, self.span_begin, self.span_end = np.ascontiguousarray(columns)
        self.spans_of: dict[int, list[tuple[float, int, int]]] = {}
        for variable, size, begin, end in memory.spans:
            self.spans_of.setdefault(variable, []).append((float(size), begin, end))

    def activity(self, x: Sequence[float]) -> NDArray[np.float64]:
        """Return the left-hand side of every row."""
        levels = np.asarray(x, dtype=np.float64)
        count = len(self.high)
        waiting = self.span_size * levels[self.span_variable]
        change = np.bincount(self.span_begin, waiting, count + 1) - np.bincount(self.span_end, waiting, count + 1)
        local = np.bincount(self.row, self.value * levels[self.column], count)
        return np.asarray(np.cumsum(change)[:count] + local, dtype=np.float64)

    def holds(self, x: Sequence[float]) -> bool:
        """Return whether every row holds."""
        return bool(np.all(self.activity(x) <= self.limit))

    def excess_bytes(self, x: Sequence[float]) -> float:
        """Return the largest amount by which a memory row is exceeded; at most 0 if all hold."""
        rows = self.memory_rows
        return float(np.max(self.activity(x)[:rows] - self.high[:rows])) if rows else 0.0

    def shift(self, activity: NDArray[np.float64], changes: Mapping[int, float]) -> None:
        """Change variables, by so much each, in the rows' activities."""
        if not changes:
            return
        steps: dict[int, float] = {}
        for variable, by in changes.items():
            for size, begin, end in self.spans_of.get(variable, ()):
                steps[begin] = steps.get(begin, 0.0) + size * by
                steps[end] = steps.get(end, 0.0) - size * by
        # Where a value is kept through one event after another, all but the first and the last step cancel out.
        level = 0.0
        for (begin, step), (end, _) in pairwise(sorted(steps.items())):
            level += step
            if level:
                activity[begin:end] += level
        variables = np.fromiter(changes.keys(), np.int64, len(changes))
        begins = self.first[variables]
        counts = self.first[variables + 1] - begins
        ends = np.cumsum(counts)
        terms = np.arange(ends[-1]) + np.repeat(begins - ends + counts, counts)
        by_term = self.value[terms] * np.repeat(np.fromiter(changes.values(), np.float64, len(changes)), counts)
        activity += np.bincount(self.row[terms], by_term, len(activity))

    def spanning(self, row: int) -> dict[int, float]:
        """Return the variables that may keep bytes in RAM through a row and its neighbours, with these bytes."""
        spans = np.flatnonzero((self.span_begin <= row) & (row < self.span_end))
        return {int(self.span_variable[span]): float(self.span_size[span]) for span in spans}


def _flat(rows: Sequence[dict[int, float]]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return row number, variable and coefficient of every term."""
    row = [number for number, terms in enumerate(rows) for _ in terms]
    column = [variable for terms in rows for variable in terms]
    value = [size for terms in rows for size in terms.values()]
    return np.array(row, dtype=np.int64), np.array(column, dtype=np.int64), np.array(value, dtype=np.float64)


def memory_rows(model: Formulation) -> MemoryRows:
    """Return a row for each slot and node of each stage, but for those that can never bind or that another implies."""
    candidates = model.candidates
    instance = candidates.instance
    always = _always_bytes(candidates)
    builder = _Builder(model.limits.transient_bytes)
    at: list[list[tuple[int, int]]] = [[] for _ in instance.nodes]
    for (value, stage), index in candidates.at.items():
        at[stage].append((value, index))
    for stage, here in enumerate(at):
        builder.begin_stage()
        before, during = always[stage]
        for terms in _slot_terms(model, stage, here):
            builder.add(terms, before)
        terms, own = _node_terms(model, stage, here)
        builder.add(terms, during + own)
    return builder.finished(_kept(model))


def _kept(model: Formulation) -> Iterator[tuple[int, int, int, int]]:
    """Yield the stages between the events of a value, through which it counts while it is retained; tokens always."""
    instance = model.candidates.instance
    if model.paged is not None:
        yield model.paged, TOKEN_BYTES_EACH * model.most_paged, 0, len(instance.nodes)
    for value, events in model.candidates.events.items():
        begin = instance.producer[value] + 1
        for index, event in enumerate(events):
            yield model.retain[value, index], instance.sizes[value], begin, max(begin, event.stage)
            begin = event.stage + 1


def _slot_terms(model: Formulation, stage: int, here: list[tuple[int, int]]) -> Iterator[dict[int, float]]:
    """Yield what else may be in RAM while a unit is recomputed, slot by slot of a stage."""
    candidates = model.candidates
    at_event = {value for value, _ in here}
    changing: dict[int, list[int]] = {}
    for place, (value, index) in enumerate(here):
        for slot in _changes(candidates.events[value][index]):
            changing.setdefault(slot, []).append(place)
    present: list[list[tuple[int, int]]] = [[] for _ in here]
    for slot, number in enumerate(candidates.slots[stage]):
        for place in changing.get(slot, ()):
            value, index = here[place]
            size_bytes = candidates.instance.sizes[value]
            present[place] = [(each, share * size_bytes) for each, share in _present(model, value, index, slot)]
        terms: dict[int, float] = {}
        extra = candidates.units[number].extra_bytes + _unread_bytes(candidates, stage, number, at_event)
        if extra:
            terms[model.recompute[stage, number]] = extra
        for variable, size_bytes in chain.from_iterable(present):
            terms[variable] = terms.get(variable, 0.0) + size_bytes
        yield terms


def _unread_bytes(candidates: Candidates, stage: int, number: int, at_event: set[int]) -> int:
    """Return the bytes of what a unit makes again although nothing reads it any more."""
    unread = (
        value
        for value in candidates.units[number].outputs
        if value not in at_event and candidates.last_alive.get(value, -1) < stage
    )
    return sum(candidates.instance.sizes[value] for value in unread)


def _changes(event: Event) -> set[int]:
    """Return the slots from which on other variables may say whether a value is in RAM at an event (see `_present`)."""
    places = [*event.readers] if event.own is None else [event.own, *event.readers]
    return {0, *places, *(place + 1 for place in places)}


def _node_terms(model: Formulation, stage: int, here: list[tuple[int, int]]) -> tuple[dict[int, float], int]:
    """Return what else may be in RAM while a stage's node runs, and the bytes of managed values that must be."""
    candidates = model.candidates
    instance = candidates.instance
    terms: dict[int, float] = {}
    last_needed = _last_needed(candidates, stage)
    own = instance.workspace[stage] - instance.shared_bytes(stage, last_needed)
    own += sum(instance.sizes[value] for value in instance.writes[stage] if value in candidates.events)
    taken_over = _taken_over_if_not_retained(instance, stage, last_needed)
    for value, index in here:
        retained = model.retain.get((value, index + 1))
        if candidates.events[value][index].main:
            own += instance.sizes[value]
            if retained is not None and value in taken_over:
                own -= taken_over[value]
                terms[retained] = taken_over[value]
        elif retained is not None:
            terms[retained] = instance.sizes[value]
    return terms, own


def _present(model: Formulation, value: int, index: int, slot: int) -> list[tuple[int, int]]:
    """Return variables, each with its sign, whose sum is 1 while a value is in RAM at a slot of one of its events."""
    event = model.candidates.events[value][index]
    arrived = [(model.retain[value, index], 1)]
    own = [] if event.rerun is None else [(model.recompute[event.rerun], 1)]
    fetchable = (value, index, 0) in model.fetched
    read = [place for place, reader in enumerate(event.readers) if reader <= slot][-1:]
    fetched = [(model.fetched[value, index, place], 1) for place in read if fetchable]
    start = event.own if event.own is not None else min(event.readers, default=slot)
    if event.main:
        return arrived + (own if event.own is not None and slot >= event.own else []) + fetched
    if slot < start:
        return arrived
    if slot == event.own and (not event.readers or fetchable):
        # What its unit makes is there for a moment, even where a page-in brings it again for a later reader.
        return arrived + own
    for place, reader in enumerate(event.readers):
        if reader >= slot:
            counted = [(model.needed[value, index, place], 1)]
            if fetchable:
                counted.append((model.page_in[value, index], -1))
            return counted + fetched
    following = model.retain.get((value, index + 1))
    return [] if following is None else [(following, 1)]


def _always_bytes(candidates: Candidates) -> list[tuple[int, int]]:
    """Return, for each stage, the bytes of unmanaged values: before its node, and while it runs."""
    instance = candidates.instance
    count = len(instance.nodes)
    before, during = ([0] * (count + 1) for _ in range(2))
    for value, last in candidates.last_alive.items():
        made, end = instance.producer[value], min(last, count - 1)
        during[made] += instance.sizes[value]
        during[end + 1] -= instance.sizes[value]
        if end > made:
            before[made + 1] += instance.sizes[value]
            before[end + 1] -= instance.sizes[value]
    return list(zip(accumulate(before), accumulate(during), strict=True))


def _last_needed(candidates: Candidates, stage: int) -> list[int]:
    """Return the last stage at which what a stage's node reads may be needed, -1 for all else.

    Outputs certainly take over inputs that are needed no more.
    """
    instance = candidates.instance
    last_needed = [-1] * len(instance.values)
    for value in instance.reads[stage]:
        events = candidates.events.get(value)
        last_needed[value] = events[-1].stage if events else candidates.last_alive[value]
    return last_needed


def _taken_over_if_not_retained(instance: Instance, stage: int, last_needed: Sequence[int]) -> dict[int, int]:
    """Return the inputs that an output takes over where they do not stay for a later event, with the bytes it saves.

    What is paged in or made again later leaves its buffer to the output meanwhile. Which output takes which input must
    not depend on what else stays: inputs that several outputs could take are left out, and so is every other input of
    an output.
    """
    pairs = instance.inplace[stage]
    choices = Counter(read for read, _ in pairs)
    taking = {written for read, written in pairs if last_needed[read] == stage}
    found: dict[int, int] = {}
    for read, written in pairs:
        if last_needed[read] > stage and choices[read] == 1 and written not in taking:
            taking.add(written)
            found[read] = instance.sizes[written]
    return found
