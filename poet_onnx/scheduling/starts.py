"""Feasible schedules without branching: what a plan brings back, or what the solution of a relaxation mostly does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.plan import Step
from poet_onnx.scheduling.formulation import Formulation, Supplies
from poet_onnx.scheduling.search import fitted
from poet_onnx.scheduling.steps import supplies_of

SHARES_KEPT = (0.1, 0.3, 0.5, 0.7, 0.9, 0.999)
"""How much of a value a relaxation must keep in RAM, for it to be kept; the first that fits is taken."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A value's wait between two nodes that read it (or its producer and the first): kept in RAM or supplied anew.

    Attributes:
        value: its number.
        first, last: indices of the events after the wait's start, up to the one that ends it.
        length: stages from start to end.
    """

    value: int
    first: int
    last: int
    length: int


def start_from(model: Formulation, steps: Sequence[Step]) -> list[float] | None:
    """Return an assignment that brings back what a plan brings back, as far as the model has a variable for that.

    What it has none for stays in RAM, for which others may have to leave.

    Args:
        model: what to assign; the rows of time may be exceeded.
        steps: of a plan in the model's order, wherever its transfers stand.
    """
    return fitted(model, model.complete(supplies_of(model, steps)))


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
    gaps = _gaps(model)
    ceilings = model.ceilings()
    kept = {
        gap: min(levels[model.retain[gap.value, index]] for index in range(gap.first, gap.last + 1)) for gap in gaps
    }
    forced = {gap for gap in gaps if _must_stay(model, gap)}
    for share in SHARES_KEPT:
        x = _Decisions(model, forced | {gap for gap in gaps if kept[gap] >= share}, levels).assignment()
        if x is not None and ceilings.excess_bytes(x) <= 0:
            return x
    return None


def _gaps(model: Formulation) -> list[Gap]:
    gaps = []
    for value, events in model.candidates.events.items():
        start, begin = 0, model.candidates.instance.producer[value]
        for index, event in enumerate(events):
            if event.main:
                gaps.append(Gap(value, start, index, event.stage - begin))
                start, begin = index + 1, event.stage
    return gaps


def _must_stay(model: Formulation, gap: Gap) -> bool:
    event = model.candidates.events[gap.value][gap.last]
    return (gap.value, gap.last) not in model.page_in and event.own is None


@dataclass(frozen=True)
class _Decisions:
    """Which gaps are kept in RAM; the others are ended by a page-in, or by recompute where paging is not possible.

    Where both are possible, the levels of a relaxation say which of them.
    """

    model: Formulation
    retained: set[Gap]
    levels: Sequence[float]

    def assignment(self) -> list[float] | None:
        """Return values for all variables, or None where a recompute lacks an input that nothing can supply."""
        kept = {(gap.value, index) for gap in self.retained for index in range(gap.first, gap.last + 1)}
        recomputed: set[tuple[int, int]] = set()
        paged_in: set[tuple[int, int]] = set()
        for gap in _gaps(self.model):
            if (gap.value, gap.last) in kept:
                continue
            if not self._supply(gap.value, gap.last, kept, recomputed, paged_in):
                return None
        supplies = Supplies(frozenset(recomputed), frozenset(paged_in))
        return self.model.complete(self.model.useful(supplies))

    def _supply(
        self,
        value: int,
        index: int,
        kept: set[tuple[int, int]],
        recomputed: set[tuple[int, int]],
        paged_in: set[tuple[int, int]],
    ) -> bool:
        """Supply a value at one of its events, recomputing the chain of units behind it as far as is needed."""
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
