"""The exact bytes that ONNX Runtime's CPU allocator holds."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.runtime.library import tracked_library


class AllocationCounter:
    """Exact bytes of the blocks that ONNX Runtime's CPU allocator holds: what `count_allocations` yields.

    Blocks that were allocated before the operator library was first registered in the process are not counted.
    """

    def __init__(self, library: ctypes.CDLL, budget_bytes: int | None = None) -> None:
        self._library = library
        self._budget_bytes = budget_bytes
        self._highest_bytes = 0
        self._allocated_before_bytes = int(library.poet_allocated_bytes())
        self.level_bytes = 0
        """Bytes held when the context was entered or `reset_peak` was last called."""

    @property
    def current_bytes(self) -> int:
        """Bytes held now."""
        return int(self._library.poet_current_bytes())

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at one moment since the context was entered or `reset_peak` was last called."""
        return max(self._highest_bytes, int(self._library.poet_peak_bytes()))

    @property
    def transient_peak_bytes(self) -> int:
        """`peak_bytes` above `level_bytes`: the transient peak of what ran since."""
        return self.peak_bytes - self.level_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all blocks that were allocated since the context was entered, released ones too."""
        return int(self._library.poet_allocated_bytes()) - self._allocated_before_bytes

    def check_budget(self) -> None:
        """Raise where more was held than the budget allows.

        Raises:
            CheckFailedError: `transient_peak_bytes` is above the budget.
        """
        held_bytes, budget_bytes = self.transient_peak_bytes, self._budget_bytes
        if budget_bytes is not None and held_bytes > budget_bytes:
            raise CheckFailedError(
                f"The memory budget of {budget_bytes} bytes was exceeded by {held_bytes - budget_bytes} bytes: "
                f"ONNX Runtime held {held_bytes} bytes more than the {self.level_bytes} bytes at the start; "
                "plan for a smaller budget, or allow more."
            )

    def reset_peak(self) -> None:
        """Restart the peak from the bytes held now, which become `level_bytes`; call it between steps.

        Raises:
            CheckFailedError: the budget was exceeded since the last call; the peak restarts nevertheless.
        """
        try:
            self.check_budget()
        finally:
            self._restart()

    def _restart(self) -> None:
        _fold_peaks(self._library)
        self._highest_bytes = self.level_bytes = self.current_bytes


_active: list[AllocationCounter] = []
_active_lock = threading.RLock()


@contextmanager
def count_allocations(budget_bytes: int | None = None) -> Iterator[AllocationCounter]:
    """Count ONNX Runtime's allocations, of existing sessions and new ones; contexts may nest.

    Args:
        budget_bytes: most that ONNX Runtime may hold above `level_bytes`; the context checks it when it ends and at
            each `reset_peak`. Contexts that nest check one budget each.

    Raises:
        InputError: no usable ONNX Runtime or operator library, a runtime whose allocator cannot be watched, or a budget
            below 1 byte.
        CheckFailedError: the budget was exceeded.
    """
    if budget_bytes is not None and budget_bytes < 1:
        raise InputError(f"A budget of {budget_bytes} bytes forbids every allocation: give 1 or more.")
    library = tracked_library()
    counter = AllocationCounter(library, budget_bytes)
    with _active_lock:
        _active.append(counter)
        counter._restart()
    try:
        yield counter
    finally:
        with _active_lock:
            _fold_peaks(library)
            _active.remove(counter)
    counter.check_budget()


def _fold_peaks(library: ctypes.CDLL) -> None:
    """Save the library's one peak in every open counter, then restart it."""
    with _active_lock:
        peak_bytes = int(library.poet_peak_bytes())
        for counter in _active:
            counter._highest_bytes = max(counter._highest_bytes, peak_bytes)
        library.poet_reset_peak()
