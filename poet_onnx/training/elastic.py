"""Which plan a session should run while memory comes and goes: less at once, more only where it lasts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from poet_onnx.errors import PoetWarning
from poet_onnx.runtime.memory_left import memory_left, memory_pressure, resident_bytes

MOST_PRESSURE, LEAST_PRESSURE = 0.1, 0.01
"""Shares of time in which a task waits for memory: at the one a smaller plan runs, below the other a larger one may."""

PRESSURE_SECONDS = 10.0
"""The kernel's shares are of so many seconds, so that one change shows in them after these."""

STEPS_TO_GROW = 20
"""There must be room for a larger plan before so many steps in a row."""


@dataclass(frozen=True)
class Room:
    """What memory a process has and could have.

    Attributes:
        size_bytes: that it may take in all, what it has included.
        pressure: share of time in which a task waits for memory.
    """

    size_bytes: int
    pressure: float


def room_here(root: Path = Path("/")) -> Room:
    """Return the room of this process.

    Args:
        root: of the file system, which a test may have recorded.
    """
    return Room(resident_bytes(root) + memory_left(root).size_bytes, memory_pressure(root))


def warn_of_shortage(smallest_bytes: int, room: Room) -> None:
    """Warn that there is no room for the smallest plan."""
    warnings.warn(
        f"The smallest plan is for {smallest_bytes:,} bytes of RAM, and this process has or could take "
        f"{room.size_bytes:,}, so the system may kill it: end other programs, raise the limit of its control group, "
        "or rewrite the original with a smaller budget among --ram-budgets.",
        PoetWarning,
        stacklevel=4,
    )


class Follower:
    """Follows the memory that there is."""

    def __init__(
        self,
        budgets_bytes: Sequence[int],
        room: Callable[[], Room],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            budgets_bytes: of the plans, smallest first.
            room: tells what there is.
            now: tells the time, in seconds.
        """
        self._budgets, self._room, self._now = tuple(budgets_bytes), room, now
        self._roomy_steps = 0
        self._patient_until = float("-inf")
        self._was_short = False

    def next(self, budget_bytes: int) -> int:
        """Return the budget of the plan for the step that comes.

        A plan that there is no more room for gives way to the largest one that fits, at once. Where tasks wait for
        memory, the next smaller one runs; a larger one only where nobody has waited, and there has been room for it
        for a while. Where there is not even room for the smallest, a warning says so, once until there is room again.

        Args:
            budget_bytes: of the plan of the last step.
        """
        room, place = self._room(), self._budgets.index(budget_bytes)
        is_short = room.size_bytes < self._budgets[0]
        if is_short and not self._was_short:
            warn_of_shortage(self._budgets[0], room)
        self._was_short = is_short
        fitting = max((each for each in self._budgets if each <= room.size_bytes), default=self._budgets[0])
        if fitting < budget_bytes:
            return self._changed(fitting)
        if room.pressure >= MOST_PRESSURE:
            self._roomy_steps = 0
            is_due = place > 0 and self._now() >= self._patient_until
            return self._changed(self._budgets[place - 1]) if is_due else budget_bytes
        if fitting == budget_bytes or room.pressure >= LEAST_PRESSURE:
            self._roomy_steps = 0
            return budget_bytes
        self._roomy_steps += 1
        return self._changed(fitting) if self._roomy_steps >= STEPS_TO_GROW else budget_bytes

    def _changed(self, budget_bytes: int) -> int:
        self._roomy_steps, self._patient_until = 0, self._now() + PRESSURE_SECONDS
        return budget_bytes
