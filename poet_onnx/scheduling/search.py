"""Local search: from a feasible schedule to a cheap one, a supply at a time, in milliseconds instead of LP solves.

A supply ends a value's absence at one of its events, by page-in or by recompute. A move replaces one supply by another
or by keeping the value in RAM; only the variables of the few values concerned change, and only their memory rows are
looked at.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from poet_onnx.scheduling.formulation import Formulation, Supplies

LONGEST_CHAIN = 12
"""Units that one move may recompute for one reader."""


def improve(model: Formulation, x: list[float], *, time_limit_seconds: float) -> list[float]:
    """Return an assignment that is at least as cheap as a feasible one, and feasible."""
    search = _Search(model, x)
    deadline = time.monotonic() + time_limit_seconds
    while search.descend(deadline):
        pass
    return search.x


class _Search:
    def __init__(self, model: Formulation, x: list[float]) -> None:
        self.model = model
        self.x = list(x)
        supplies = model.supplies(x)
        self.recomputed = set(supplies.recomputed)
        self.paged_in = set(supplies.paged_in)
        self.at = {
            (value, event.stage): index
            for value, events in model.candidates.events.items()
            for index, event in enumerate(events)
        }
        self.ceilings = model.ceilings()
        self.activity = self.ceilings.activity(self.x)

    def descend(self, deadline: float) -> bool:
        """Try every move once, the dearest supply first; return whether anything became cheaper."""
        better = False
        for value, index in sorted(self._supplied(), key=lambda key: (-self._price(*key), key)):
            if time.monotonic() > deadline:
                return False
            if self._is_supplied(value, index):
                better |= any(self._try(*move) for move in self._moves(value, index))
        return better

    def _supplied(self) -> list[tuple[int, int]]:
        made = [
            (value, self.at[value, stage])
            for stage, number in self.recomputed
            for value in self.model.candidates.units[number].outputs
            if (value, stage) in self.at
        ]
        return [*self.paged_in, *made]

    def _is_supplied(self, value: int, index: int) -> bool:
        return (value, index) in self.paged_in or self._own(value, index) in self.recomputed

    def _own(self, value: int, index: int) -> tuple[int, int] | None:
        event = self.model.candidates.events[value][index]
        if event.own is None:
            return None
        return event.stage, self.model.candidates.slots[event.stage][event.own]

    def _price(self, value: int, index: int) -> float:
        model = self.model
        if (value, index) in self.paged_in:
            others = sum(1 for other in self.paged_in if other[0] == value)
            return model.cost[model.page_in[value, index]] + model.cost[model.page_out[value]] / others
        own = self._own(value, index)
        return 0.0 if own is None else model.cost[model.recompute[own]]

    def _moves(self, value: int, index: int) -> Iterator[tuple[Supplies, Supplies]]:
        """Yield (supplies to add, supplies to drop) that end the value's absence in another way."""
        own = self._own(value, index)
        nothing = Supplies(frozenset(), frozenset())
        if (value, index) in self.paged_in:
            paged = Supplies(frozenset(), frozenset({(value, index)}))
            yield nothing, paged
            if own is not None:
                for thrifty in (True, False):
                    chain = self._chain(own, thrifty)
                    if chain is not None:
                        yield chain, paged
        elif own is not None:
            remade = Supplies(frozenset({own}), frozenset())
            yield nothing, remade
            if (value, index) in self.model.page_in:
                yield Supplies(frozenset(), frozenset({(value, index)})), remade

    def _chain(self, own: tuple[int, int], thrifty: bool) -> Supplies | None:
        """Return what recomputes a unit: its inputs are kept in RAM until then, or supplied in the cheaper way.

        Args:
            own: stage and unit.
            thrifty: keep the inputs, which costs memory; otherwise supply those that are not there.
        """
        model, stage = self.model, own[0]
        recomputed, paged_in = {own}, set()
        stack = [own[1]]
        while stack:
            for value in model.candidates.units[stack.pop()].inputs:
                index = self.at[value, stage]
                if thrifty or self.x[model.retain[value, index]] > 0.5 or self._is_supplied(value, index):
                    continue
                maker = self._own(value, index)
                page = model.page_in.get((value, index))
                price = float("inf") if page is None else model.cost[page]
                if page is not None and self.x[model.page_out[value]] < 0.5:
                    price += model.cost[model.page_out[value]]
                if maker is not None and model.cost[model.recompute[maker]] < price:
                    if maker not in recomputed:
                        recomputed.add(maker)
                        stack.append(maker[1])
                elif page is not None:
                    paged_in.add((value, index))
            if len(recomputed) > LONGEST_CHAIN:
                return None
        return Supplies(frozenset(recomputed), frozenset(paged_in))

    def _try(self, added: Supplies, dropped: Supplies) -> bool:
        """Make a move if the result is feasible and cheaper."""
        before = (set(self.recomputed), set(self.paged_in))
        self.recomputed = (self.recomputed - dropped.recomputed) | added.recomputed
        self.paged_in = (self.paged_in - dropped.paged_in) | added.paged_in
        touched = self._touched(added) | self._touched(dropped)
        stage = self._stage(added if added.recomputed or added.paged_in else dropped)
        touched |= self._prune(stage)
        changes = self._changes(touched, stage)
        saved = sum(self.model.cost[variable] * (self.x[variable] - level) for variable, level in changes.items())
        if saved > 1e-12 and self._change(changes):
            return True
        self.recomputed, self.paged_in = before
        return False

    def _stage(self, supplies: Supplies) -> int:
        for stage, _ in supplies.recomputed:
            return stage
        value, index = next(iter(supplies.paged_in))
        return self.model.candidates.events[value][index].stage

    def _touched(self, supplies: Supplies) -> set[int]:
        units = self.model.candidates.units
        values = {value for value, _ in supplies.paged_in}
        for _, number in supplies.recomputed:
            values.update(units[number].inputs, units[number].outputs)
        return values

    def _prune(self, stage: int) -> set[int]:
        """Drop supplies of a stage that nothing needs any more; return the values concerned."""
        candidates = self.model.candidates
        touched: set[int] = set()
        for number in reversed(candidates.slots[stage]):
            unit = candidates.units[number]
            if (stage, number) in self.recomputed and not any(self._used(value, stage) for value in unit.outputs):
                self.recomputed.discard((stage, number))
                touched.update(unit.inputs, unit.outputs)
        for value in list(touched):
            index = self.at.get((value, stage))
            if index is not None and (value, index) in self.paged_in and not self._used(value, stage):
                self.paged_in.discard((value, index))
        return touched

    def _used(self, value: int, stage: int) -> bool:
        index = self.at.get((value, stage))
        if index is None:
            return False
        event = self.model.candidates.events[value][index]
        slots = self.model.candidates.slots[stage]
        following = self.model.retain.get((value, index + 1))
        return (
            event.main
            or (following is not None and self.x[following] > 0.5)
            or any((stage, slots[slot]) in self.recomputed for slot in event.readers)
        )

    def _changes(self, values: set[int], stage: int) -> dict[int, float]:
        """Return the variables of some values, and of a stage's recomputes, that have other levels now."""
        model = self.model
        supplies = Supplies(frozenset(self.recomputed), frozenset(self.paged_in))
        levels: dict[int, float] = {
            model.recompute[stage, number]: float((stage, number) in self.recomputed)
            for number in model.candidates.slots[stage]
        }
        for value in values & model.candidates.events.keys():
            paged = False
            for index, retained, needed, _ in model.walk_back(value, supplies):
                levels[model.retain[value, index]] = float(retained)
                for place, flag in enumerate(needed):
                    if (value, index, place) in model.needed:
                        levels[model.needed[value, index, place]] = float(flag)
                if (value, index) in model.page_in:
                    levels[model.page_in[value, index]] = float((value, index) in self.paged_in)
                    paged = paged or (value, index) in self.paged_in
            if value in model.page_out:
                levels[model.page_out[value]] = float(paged)
            if value in model.leaving:
                levels[model.leaving[value]] = max(levels[model.retain[value, 0]], float(paged))
        return {variable: level for variable, level in levels.items() if level != self.x[variable]}

    def _change(self, levels: dict[int, float]) -> bool:
        """Set variables to new levels if all rows still hold; otherwise leave all as it was."""
        steps = [(variable, level - self.x[variable]) for variable, level in levels.items()]
        # What becomes free first: a row counts as exceeded only if it is so when all is done.
        steps.sort(key=lambda step: step[1])
        done = 0
        for variable, by in steps:
            done += 1
            if not self.ceilings.shift(self.activity, variable, by):
                break
        else:
            for variable, level in levels.items():
                self.x[variable] = level
            return True
        for variable, by in steps[:done]:
            self.ceilings.shift(self.activity, variable, -by)
        return False
