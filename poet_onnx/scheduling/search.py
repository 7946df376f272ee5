"""Local search: from a feasible schedule to a cheap one, a supply at a time, in milliseconds instead of LP solves.

A supply ends a value's absence at one of its events, by page-in or by recompute. A move replaces one supply by another
or by keeping the value in RAM; only the variables of the few values concerned change, and only their memory rows are
looked at.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from poet_onnx.scheduling.formulation import Formulation, Supplies

MOST_EJECTIONS = 6
"""Values that one move may send out of RAM to make room for another."""

MOST_PRICED = 6
"""Values that are looked at closely before one is ejected."""

MOST_SHAKES = 400
SHAKES_IN_VAIN = 120
"""Disturbances in all, and in a row without any success, after which the search ends."""

TIGHT = 0.9
"""Share of the budget from which on a memory row is worth disturbing."""

LONGEST_CHAIN = 12
"""Units that one move may recompute for one reader."""


def improve(model: Formulation, x: list[float], *, time_limit_seconds: float, seed: int = 0) -> list[float]:
    """Return an assignment that is at least as cheap as a feasible one, and feasible.

    When no move helps any more, values are sent out of RAM at random in one place and the moves around it tried again,
    many times over; what is not better is taken back.
    """
    search = _Search(model, x)
    deadline = time.monotonic() + time_limit_seconds
    while search.descend(deadline):
        pass
    search.shake(random.Random(seed), deadline)
    return search.x


@dataclass
class _Before:
    """What a move has changed: supplies as they were, and the former levels of variables."""

    recomputed: set[tuple[int, int]]
    paged_in: set[tuple[int, int]]
    levels: dict[int, float]


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
        self.retained = {variable: key for key, variable in model.retain.items()}
        self.ceilings = model.ceilings()
        self.activity = self.ceilings.activity(self.x)
        self.costs = np.asarray(model.cost)
        self.cheapest = _cheapest_supplies(model)

    def descend(self, deadline: float) -> bool:
        """Try every move once, the dearest supply first; return whether anything became cheaper."""
        better = False
        for value, index in sorted(self._supplied(), key=lambda key: (-self._price(*key), key)):
            if time.monotonic() > deadline:
                return False
            if self._is_supplied(value, index):
                better |= any(self._try(*move) for move in self._moves(value, index))
        return better

    def shake(self, rng: random.Random, deadline: float) -> None:
        """Disturb the schedule in one place after another, and keep what comes out cheaper."""
        in_vain = 0
        for _ in range(MOST_SHAKES):
            rows = slice(self.ceilings.memory_rows)
            tight = np.flatnonzero(self.activity[rows] > TIGHT * self.ceilings.limit[rows])
            if not len(tight) or in_vain >= SHAKES_IN_VAIN or time.monotonic() > deadline:
                return
            in_vain = 0 if self._shake_at(int(tight[rng.randrange(len(tight))]), rng) else in_vain + 1

    def _shake_at(self, row: int, rng: random.Random) -> bool:
        """Send values out of RAM at a memory row, try the moves of all that is away there; return whether it helped."""
        before = (self.x[:], self.activity.copy(), set(self.recomputed), set(self.paged_in))
        cost = self._cost()
        there = [variable for variable in self.ceilings.spanning(row) if self.x[variable] > 0.5]
        waiting = [self.retained[variable] for variable in there if variable in self.retained]
        journal = _Before(set(), set(), {})
        for value, index in rng.sample(waiting, min(len(waiting), rng.randint(1, 4))):
            supply = self._supply(value, self._next_use(value, index))
            if supply is not None:
                self._put(supply, Supplies(frozenset(), frozenset()), journal)
        if not (self.activity > self.ceilings.limit).any():
            away = self._away(row)
            away.sort(key=lambda key: (-self._price(*key) * rng.uniform(0.5, 1.0), key))
            for value, index in away:
                if self._is_supplied(value, index):
                    any(self._try(*move) for move in self._moves(value, index))
            if self._cost() < cost - 1e-12:
                return True
        self.x, self.activity, self.recomputed, self.paged_in = before
        return False

    def _away(self, row: int) -> list[tuple[int, int]]:
        """Return the supplies that end an absence which reaches over a memory row."""
        away = []
        for variable in self.ceilings.spanning(row):
            if self.x[variable] > 0.5 or variable not in self.retained:
                continue
            value, index = self.retained[variable]
            last = len(self.model.candidates.events[value]) - 1
            while index < last and not self._is_supplied(value, index):
                index += 1
            if self._is_supplied(value, index):
                away.append((value, index))
        return away

    def _cost(self) -> float:
        return float(self.costs @ np.asarray(self.x))

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
        """Make a move if the result is cheaper and feasible, values in its way being ejected from RAM."""
        before = _Before(set(self.recomputed), set(self.paged_in), {})
        busy = self._touched(added) | self._touched(dropped)
        self._put(added, dropped, before)
        for _ in range(MOST_EJECTIONS + 1):
            if self._saved(before) <= 1e-12:
                break
            excess = self.activity - self.ceilings.limit
            row = int(np.argmax(excess)) if len(excess) else 0
            if not len(excess) or excess[row] <= 0:
                return True
            ejection = self._ejection(row, float(excess[row]), busy)
            if ejection is None:
                break
            busy |= self._touched(ejection)
            self._put(ejection, Supplies(frozenset(), frozenset()), before)
        self._take_back(before)
        return False

    def _put(self, added: Supplies, dropped: Supplies, before: _Before) -> None:
        """Change supplies and all variables that follow from them, whatever the rows say."""
        self.recomputed = (self.recomputed - dropped.recomputed) | added.recomputed
        self.paged_in = (self.paged_in - dropped.paged_in) | added.paged_in
        stage = self._stage(added if added.recomputed or added.paged_in else dropped)
        touched = self._touched(added) | self._touched(dropped)
        touched |= self._prune(stage)
        for variable, level in self._changes(touched, stage).items():
            before.levels.setdefault(variable, self.x[variable])
            self.ceilings.shift(self.activity, variable, level - self.x[variable])
            self.x[variable] = level

    def _saved(self, before: _Before) -> float:
        return sum(self.model.cost[variable] * (level - self.x[variable]) for variable, level in before.levels.items())

    def _take_back(self, before: _Before) -> None:
        for variable, level in before.levels.items():
            if level != self.x[variable]:
                self.ceilings.shift(self.activity, variable, level - self.x[variable])
                self.x[variable] = level
        self.recomputed, self.paged_in = before.recomputed, before.paged_in

    def _ejection(self, row: int, excess_bytes: float, busy: set[int]) -> Supplies | None:
        """Return the supplies that replace keeping a value in RAM through a memory row, the cheapest for its bytes."""
        ranked = []
        for variable, size in self.ceilings.spanning(row).items():
            key = self.retained.get(variable)
            if key is not None and key[0] not in busy and self.x[variable] > 0.5:
                bytes_helping = min(size, excess_bytes)
                ranked.append((self.cheapest.get(key[0], 0.0) / bytes_helping, key, bytes_helping))
        best: tuple[float, Supplies] | None = None
        for _, (value, index), bytes_helping in heapq.nsmallest(MOST_PRICED, ranked):
            supply = self._supply(value, self._next_use(value, index))
            if supply is None:
                continue
            price = self._price_of(supply) / bytes_helping
            if best is None or price < best[0]:
                best = price, supply
        return None if best is None else best[1]

    def _next_use(self, value: int, index: int) -> int:
        """Return the first event, at or behind one that a value is retained into, that needs the value itself."""
        events = self.model.candidates.events[value]
        while not self._read_at(value, index) and index + 1 < len(events):
            index += 1
        return index

    def _read_in(self, value: int, stage: int) -> bool:
        """Return whether a stage itself needs a value; what only later stages need is not supplied there."""
        index = self.at.get((value, stage))
        return index is not None and self._read_at(value, index)

    def _read_at(self, value: int, index: int) -> bool:
        event = self.model.candidates.events[value][index]
        slots = self.model.candidates.slots[event.stage]
        return event.main or any((event.stage, slots[slot]) in self.recomputed for slot in event.readers)

    def _supply(self, value: int, index: int) -> Supplies | None:
        """Return the cheapest way to supply a value at one of its events, if there is one."""
        page = Supplies(frozenset(), frozenset({(value, index)})) if (value, index) in self.model.page_in else None
        own = self._own(value, index)
        if own is None:
            return page
        if page is not None and self._price_of(page) <= self.model.cost[self.model.recompute[own]]:
            return page
        chain = self._chain(own, thrifty=False)
        if chain is None or (page is not None and self._price_of(page) <= self._price_of(chain)):
            return page
        return chain

    def _price_of(self, supplies: Supplies) -> float:
        """Return what supplies cost that are not there yet."""
        model = self.model
        price = sum(model.cost[model.recompute[key]] for key in supplies.recomputed - self.recomputed)
        for value, index in supplies.paged_in - self.paged_in:
            price += model.cost[model.page_in[value, index]]
            price += model.cost[model.page_out[value]] * (self.x[model.page_out[value]] < 0.5)
        return price

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
            if (stage, number) in self.recomputed and not any(self._read_in(value, stage) for value in unit.outputs):
                self.recomputed.discard((stage, number))
                touched.update(unit.inputs, unit.outputs)
        for value in list(touched):
            index = self.at.get((value, stage))
            if index is not None and (value, index) in self.paged_in and not self._read_in(value, stage):
                self.paged_in.discard((value, index))
        return touched

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


def _cheapest_supplies(model: Formulation) -> dict[int, float]:
    """Return what bringing each value back costs at least: a page-in, or a recompute whose inputs are all there."""
    prices: dict[int, float] = {}
    for (value, _), variable in model.page_in.items():
        prices[value] = min(prices.get(value, float("inf")), model.cost[variable])
    for unit in model.candidates.units:
        idle = model.candidates.instance.problem.costs.idle_watts * unit.seconds
        for value in unit.outputs:
            prices[value] = min(prices.get(value, float("inf")), unit.joules + idle)
    return prices
