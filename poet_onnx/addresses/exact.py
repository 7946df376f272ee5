"""The smallest region for a few slots, by branch and bound.

Push all slots of a packing down as far as they go, and look at them from the bottom up: each lies right on top of those
below it that live at the same time. So it is enough to stack slots in the order of their offsets, which a search can
cut short where what is left to stack at some step does not fit below the best region known (as MiniMalloc does:
Moffitt, ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from poet_onnx.addresses.slots import Packing, Slot, liveness_peak_bytes

FEW_SLOTS = 12
"""As many are packed exactly."""

MOST_BRANCHES = 20_000
"""Stacked slots after which the search gives up on a proof: about a second; no instance drawn at random came near."""


def pack_exactly(slots: Sequence[Slot], known: Packing) -> Packing:
    """Return a packing into the smallest region there is, `known` if that is one already."""
    search = _Search(slots, known)
    search.stack(0)
    return search.best


class _Search:
    def __init__(self, slots: Sequence[Slot], known: Packing) -> None:
        self.best = known
        self._slots = slots
        self._peak_bytes = liveness_peak_bytes(slots)
        steps = max(slot.dies for slot in slots) + 1
        self._heights = np.zeros(steps, np.int64)
        self._left = np.zeros(steps, np.int64)  # bytes of the slots that are not stacked yet, per step
        for slot in slots:
            self._left[slot.born : slot.dies + 1] += slot.size_bytes
        self._offsets: dict[int, int] = {}
        self._branches = 0

    def stack(self, lowest: int) -> None:
        """Stack what is left at offsets of at least `lowest`, in every way that may give a smaller region."""
        if len(self._offsets) == len(self._slots):
            self._keep()
            return
        for index, offset in self._choices(lowest):
            if self._is_done() or self._branches >= MOST_BRANCHES:
                return
            self._branches += 1
            before = self._put(index, offset)
            floor = np.where(self._left > 0, np.maximum(self._heights, offset), self._heights)
            if int((floor + self._left).max()) < self.best.region_bytes:
                self.stack(offset)
            self._take(index, before)

    def _choices(self, lowest: int) -> list[tuple[int, int]]:
        """Return the slots that may come next with their offsets, lowest first; of equal ones only the first."""
        choices, seen = list[tuple[int, int]](), set[Slot]()
        for index, slot in enumerate(self._slots):
            if index in self._offsets or slot in seen:
                continue
            seen.add(slot)
            top = int(self._heights[slot.born : slot.dies + 1].max())
            offset = top + -top % slot.alignment_bytes
            if offset >= lowest and offset + slot.size_bytes < self.best.region_bytes:
                choices.append((index, offset))
        return sorted(choices, key=lambda choice: (choice[1], -self._slots[choice[0]].size_bytes))

    def _put(self, index: int, offset: int) -> npt.NDArray[np.int64]:
        slot = self._slots[index]
        life = slice(slot.born, slot.dies + 1)
        before = self._heights[life].copy()
        self._heights[life] = offset + slot.size_bytes
        self._left[life] -= slot.size_bytes
        self._offsets[index] = offset
        return before

    def _take(self, index: int, before: npt.NDArray[np.int64]) -> None:
        slot = self._slots[index]
        life = slice(slot.born, slot.dies + 1)
        self._heights[life] = before
        self._left[life] += slot.size_bytes
        del self._offsets[index]

    def _keep(self) -> None:
        region_bytes = max(offset + self._slots[index].size_bytes for index, offset in self._offsets.items())
        if region_bytes < self.best.region_bytes:
            self.best = Packing(tuple(self._offsets[index] for index in range(len(self._slots))), region_bytes)

    def _is_done(self) -> bool:
        return self.best.region_bytes == self._peak_bytes
