"""Rows (4) of the model, bytes in RAM <= budget, kept as what they are: values that wait through a range of rows.

A value that waits in RAM is in every row from one of its events to the next, so that a thousand-node model has millions
of terms but only thousands of ranges. Sums over rows are made from the ranges; terms are written out for SCIP alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

RECENT_SLOTS = 8
"""Rows of the same stage that a row is compared with, to drop it if it is implied."""


@dataclass
class Row:
    """low <= sum coefficient * variable <= high; a missing side is None."""

    terms: dict[int, float]
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
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


@dataclass
class MemoryBuilder:
    """Collects rows stage by stage.

    Attributes:
        budget_bytes: right-hand side before what is always there is taken off.
        first_row: number of the first row of each stage begun so far.
    """

    budget_bytes: int
    first_row: list[int] = field(default_factory=list)
    _room: list[float] = field(default_factory=list)
    _local: list[dict[int, float]] = field(default_factory=list)
    _waits: list[tuple[int, int, int, int]] = field(default_factory=list)
    _fixed_bytes: int = 0

    def begin_stage(self) -> None:
        """Begin the rows of the next stage."""
        self.first_row.append(len(self._room))

    def add(self, terms: dict[int, float], fixed_bytes: int) -> None:
        """Add a row of the current stage, `terms` + `fixed_bytes` + what waits <= budget, unless one implies it."""
        self._fixed_bytes = max(self._fixed_bytes, fixed_bytes)
        room = self.budget_bytes - fixed_bytes
        for other in range(max(self.first_row[-1], len(self._room) - RECENT_SLOTS), len(self._room)):
            if self._room[other] <= room and _is_at_least(self._local[other], terms):
                return
        self._room.append(room)
        self._local.append(terms)

    def wait(self, variable: int, size_bytes: int, first_stage: int, end_stage: int) -> None:
        """Count a variable's bytes in all rows of the stages from `first_stage` up to, not including, `end_stage`."""
        if first_stage < end_stage:
            self._waits.append((variable, size_bytes, first_stage, end_stage))

    def finish(self) -> MemoryRows:
        """Return the rows that some choice could exceed."""
        count = len(self._room)
        begins = [*self.first_row, count]
        change = np.zeros(count + 1)
        for _, size, first, end in self._waits:
            change[begins[first]] += size
            change[begins[end]] -= size
        most = np.cumsum(change)[:count] + np.array([_most(terms) for terms in self._local])
        kept = most > np.array(self._room)
        place = np.concatenate([[0], np.cumsum(kept)])
        spans = (
            Span(variable, size, int(place[begins[first]]), int(place[begins[end]]))
            for variable, size, first, end in self._waits
        )
        return MemoryRows(
            tuple(room for room, keep in zip(self._room, kept, strict=True) if keep),
            tuple(terms for terms, keep in zip(self._local, kept, strict=True) if keep),
            tuple(span for span in spans if span.begin < span.end),
            self._fixed_bytes,
        )


def _is_at_least(terms: dict[int, float], others: dict[int, float]) -> bool:
    """Return whether a sum of variables is never less than another one."""
    if any(terms.get(variable, 0.0) < size for variable, size in others.items()):
        return False
    return all(size >= 0 or variable in others for variable, size in terms.items())


def _most(terms: dict[int, float]) -> float:
    return sum(size for size in terms.values() if size > 0)


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
        self.span_variable = np.array([span.variable for span in memory.spans], dtype=np.int64)
        self.span_size = np.array([span.size_bytes for span in memory.spans], dtype=np.float64)
        self.span_begin = np.array([span.begin for span in memory.spans], dtype=np.int64)
        self.span_end = np.array([span.end for span in memory.spans], dtype=np.int64)
        self.spans_of: dict[int, list[tuple[float, int, int]]] = {}
        for span in memory.spans:
            self.spans_of.setdefault(span.variable, []).append((float(span.size_bytes), span.begin, span.end))

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


def _flat(rows: Iterable[dict[int, float]]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return row number, variable and coefficient of every term."""
    row = [number for number, terms in enumerate(rows) for _ in terms]
    rows = list(rows)
    column = [variable for terms in rows for variable in terms]
    value = [size for terms in rows for size in terms.values()]
    return np.array(row, dtype=np.int64), np.array(column, dtype=np.int64), np.array(value, dtype=np.float64)
