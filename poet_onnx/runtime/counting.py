"""What counters of the operator library have in common: figures since a moment, and numbers of what is open."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from poet_onnx.runtime.library import tracked_library


class _Figures(Protocol):
    def __sub__(self, earlier: Any, /) -> Any: ...


Statistics = TypeVar("Statistics", bound=_Figures)


class Counter(Generic[Statistics]):
    """What was counted since a moment."""

    def __init__(self, read: Callable[[], Statistics]) -> None:
        """Start from now.

        Args:
            read: returns what has been counted so far.
        """
        self._read = read
        self._start = read()

    @property
    def statistics(self) -> Statistics:
        """What was counted since the context was entered or `reset` was last called.

        Raises:
            InputError: the session that is counted was closed.
        """
        since: Statistics = self._read() - self._start
        return since

    def reset(self) -> None:
        """Start from now, as at the beginning of a step."""
        self._start = self._read()


def open_numbers(function: str) -> tuple[int, ...]:
    """Return the numbers that a function of the operator library lists.

    Args:
        function: its name; it takes room for numbers and returns how many there are.

    Raises:
        InputError: no usable ONNX Runtime or operator library.
    """
    list_numbers = getattr(tracked_library(), function)
    count = int(list_numbers(None, 0))
    numbers = (ctypes.c_uint64 * max(count, 0))()
    found = min(count, int(list_numbers(numbers, count)))
    return tuple(numbers[:found])
