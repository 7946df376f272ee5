"""What has to be packed: slots of memory, each needed from one step to another, and where they may end up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from poet_onnx.simulate.blocks import live_bytes


class Slot(NamedTuple):
    """A piece of the region that one block of memory needs for as long as it lives.

    Attributes:
        born, dies: first and last step of its life, as indices.
        size_bytes: of the slot; at least 1.
        alignment_bytes: its offset is a multiple of this power of two.
    """

    born: int
    dies: int
    size_bytes: int
    alignment_bytes: int


class Packing(NamedTuple):
    """Where slots lie.

    Attributes:
        offsets: bytes from the start of the region, one for each slot.
        region_bytes: end of the slot that ends last.
    """

    offsets: tuple[int, ...]
    region_bytes: int


def liveness_peak_bytes(slots: Sequence[Slot]) -> int:
    """Return the most bytes of slots that live at one moment: no region can be smaller."""
    return max(live_bytes(slots, max((slot.dies for slot in slots), default=-1) + 1), default=0)
