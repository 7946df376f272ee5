"""Local search: from a feasible schedule to a cheap one, a restore at a time, in milliseconds instead of LP solves.

A move replaces one restore by another or by keeping the value in RAM, and sends others out of RAM to make room.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from poet_onnx.scheduling.assignment import Assignment
from poet_onnx.scheduling.model import Formulation, Restores

MOST_EJECTIONS = 6
"""Values that one move may send out of RAM to make room for another."""

MOST_EVICTIONS = 1_000
"""Values that may be sent out of RAM to make an assignment fit."""

MOST_PRICED = 6
"""Values that are looked at closely before one is ejected."""

MOST_CHANGES = 40_000
"""Changes of restores after which the search ends, the same on any machine: 4 to 8 s on a desktop's core."""

MOST_SHAKES = 400
SHAKES_IN_VAIN = 120
"""Disturbances in all, and in a row without any success, after which the search ends."""

TIGHT = 0.9
"""Share of the budget from which on a memory row is worth disturbing."""

LONGEST_CHAIN = 12
"""Units that one move may recompute for one reader."""


def improve(
    model: Formulation, x: list[float], *, time_limit_seconds: float, most_changes: int = MOST_CHANGES
) -> list[float]:
    """Return an assignment that is at least as cheap as a feasible one, and feasible.

    When no move helps any more, values are sent out of RAM at random in one place and the moves around it tried again,
    many times over; what is not better is taken back.
    """
    search = _Search(model, x, most_changes)
    deadline = time.monotonic() + time_limit_seconds
    while search.descend(deadline):
        pass
    search.shake(random.Random(0), deadline)
    return search.x


def fitted(model: Formulation, x: list[float]) -> list[float] | None:
    """Return an assignment whose memory fits, made from one that may need more; None if too much would have to leave.

    Either may exceed the rows of time and of bytes written.
    """
    search = _Search(replace(model, time=[], moved=[]), x, MOST_CHANGES)
    return search.x if search.fit() else None


