"""What the regions that sessions reserve have served, and what they had no room for."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from poet_onnx.errors import InputError
from poet_onnx.runtime.counting import Counter, open_numbers
from poet_onnx.runtime.library import operator_library, tracked_library

_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class ArenaStatistics:
    """What one session's arena has served, or those of all sessions of the process together.

    Attributes:
        region_bytes: of the region; of all that are there.
        steps: runs that the arena served.
        refused_steps: runs that malloc served, because a concurrent run of the session had the region.
        planned: blocks that were served at their planned addresses.
        workspace: other blocks that were served from the region.
        unplanned: blocks that came from malloc against the plan.
        unplanned_most_bytes: most bytes of such blocks that were alive at once, since the session was made.
        largest_end_bytes: end of the block that reached farthest into a region, since the session was made.
    """

    region_bytes: int
    steps: int
    refused_steps: int
    planned: int
    workspace: int
    unplanned: int
    unplanned_most_bytes: int
    largest_end_bytes: int

    def __sub__(self, earlier: ArenaStatistics) -> ArenaStatistics:
        return ArenaStatistics(
            region_bytes=self.region_bytes,
            steps=self.steps - earlier.steps,
            refused_steps=self.refused_steps - earlier.refused_steps,
            planned=self.planned - earlier.planned,
            workspace=self.workspace - earlier.workspace,
            unplanned=self.unplanned - earlier.unplanned,
            unplanned_most_bytes=self.unplanned_most_bytes,
            largest_end_bytes=self.largest_end_bytes,
        )


class _Values(ctypes.Structure):
    """`ArenaValues` of ops/arena/arena_statistics.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ArenaStatistics.__dataclass_fields__)


ArenaCounter = Counter[ArenaStatistics]
"""What arenas have served since a moment, bytes since the session was made: what `count_arena` yields."""


@contextmanager
def count_arena(arena: int | None = None) -> Iterator[ArenaCounter]:
    """Count what the arenas of all sessions of the process serve, or that of one.

    Args:
        arena: number of a session's arena, from `open_arenas`; default all.

    Raises:
        InputError: no usable ONNX Runtime or operator library, or no arena of that number is open.
    """
    yield Counter(partial(arena_statistics, arena))


def open_arenas() -> tuple[int, ...]:
    """Return the numbers of the arenas that sessions of this process have open, the oldest first.

    A session whose model has a layout has one arena, from when it is made until it is destroyed; others have none.

    Raises:
        InputError: no usable ONNX Runtime or operator library.
    """
    return open_numbers("poet_open_arenas")


def arena_statistics(arena: int | None = None) -> ArenaStatistics:
    """Return what a session's arena has served, or what all arenas of this process ever have.

    Args:
        arena: number of a session's arena, from `open_arenas`; default all.

    Raises:
        InputError: no usable ONNX Runtime or operator library, or no arena of that number is open.
    """
    values = _Values()
    if tracked_library().poet_arena_statistics(arena or 0, ctypes.byref(values)) != 0:
        raise InputError(f"No session has arena {arena} open: it was closed, or the number is not of open_arenas.")
    return ArenaStatistics(**{name: int(getattr(values, name)) for name in ArenaStatistics.__dataclass_fields__})


class SharedRegion:
    """Lets sessions whose models have layouts use one region in turn; the first that is made should need the most.

    A session whose layout is larger has a region of its own. A step that finds the region in use is served by malloc.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Let the sessions that this thread makes in the context share the region."""
        library = operator_library()
        library.poet_share_region(self._number)
        try:
            yield
        finally:
            library.poet_share_region(0)
