"""What a meter is, and how a sensor of power becomes one."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

from poet_onnx.errors import CheckFailedError

_LEAST_SAMPLE_SECONDS = 0.01
"""A sensor is read no more often: each reading takes the processor that is measured."""


class Mark(NamedTuple):
    """A moment by a meter's clock.

    Attributes:
        seconds: of that clock.
        joules: that the meter had counted by then; 0 where they are looked up later.
    """

    seconds: float
    joules: float


class Meter(Protocol):
    """A meter of energy, open until it is closed.

    Attributes:
        name: of the meter and of what it measures, in words.
        update_seconds: until it has a new figure.
    """

    name: str
    update_seconds: float

    def now(self) -> float:
        """Return the seconds of the meter's clock."""

    def mark(self) -> Mark:
        """Return this moment, without waiting for anything."""

    def joules(self, start: Mark, end: Mark) -> float:
        """Return the joules between two moments.

        Raises:
            CheckFailedError: if the meter has stopped meanwhile.
        """

    def close(self) -> None:
        """End what runs beside the measured program."""


class PowerSensor(Protocol):
    """Something that tells the power of the moment.

    Attributes:
        name, update_seconds: as of a meter.
    """

    name: str
    update_seconds: float

    def read_watts(self) -> float:
        """Return the power.

        Raises:
            OSError, ValueError: if it cannot be read.
        """


class Watched(ABC):
    """A base of meters that count joules, and must be looked at now and then: a thread does it until they close."""

    name: str

    def __init__(self, period_seconds: float, clock: Callable[[], float], *, in_background: bool) -> None:
        self._period_seconds, self._clock = period_seconds, clock
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if in_background:
            self._thread = threading.Thread(target=self._watch, name="poet-meter", daemon=True)
            self._thread.start()

    def now(self) -> float:
        """Return the seconds of the meter's clock."""
        return self._clock()

    @abstractmethod
    def watch(self) -> None:
        """Look at it; a failure is noted."""

    def joules(self, start: Mark, end: Mark) -> float:
        """Return the joules between two moments.

        Raises:
            CheckFailedError: if the meter could not be read meanwhile, or what it said cannot be.
        """
        if self._failure is not None:
            raise CheckFailedError(f"The meter {self.name} could not be used any more: {self._failure}.")
        return end.joules - start.joules

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(self._period_seconds):
            self.watch()


class SampledMeter(Watched):
    """Adds up the power that a sensor tells: what was read last holds until the next reading."""

    def __init__(
        self, sensor: PowerSensor, *, clock: Callable[[], float] = time.perf_counter, in_background: bool = True
    ) -> None:
        """Read the sensor for the first time.

        Args:
            sensor: of power.
            clock: in seconds.
            in_background: read it from a thread; otherwise `watch` must be called.

        Raises:
            OSError, ValueError: if it cannot be read.
        """
        self.name, self.update_seconds = sensor.name, sensor.update_seconds
        self._sensor = sensor
        self._watts, self._last, self._joules = sensor.read_watts(), clock(), 0.0
        super().__init__(max(sensor.update_seconds, _LEAST_SAMPLE_SECONDS), clock, in_background=in_background)

    def watch(self) -> None:
        """Read the sensor."""
        try:
            watts = self._sensor.read_watts()
        except (OSError, ValueError) as error:
            self._failure = error
            return
        with self._lock:
            now = self._clock()
            self._joules += self._watts * (now - self._last)
            self._watts, self._last = watts, now

    def mark(self) -> Mark:
        """Return this moment; the sensor is not read for it, which may take longer than what is measured."""
        with self._lock:
            now = self._clock()
            return Mark(now, self._joules + self._watts * (now - self._last))