class _Search(Assignment):
    def __init__(self, model: Formulation, x: list[float], most_changes: int) -> None:
        super().__init__(model, x)
        self.retained = {variable: key for key, variable in model.retain.items()}
        self.cheapest = _cheapest_restores(model)
        self.changes, self.most_changes = 0, most_changes

    def put(self, added: Restores, dropped: Restores, before: dict[int, float]) -> None:
        """Change restores, and count that."""
        self.changes += 1
        super().put(added, dropped, before)

    def is_over(self, deadline: float) -> bool:
        """Return whether the search has done enough."""
        return self.changes >= self.most_changes or time.monotonic() > deadline

    def fit(self) -> bool:
        """Send values out of RAM until every row of memory holds; return whether it does."""
        for _ in range(MOST_EVICTIONS):
            row, excess = self._highest()
            if excess <= 0:
                return True
            ejection = self._ejection(row, excess, set())
            if ejection is None:
                return False
            self.put(ejection, Restores(), {})
        return False

    def _highest(self) -> tuple[int, float]:
        """Return the row that is exceeded most, and by how much."""
        excess = self.activity - self.ceilings.limit
        row = int(np.argmax(excess)) if len(excess) else 0
        return row, float(excess[row]) if len(excess) else 0.0

    def descend(self, deadline: float) -> bool:
        """Try every move once, the dearest restore first; return whether anything became cheaper."""
        better = False
        for value, index in sorted(self.restored(), key=lambda key: (-self._price(*key), key)):
            if self.is_over(deadline):
                return False
            if self.is_restored(value, index):
                better |= any(self._try(*move) for move in self._moves(value, index))
        return better

    def shake(self, rng: random.Random, deadline: float) -> None:
        """Disturb the schedule in one place after another, and keep what comes out cheaper."""
        in_vain = 0
        for _ in range(MOST_SHAKES):
            rows = slice(self.ceilings.memory_rows)
            tight = np.flatnonzero(self.activity[rows] > TIGHT * self.ceilings.limit[rows])
            if not len(tight) or in_vain >= SHAKES_IN_VAIN or self.is_over(deadline):
                return
            in_vain = 0 if self._shake_at(int(tight[rng.randrange(len(tight))]), rng) else in_vain + 1

    def _shake_at(self, row: int, rng: random.Random) -> bool:
        """Send values out of RAM at a memory row, try the moves of all that is away there; return whether it helped."""
        before = self.x[:], self.activity.copy(), self.recomputed, self.paged_in
        cost = self.cost()
        there = [variable for variable in self.ceilings.spanning(row) if self.x[variable] > 0.5]
        waiting = [self.retained[variable] for variable in there if variable in self.retained]
        for value, index in rng.sample(waiting, min(len(waiting), rng.randint(1, 4))):
            restore = self._restore(value, self.next_use(value, index))
            if restore is not None:
                self.put(restore, Restores(), {})
        if not (self.activity > self.ceilings.limit).any():
            away = self._away(row)
            away.sort(key=lambda key: (-self._price(*key) * rng.uniform(0.5, 1.0), key))
            for value, index in away:
                if self.is_restored(value, index):
                    any(self._try(*move) for move in self._moves(value, index))
            if self.cost() < cost - 1e-12:
                return True
        self.x, self.activity, self.recomputed, self.paged_in = before
        return False

    def _away(self, row: int) -> list[tuple[int, int]]:
        """Return the restores that end an absence which reaches over a memory row."""
        away = []
        for variable in self.ceilings.spanning(row):
            if self.x[variable] > 0.5 or variable not in self.retained:
                continue
            value, index = self.retained[variable]
            last = len(self.events[value]) - 1
            while index < last and not self.is_restored(value, index):
                index += 1
            if self.is_restored(value, index):
                away.append((value, index))
        return away

    def _price(self, value: int, index: int) -> float:
        model = self.model
        if (value, index) in self.paged_in:
            others = sum(1 for other in self.paged_in if other[0] == value)
            return model.cost[model.page_in[value, index]] + model.cost[model.page_out[value]] / others
        own = self.events[value][index].rerun
        return 0.0 if own is None else model.cost[model.recompute[own]]

    def _moves(self, value: int, index: int) -> Iterator[tuple[Restores, Restores]]:
        """Yield (restores to add, restores to drop) that end the value's absence in another way."""
        own = self.events[value][index].rerun
        if (value, index) in self.paged_in:
            paged = Restores(paged_in={(value, index)})
            yield Restores(), paged
            for chain in (self._chain(own, thrifty) for thrifty in (True, False) if own is not None):
                if chain is not None:
                    yield chain, paged
        elif own is not None:
            remade = Restores(recomputed={own})
            yield Restores(), remade
            if (value, index) in self.model.page_in:
                yield Restores(paged_in={(value, index)}), remade

    def _chain(self, own: tuple[int, int], thrifty: bool) -> Restores | None:
        """Return what recomputes a unit: its inputs are kept in RAM until then, or restored in the cheaper way.

        Args:
            own: stage and unit.
            thrifty: keep the inputs, which costs memory; otherwise restore those that are not there.
        """
        model, stage = self.model, own[0]
        recomputed, paged_in = {own}, set()
        stack = [own[1]]
        while stack:
            for value in model.candidates.units[stack.pop()].inputs:
                index = self.at[value, stage]
                if thrifty or self.x[model.retain[value, index]] > 0.5 or self.is_restored(value, index):
                    continue
                maker = self.events[value][index].rerun
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
        return Restores(recomputed, paged_in)

    def _try(self, added: Restores, dropped: Restores) -> bool:
        """Make a move if the result is cheaper and feasible, values in its way being ejected from RAM."""
        recomputed, paged_in = self.recomputed, self.paged_in
        before: dict[int, float] = {}
        busy = self.touched(added) | self.touched(dropped)
        self.put(added, dropped, before)
        for _ in range(MOST_EJECTIONS + 1):
            if self.saved(before) <= 1e-12:
                break
            row, excess = self._highest()
            if excess <= 0:
                return True
            ejection = self._ejection(row, excess, busy)
            if ejection is None:
                break
            busy |= self.touched(ejection)
            self.put(ejection, Restores(), before)
        self.take_back(recomputed, paged_in, before)
        return False

    def _ejection(self, row: int, excess_bytes: float, busy: set[int]) -> Restores | None:
        """Return the restores that replace keeping a value in RAM through a memory row, the cheapest for its bytes."""
        ranked = []
        for variable, size in self.ceilings.spanning(row).items():
            key = self.retained.get(variable)
            if key is not None and key[0] not in busy and self.x[variable] > 0.5:
                bytes_helping = min(size, excess_bytes)
                ranked.append((self.cheapest.get(key[0], 0.0) / bytes_helping, key, bytes_helping))
        priced = []
        for _, (value, index), bytes_helping in heapq.nsmallest(MOST_PRICED, ranked):
            restore = self._restore(value, self.next_use(value, index))
            if restore is not None:
                priced.append((self._price_of(restore) / bytes_helping, restore))
        return min(priced, key=lambda pair: pair[0], default=(0.0, None))[1]

    def _restore(self, value: int, index: int) -> Restores | None:
        """Return the cheapest way to restore a value at one of its events, if there is one."""
        page = Restores(paged_in={(value, index)}) if (value, index) in self.model.page_in else None
        own = self.events[value][index].rerun
        if own is None or (page and self._price_of(page) <= self.model.cost[self.model.recompute[own]]):
            return page
        chain = self._chain(own, thrifty=False)
        if chain is None or (page is not None and self._price_of(page) <= self._price_of(chain)):
            return page
        return chain

    def _price_of(self, restores: Restores) -> float:
        """Return what restores cost that are not there yet."""
        model = self.model
        price = sum(model.cost[model.recompute[key]] for key in restores.recomputed - self.recomputed)
        for value, index in restores.paged_in - self.paged_in:
            price += model.cost[model.page_in[value, index]]
            price += model.cost[model.page_out[value]] * (self.x[model.page_out[value]] < 0.5)
        return price


def _cheapest_restores(model: Formulation) -> dict[int, float]:
    """Return what bringing each value back costs at least: a page-in, or a recompute whose inputs are all there."""
    prices: dict[int, float] = {}
    for (value, _), variable in model.page_in.items():
        prices[value] = min(prices.get(value, float("inf")), model.cost[variable])
    for unit in model.candidates.units:
        for value in unit.outputs:
            prices[value] = min(prices.get(value, float("inf")), unit.joules)
    return prices
