"""Packing: addresses for slots such that no two that live at the same time overlap, in a region as small as can be.

The problem is dynamic storage allocation, which is NP-hard. A few greedy orders are tried; then two searches take turns
until the region is small enough, in compiled code: see ops/addresses/packing.cpp. All of it is deterministic, and
bounded by the work that is done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from poet_onnx.addresses.slots import Packing, Slot, liveness_peak_bytes
from poet_onnx.ops import library_path

MOST_LOOKS = 1_000_000_000
"""Looks at slots and steps, to find a place for another slot: about a second."""

MOST_LOOKS_PER_PAIR = 100_000
"""Looks for each pair of few slots. 12 slots take .04 s, and 300 random sets of 12 got the smallest region there is."""

CLOSE = 1000
"""The search ends when the region is larger than the liveness peak by no more than one part in so many."""

PAGE_BYTES = 4096
"""Or by no more than one page of memory, in which a process gets its RAM."""


def pack(slots: Sequence[Slot]) -> Packing:
    """Return addresses for slots.

    No two slots that live at the same time overlap, and every offset is a multiple of the slot's alignment.

    Raises:
        InputError: the operator library was not built with the package.
        MemoryError: there is too little memory for the search.
    """
    if not slots:
        return Packing((), 0)
    peak_bytes = liveness_peak_bytes(slots)
    most_looks = min(MOST_LOOKS, MOST_LOOKS_PER_PAIR * len(slots) ** 2)
    return _search(slots, peak_bytes + max(peak_bytes // CLOSE, PAGE_BYTES), most_looks)


def _search(slots: Sequence[Slot], enough_bytes: int, most_looks: int) -> Packing:
    """Return the best of the greedy orders' packings, or a better one where that is larger than enough."""
    fields = np.array(slots, np.int64)
    orders = np.array(list(_greedy_orders(fields)), np.uint32)
    offsets = np.zeros(len(slots), np.int64)
    call = ctypes.CDLL(str(library_path())).poet_pack
    array = ctypes.c_void_p, ctypes.c_uint64
    call.argtypes = [*array, *array, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p]
    call.restype = ctypes.c_int64
    region_bytes = call(
        fields.ctypes.data, len(slots), orders.ctypes.data, len(orders), enough_bytes, most_looks, offsets.ctypes.data
    )
    if region_bytes < 0:
        raise MemoryError(f"too little memory to pack {len(slots)} slots")
    return Packing(tuple(offsets.tolist()), region_bytes)


def _greedy_orders(fields: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield orders in which lowest fit does well: large slots, long lives or what lives at the peak first.

    Args:
        fields: of the slots, [slots, fields of a slot].
    """
    born, dies, size_bytes, _ = fields.T
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
        yield np.lexsort(keys)
