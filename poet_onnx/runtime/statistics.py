"""What sessions have moved to storage and back, and how much of that time their steps waited."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from poet_onnx.errors import InputError
from poet_onnx.runtime.counting import Counter, open_numbers
from poet_onnx.runtime.library import tracked_library

_LONGEST_DESCRIPTION_BYTES = 8192


class _Values(ctypes.Structure):
    """`StatisticsValues` of ops/store/statistics.h."""

    _fields_ = (
        ("page_outs", ctypes.c_uint64),
        ("page_ins", ctypes.c_uint64),
        ("page_out_bytes", ctypes.c_uint64),
        ("page_in_bytes", ctypes.c_uint64),
        ("page_out_nanoseconds", ctypes.c_uint64),
        ("page_in_nanoseconds", ctypes.c_uint64),
        ("waited_nanoseconds", ctypes.c_uint64),
    )


@dataclass(frozen=True, kw_only=True)
class PagingStatistics:
    """Transfers that ended in some time, of one session or of all.

    Attributes:
        page_outs, page_ins: number of transfers.
        page_out_bytes, page_in_bytes: of the tensors that they moved.
        page_out_seconds, page_in_seconds: that they took on the I/O channel, with a throttle's share.
        waited_seconds: that nodes waited for transfers, their own or those ahead of them.
    """

    page_outs: int
    page_ins: int
    page_out_bytes: int
    page_in_bytes: int
    page_out_seconds: float
    page_in_seconds: float
    waited_seconds: float

    @property
    def transfer_seconds(self) -> float:
        """Seconds of all transfers."""
        return self.page_out_seconds + self.page_in_seconds

    @property
    def hidden_share(self) -> float:
        """Share of the transfers' time, 0 to 1, that no node waited for; 1 where nothing was moved."""
        if self.transfer_seconds == 0.0:
            return 1.0
        return min(max(1.0 - self.waited_seconds / self.transfer_seconds, 0.0), 1.0)

    def __sub__(self, earlier: PagingStatistics) -> PagingStatistics:
        return PagingStatistics(
            page_outs=self.page_outs - earlier.page_outs,
            page_ins=self.page_ins - earlier.page_ins,
            page_out_bytes=self.page_out_bytes - earlier.page_out_bytes,
            page_in_bytes=self.page_in_bytes - earlier.page_in_bytes,
            page_out_seconds=self.page_out_seconds - earlier.page_out_seconds,
            page_in_seconds=self.page_in_seconds - earlier.page_in_seconds,
            waited_seconds=self.waited_seconds - earlier.waited_seconds,
        )


PagingCounter = Counter[PagingStatistics]
"""What was moved since a moment: what `count_paging` yields."""


@contextmanager
def count_paging(store: int | None = None) -> Iterator[PagingCounter]:
    """Count the transfers of all sessions of the process, or of one.

    Args:
        store: number of a session's page store, from `open_stores`; default all.

    Raises:
        InputError: no usable ONNX Runtime or operator library, or no store of that number is open.
    """
    yield Counter(partial(paging_statistics, store))


def open_stores() -> tuple[int, ...]:
    """Return the numbers of the page stores that sessions of this process have open, the oldest first.

    A session that pages has one store, from when it is made until it is destroyed; a session whose model does not page
    has none.

    Raises:
        InputError: no usable ONNX Runtime or operator library.
    """
    return open_numbers("poet_open_stores")


@dataclass(frozen=True, kw_only=True)
class StoreDescription:
    """How a session's pages are moved.

    Attributes:
        page_dir: where the page file is.
        backend: in use, one of those of `PagingOptions` but "auto".
        reason: why it is this one, where it is not the one asked for.
        staging_bytes: memory that pages pass through, taken when the session was made and held as long as it; it is
            counted in `AllocationCounter.current_bytes`.
    """

    page_dir: str
    backend: str
    reason: str
    staging_bytes: int


def describe_store(store: int) -> StoreDescription:
    """Return how the session of a page store moves its pages.

    Args:
        store: a number from `open_stores`.

    Raises:
        InputError: no usable ONNX Runtime or operator library, or no store of that number is open.
    """
    text = ctypes.create_string_buffer(_LONGEST_DESCRIPTION_BYTES)
    if tracked_library().poet_describe_store(store, text, len(text)) != 0:
        raise _not_open(store)
    page_dir, backend, reason, staging_bytes = os.fsdecode(text.value).rsplit("\n", 4)[:4]
    return StoreDescription(page_dir=page_dir, backend=backend, reason=reason, staging_bytes=int(staging_bytes))


def paging_statistics(store: int | None = None) -> PagingStatistics:
    """Return what a session has moved since it was made, or what all sessions of this process have ever moved.

    Args:
        store: number of a session's page store, from `open_stores`; default all.

    Raises:
        InputError: no usable ONNX Runtime or operator library, or no store of that number is open.
    """
    values = _Values()
    if tracked_library().poet_statistics(store or 0, ctypes.byref(values)) != 0:
        raise _not_open(store)
    return PagingStatistics(
        page_outs=values.page_outs,
        page_ins=values.page_ins,
        page_out_bytes=values.page_out_bytes,
        page_in_bytes=values.page_in_bytes,
        page_out_seconds=values.page_out_nanoseconds / 1e9,
        page_in_seconds=values.page_in_nanoseconds / 1e9,
        waited_seconds=values.waited_nanoseconds / 1e9,
    )


def _not_open(store: int | None) -> InputError:
    return InputError(f"No session has page store {store} open: it was closed, or the number is not of open_stores.")
