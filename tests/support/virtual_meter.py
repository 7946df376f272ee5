"""A meter in virtual time, of which a little passes with each look at it: runs beside it take no time of their own."""

from __future__ import annotations

from poet_onnx.energy import Mark


class VirtualMeter:
    """A meter that sees the same power all the time."""

    name, update_seconds = "virtual meter", 0.01

    def __init__(self, *, tick_seconds: float, watts: float) -> None:
        self._tick_seconds, self._watts = tick_seconds, watts
        self.seconds = 0.0

    def now(self) -> float:
        """Let time pass, and return it."""
        self.seconds += self._tick_seconds
        return self.seconds

    def mark(self) -> Mark:
        """Return this moment."""
        return Mark(self.seconds, self.seconds * self._watts)

    def joules(self, start: Mark, end: Mark) -> float:
        """Return the joules between two moments."""
        return end.joules - start.joules

    def close(self) -> None:
        """End nothing."""
