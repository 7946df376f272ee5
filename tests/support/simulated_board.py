"""A board in virtual time: work of a known power, and meters with noise, steps and a period."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

VOLTS = 5.0
AMPERE_STEP = 0.008
"""Of an INA3221 whose shunt is 5 mOhm: 40 uV a step."""


class SimulatedBoard:
    """A board that takes `rest_watts` at rest, and what its work takes beside that.

    A meter of `period_seconds` is told at each period's end what the board took within it. `watch` is called at the
    meter's own pace, as its thread would.
    """

    def __init__(self, *, rest_watts: float, period_seconds: float, tell: Callable[[float], None]) -> None:
        self._rest_watts, self._period_seconds, self._tell = rest_watts, period_seconds, tell
        self._seconds = 100.0
        self._joules_in_period = 0.0
        self._next_period = self._seconds + period_seconds
        self._watch: Callable[[], None] | None = None
        self._watch_seconds = self._next_watch = 0.0
        tell(rest_watts)

    def clock(self) -> float:
        """Return the virtual time in seconds."""
        return self._seconds

    def watched_by(self, watch: Callable[[], None], period_seconds: float) -> None:
        """Call something at every period from now on."""
        self._watch, self._watch_seconds = watch, period_seconds
        self._next_watch = self._seconds + period_seconds

    def sleep(self, seconds: float) -> None:
        """Rest."""
        self.work(seconds, 0.0)

    def work(self, seconds: float, watts: float) -> None:
        """Work for some time with so much above rest."""
        end = self._seconds + seconds
        while self._seconds < end:
            wake = min(end, self._next_period, self._next_watch if self._watch is not None else end)
            self._joules_in_period += (self._rest_watts + watts) * (wake - self._seconds)
            self._seconds = wake
            if wake >= self._next_period:
                self._tell(self._joules_in_period / self._period_seconds)
                self._joules_in_period = 0.0
                self._next_period += self._period_seconds
            if self._watch is not None and wake >= self._next_watch:
                self._watch()
                self._next_watch += self._watch_seconds


class SimulatedSensor:
    """A sensor of power: its figure is of the period before, with noise, and in steps of the current."""

    name = "simulated sensor"

    def __init__(self, *, update_seconds: float, noise_share: float, seed: int) -> None:
        self.update_seconds, self._noise_share = update_seconds, noise_share
        self._generator = np.random.default_rng(seed)
        self._watts = 0.0

    def tell(self, watts: float) -> None:
        """Take the power of a period."""
        amperes = watts / VOLTS * (1 + self._noise_share * self._generator.standard_normal())
        self._watts = round(amperes / AMPERE_STEP) * AMPERE_STEP * VOLTS

    def read_watts(self) -> float:
        """Return the power."""
        return self._watts


class SimulatedCounter:
    """A counter of RAPL: its file is written when it is looked at."""

    def __init__(self, zone: Path, *, period_seconds: float, range_microjoules: int) -> None:
        self._file, self._period_seconds, self._range = zone / "energy_uj", period_seconds, range_microjoules
        self._count = range_microjoules - 1_000_000

    def tell(self, watts: float) -> None:
        """Take the power of a period."""
        self._count = (self._count + round(watts * self._period_seconds * 1e6)) % self._range

    def write(self) -> None:
        """Write the count."""
        self._file.write_text(f"{self._count}\n")
