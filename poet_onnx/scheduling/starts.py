"""Feasible assignments without branching: what a plan brings back, or what the solution of a relaxation mostly does.

They may exceed rows of time, and that of bytes written, which is treated as one of them. Local search that may not
exceed one is soon stuck, for whatever saves energy takes time elsewhere first. So the seconds of all rows of time are
charged for, at a price that rises until keeping the rows is the cheaper way (a Lagrangian relaxation); between the last
two prices a better one is looked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poet_onnx.plan import Step
from poet_onnx.scheduling.local_search import MOST_CHANGES, fitted, improve
from poet_onnx.scheduling.memory_rows import Ceilings, Row
from poet_onnx.scheduling.model import Formulation, Restores
from poet_onnx.scheduling.steps import restores_of

SHARES_KEPT = (0.1, 0.3, 0.5, 0.7, 0.9, 0.999)
"""How much of a value a relaxation must keep in RAM, for it to be kept; the first that fits is taken."""

FIRST_PRICE = 1 / 16
"""Of the price at which all that the rows could hold costs as much as all that the model could spend."""

PRICE_RISE = 4.0

MOST_RISES = 7

BISECTIONS = 3
"""Prices between one that is too low and one that is not."""

SHARE_PER_RISE, SHARE_BETWEEN = 1 / 40, 1 / 8
"""Of all changes of restores, at each price; those of the bisection find the better plans."""


@dataclass(frozen=True, slots=True)
class RetentionInterval:
    """A value's interval between two nodes that read it (or its producer and the first): kept in RAM or restored anew.

    Attributes:
        value: its number.
        first, last: indices of the events after the interval's start, up to the one that ends it.
    """

    value: int
    first: int
    last: int


def start_from(model: Formulation, steps: Sequence[Step]) -> list[float] | None:
    """Return an assignment that brings back what a plan brings back, as far as the model has a variable for that.

    What it has none for stays in RAM, for which others may have to leave.

    Args:
        model: what to assign; the rows of time may be exceeded.
        steps: of a plan in the model's order, wherever its transfers stand.
    """
    return fitted(model, model.complete(restores_of(model, steps)))


def paged_start(model: Formulation) -> list[float] | None:
    """Return the assignment that keeps in RAM only what it must, or all there is, or None if neither fits."""
    starts = (rounded_start(model, [level] * len(model.cost)) for level in (0.0, 1.0))
    return next((start for start in starts if start is not None), None)


def rounded_start(model: Formulation, levels: Sequence[float]) -> list[float] | None:
    """Return an assignment near a solution of the relaxation, or None if none was found.

    Args:
        model: what to assign; the rows of time may be exceeded.
        levels: of all variables in the relaxation.
    """
    intervals = _intervals(model)
    ceilings = model.ceilings()
    kept = {
        interval: min(levels[model.retain[interval.value, index]] for index in range(interval.first, interval.last + 1))
        for interval in intervals
    }
    forced = {interval for interval in intervals if _must_stay(model, interval)}
    for share in SHARES_KEPT:
        x = _Decisions(
            model, forced | {interval for interval in intervals if kept[interval] >= share}, levels
        ).assignment()
        if x is not None and ceilings.excess_bytes(x) <= 0:
            return x
    return None


def _intervals(model: Formulation) -> list[RetentionInterval]:
    intervals = []
    for value, events in model.candidates.events.items():
        start = 0
        for index, event in enumerate(events):
            if event.main:
                intervals.append(RetentionInterval(value, start, index))
                start = index + 1
    return intervals


def _must_stay(model: Formulation, interval: RetentionInterval) -> bool:
    event = model.candidates.events[interval.value][interval.last]
    return (interval.value, interval.last) not in model.page_in and event.own is None


@dataclass(frozen=True)
class _Decisions:
    """Which intervals are kept in RAM; the others are ended by a page-in, or by recompute where paging is not possible.

    Where both are possible, the levels of a relaxation say which of them.
    """

    model: Formulation
    retained: set[RetentionInterval]
    levels: Sequence[float]

    def assignment(self) -> list[float] | None:
        """Return values for all variables, or None where a recompute lacks an input that nothing can restore."""
        kept = {
            (interval.value, index) for interval in self.retained for index in range(interval.first, interval.last + 1)
        }
        recomputed: set[tuple[int, int]] = set()
        paged_in: set[tuple[int, int]] = set()
        for interval in _intervals(self.model):
            if (interval.value, interval.last) in kept:
                continue
            if not self._restore(interval.value, interval.last, kept, recomputed, paged_in):
                return None
        restores = Restores(frozenset(recomputed), frozenset(paged_in))
        return self.model.complete(self.model.useful(restores))

    def _restore(
        self,
        value: int,
        index: int,
        kept: set[tuple[int, int]],
        recomputed: set[tuple[int, int]],
        paged_in: set[tuple[int, int]],
    ) -> bool:
        """Restore a value at one of its events, recomputing the chain of units behind it as far as is needed."""
        candidates = self.model.candidates
        stack = [(value, index)]
        while stack:
            value, index = stack.pop()
            if (value, index) in kept or (value, index) in paged_in:
                continue
            event = candidates.events[value][index]
            if self._is_paged_in(value, index):
                paged_in.add((value, index))
                continue
            if event.own is None:
                previous = candidates.events[value][index - 1] if index else None
                if previous is None or previous.main:
                    kept.add((value, index))
                    continue
                return False
            number = candidates.slots[event.stage][event.own]
            if (event.stage, number) in recomputed:
                continue
            recomputed.add((event.stage, number))
            for needed in candidates.units[number].inputs:
                stack.append((needed, self._event_at(needed, event.stage)))
        return True

    def _is_paged_in(self, value: int, index: int) -> bool:
        page_in = self.model.page_in.get((value, index))
        event = self.model.candidates.events[value][index]
        own = self.model.own(event.stage, event)
        if page_in is None or own is None:
            return page_in is not None
        return self.levels[page_in] >= self.levels[own]

    def _event_at(self, value: int, stage: int) -> int:
        events = self.model.candidates.events[value]
        return next(index for index, event in enumerate(events) if event.stage == stage)


def improve_in_time(
    model: Formulation,
    start: list[float],
    *,
    time_limit_seconds: float,
    seed: int = 0,
    most_changes: int = MOST_CHANGES,
) -> list[float] | None:
    """Return a cheap assignment that satisfies all rows, or None if none was found.

    Args:
        model: with its rows of time.
        start: satisfies all rows but, perhaps, those of time.
        time_limit_seconds: a guard; what is done is counted.
        seed: of the local search.
        most_changes: of restores, without a price and once it is in time.
    """
    search = _Search(model, model.ceilings(), time.monotonic() + time_limit_seconds, seed, most_changes)
    x = search.improved(start, 0.0)
    if not search.is_late(x):
        return x
    timely = [one for one in (search.timely(x), start) if one is not None and not search.is_late(one)]
    best = min(timely, key=model.joules, default=None)
    if best is None:
        return None
    return improve(model, best, time_limit_seconds=search.left, seed=seed, most_changes=most_changes)


def _level(rows: Sequence[Row]) -> float:
    """Return what rows could hold if every variable counted."""
    return sum(abs(term) for row in rows for term in row.terms.values())


@dataclass
class _Search:
    """Local search at prices for the rows of time.

    Attributes:
        model: with its rows of time.
        ceilings: of the model.
        end: when to stop.
        seed: of the local search.
        most_changes: of restores, without a price.
    """

    model: Formulation
    ceilings: Ceilings
    end: float
    seed: int
    most_changes: int

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.end - time.monotonic())

    def improved(self, x: list[float], price: float, share: float = 1.0) -> list[float]:
        """Return a cheaper assignment at a price, in joules, for each second in a row of time."""
        cost = list(self.model.cost)
        for row, factor in self._rows():
            for variable, term in row.terms.items():
                cost[variable] += price * factor * term
        priced = replace(self.model, cost=cost, time=[], moved=[])
        most_changes = int(share * self.most_changes)
        return improve(priced, x, time_limit_seconds=self.left, seed=self.seed, most_changes=most_changes)

    def _rows(self) -> Iterator[tuple[Row, float]]:
        """Yield the rows that are charged for, each with what its unit is in seconds.

        All that could be written is charged for as all the time that could be spent, where there is a deadline.
        """
        for row in self.model.time:
            yield row, 1.0
        for row in self.model.moved:
            yield row, (_level(self.model.time) or 1.0) / _level([row])

    def is_late(self, x: Sequence[float]) -> bool:
        """Return whether an assignment exceeds a row of time or of bytes written."""
        return bool((self.ceilings.activity(x) > self.ceilings.limit)[self.ceilings.memory_rows :].any())

    def timely(self, late: list[float]) -> list[float] | None:
        """Return the cheapest assignment found that exceeds no row of time."""
        seconds = sum(factor * _level([row]) for row, factor in self._rows())
        low, price = 0.0, FIRST_PRICE * sum(self.model.cost) / seconds
        for _ in range(MOST_RISES):
            found = self.improved(late, price, SHARE_PER_RISE)
            if not self.is_late(found):
                return self._between(low, price, late, found)
            late, low, price = found, price, price * PRICE_RISE
        return None

    def _between(self, low: float, high: float, late: list[float], timely: list[float]) -> list[float]:
        """Return the cheapest timely assignment at prices between that of a late one and that of a timely one."""
        best = timely
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            found = [self.improved(start, middle, SHARE_BETWEEN) for start in (late, timely)]
            kept = [x for x in found if not self.is_late(x)]
            if kept:
                timely, high = min(kept, key=self.model.joules), middle
                best = min(best, timely, key=self.model.joules)
            else:
                late, low = found[0], middle
        return best
