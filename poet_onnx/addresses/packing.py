"""Packing: addresses for slots such that no two that live at the same time overlap, in a region as small as can be.

The problem is dynamic storage allocation, which is NP-hard. A few greedy orders are tried; then a search makes the
region smaller step by step: it takes an order and a limit below the best region, and moves the first slot that does not
fit under the limit to before one that is in its way, again and again (squeaky-wheel optimization: Joslin, Clements,
Journal of AI Research 10, 1999). All of it is deterministic and bounded by the number of slots that are placed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from poet_onnx.addresses.exact import FEW_SLOTS, pack_exactly
from poet_onnx.addresses.placement import Placement
from poet_onnx.addresses.slots import Packing, Slot, liveness_peak_bytes

MOST_PLACED = 200_000
"""Slots placed in all: about two seconds."""

MOVES = (300, 1000)
"""Moves of one walk before the search begins anew from another order; walks of either length take turns."""

CLOSE = 2000
"""The search ends when the region is larger than the liveness peak by no more than one part in so many."""

PAGE_BYTES = 4096
"""Or by no more than one page of memory, in which a process gets its RAM."""

STARTS = 3
"""Greedy orders that walks start from, the best ones."""


def pack(slots: Sequence[Slot]) -> Packing:
    """Return addresses for slots: the best there are for a few slots, good ones for many.

    No two slots that live at the same time overlap, and every offset is a multiple of the slot's alignment.
    """
    if not slots:
        return Packing((), 0)
    search = _Search(slots)
    if search.region_bytes > search.enough_bytes and len(slots) <= FEW_SLOTS:
        return pack_exactly(slots, search.packing)
    search.walk()
    return search.packing


class _Search:
    """The best packing so far, and the way to better ones.

    Attributes:
        packing: the best so far.
        enough_bytes: a region no larger than this ends the search.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        peak_bytes = liveness_peak_bytes(slots)
        self.enough_bytes = peak_bytes if len(slots) <= FEW_SLOTS else peak_bytes + max(peak_bytes // CLOSE, PAGE_BYTES)
        self._step_bytes = min(slot.alignment_bytes for slot in slots)
        self._placement = Placement(slots)
        self._random = random.Random(0)
        self._starts: list[tuple[int, list[int]]] = []
        for order in _greedy_orders(slots):
            self._placement.place(order, 0)
            self._keep_start(order)
            if self.region_bytes <= self.enough_bytes:
                break

    @property
    def region_bytes(self) -> int:
        """Return the size of the best region so far."""
        return self.packing.region_bytes

    def walk(self) -> None:
        """Look for better packings until one is good enough or the work is done."""
        number = 0
        while self.region_bytes > self.enough_bytes and self._placement.placed < MOST_PLACED:
            greedy = self._starts[number // 2 % len(self._starts)][1]
            start = greedy if number % 2 else self._best
            moves = MOVES[number // 2 % len(MOVES)]
            self._walk_from(list(start), moves, anywhere=number % 3 == 1, is_bold=number // 4 % 2 == 1)
            number += 1

    def _keep_start(self, order: list[int]) -> None:
        region_bytes = self._placement.region_bytes()
        if not self._starts or region_bytes < self.region_bytes:
            self._keep(order)
        self._starts = sorted([*self._starts, (region_bytes, order)], key=lambda start: start[0])[:STARTS]

    def _keep(self, order: Sequence[int]) -> None:
        self.packing = self._placement.packing(order)
        self._best = list(order)

    def _walk_from(self, order: list[int], moves: int, *, anywhere: bool, is_bold: bool) -> None:
        """Move slots that do not fit below the best region forward, `moves` times.

        Args:
            order: to begin with; it is changed.
            moves: how many.
            anywhere: move to any earlier position, not only to before a slot that lives at the same time.
            is_bold: ask for half of what the region is too large, not for the least that makes it smaller.
        """
        placement, first = self._placement, 0
        for _ in range(moves):
            excess_bytes = self.region_bytes - self.enough_bytes
            less_bytes = max(self._step_bytes, excess_bytes // 2) if is_bold else self._step_bytes
            stuck = placement.place(order, first, self.region_bytes - less_bytes)
            if stuck == len(order):
                self._keep(order)
                if self.region_bytes <= self.enough_bytes:
                    return
                stuck = placement.highest()
            blockers = placement.blockers(order, stuck)
            first = self._random.randrange(stuck) if anywhere else int(self._random.choice(blockers.tolist()))
            order.insert(first, order.pop(stuck))
            if placement.placed >= MOST_PLACED:
                return


def _greedy_orders(slots: Sequence[Slot]) -> Iterator[list[int]]:
    """Yield orders in which lowest fit does well: large slots, long lives or what lives at the peak first."""
    born, dies, size_bytes, _ = np.array(slots, np.int64).T
    life = dies - born + 1
    change = np.zeros(int(dies.max()) + 2, np.int64)
    np.add.at(change, born, size_bytes)
    np.add.at(change, dies + 1, -size_bytes)
    peak = int(change.cumsum().argmax())
    away = np.maximum(np.maximum(born - peak, peak - dies), 0)
    for keys in (
        (born, -life, -size_bytes),
        (-life, away > 0),
        (-size_bytes, away > 0),
        (born, -size_bytes * life),
        (-size_bytes, away),
        (born, -size_bytes, -life),
        (-life, born),
    ):
        yield np.lexsort(keys).tolist()
