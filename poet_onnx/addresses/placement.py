"""Lowest fit: place slots one after the other, each as low as the ones that were placed before let it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from poet_onnx.addresses.slots import Packing, Slot

Ints = npt.NDArray[np.int64]


class Placement:
    """Slots placed in the order of a list, which may change behind any place and be placed anew from there.

    Any packing can only get lower if its slots are placed this way from the bottom up: so some order gives the best
    there is.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = [tuple(slot) for slot in slots]
        self._born, self._dies, self._starts, self._ends = (np.zeros(len(slots), np.int64) for _ in range(4))
        self._unit_bytes = math.gcd(*(number for slot in slots for number in slot[2:]))
        self.placed = 0
        """Slots placed so far, those placed anew counted again: what the work is measured by."""

    def place(self, order: Sequence[int], first: int, limit_bytes: int | None = None) -> int:
        """Place the slots of an order from a position on, and return the position of the first that passes a limit.

        What stands before that position must have been placed by earlier calls. The slot that passes the limit is
        placed too, those behind it are not. Where none does, the number of slots is returned.
        """
        born, dies, starts, ends = self._born, self._dies, self._starts, self._ends
        for position in range(first, len(order)):
            slot_born, slot_dies, size_bytes, alignment_bytes = self._slots[order[position]]
            start = self._lowest(self._meets(position, slot_born, slot_dies), size_bytes, alignment_bytes)
            born[position], dies[position] = slot_born, slot_dies
            starts[position], ends[position] = start, start + size_bytes
            self.placed += 1
            if limit_bytes is not None and start + size_bytes > limit_bytes:
                return position
        return len(order)

    def blockers(self, order: Sequence[int], position: int) -> Ints:
        """Return the positions before one whose slots live at the same time as its own."""
        slot = self._slots[order[position]]
        return self._meets(position, slot[0], slot[1])

    def highest(self) -> int:
        """Return the position of the first slot that ends where the region does."""
        return int(self._ends.argmax())

    def region_bytes(self) -> int:
        """Return where the slot that ends last does so."""
        return int(self._ends.max(initial=0))

    def packing(self, order: Sequence[int]) -> Packing:
        """Return where the slots lie once all of an order have been placed."""
        offsets = np.zeros(len(order), np.int64)
        offsets[np.asarray(order, np.int64)] = self._starts
        return Packing(tuple(offsets.tolist()), self.region_bytes())

    def _meets(self, count: int, born: int, dies: int) -> Ints:
        return ((self._born[:count] <= dies) & (self._dies[:count] >= born)).nonzero()[0]

    def _lowest(self, meets: Ints, size_bytes: int, alignment_bytes: int) -> int:
        """Return the lowest aligned start of a gap between some placed slots that is large enough."""
        if not len(meets):
            return 0
        starts = self._starts[meets]
        upwards = starts.argsort()
        starts = starts[upwards]
        free_from = np.zeros(len(starts) + 1, np.int64)
        np.maximum.accumulate(self._ends[meets][upwards], out=free_from[1:])
        if self._unit_bytes % alignment_bytes:  # every end is a multiple of the unit: what divides it needs no rounding
            free_from += -free_from % alignment_bytes
        fits = starts - free_from[:-1] >= size_bytes
        first = int(fits.argmax())
        return int(free_from[first if fits[first] else -1])
