"""Reads the machine's own energy meter, where there is one: RAPL on x86, the INA3221 of a Jetson."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

_SAMPLE_SECONDS = 0.01


class EnergyMeter(Protocol):
    """A counter of joules that only grows."""

    def read_joules(self) -> float:
        """Return the joules spent since some moment in the past."""


class RaplMeter:
    """The processor packages' energy counters in /sys/class/powercap."""

    def __init__(self, packages: list[Path]) -> None:
        self._packages = packages
        self._ranges = [int((package / "max_energy_range_uj").read_text()) for package in packages]
        self._last = [int((package / "energy_uj").read_text()) for package in packages]
        self._microjoules = 0

    def read_joules(self) -> float:
        """Return the joules of all packages since the meter was opened; a counter that wrapped once is continued."""
        for index, package in enumerate(self._packages):
            now = int((package / "energy_uj").read_text())
            passed = now - self._last[index]
            self._microjoules += passed if passed >= 0 else passed + self._ranges[index]
            self._last[index] = now
        return self._microjoules * 1e-6


class Ina3221Meter:
    """The input rail of a Jetson's INA3221, sampled by a thread; the other rails are parts of it and are not added."""

    def __init__(self, power_file: Path) -> None:
        self._power_file = power_file
        self._joules = 0.0
        self._lock = threading.Lock()
        self._last = time.perf_counter()
        threading.Thread(target=self._sample_forever, name="poet-power", daemon=True).start()

    def read_joules(self) -> float:
        """Return the joules since the meter was opened."""
        self._sample()
        return self._joules

    def _sample_forever(self) -> None:
        while True:
            time.sleep(_SAMPLE_SECONDS)
            self._sample()

    def _sample(self) -> None:
        milliwatts = int(self._power_file.read_text())
        with self._lock:
            now = time.perf_counter()
            self._joules += milliwatts * 1e-3 * (now - self._last)
            self._last = now


def find_meter(system: Path = Path("/sys")) -> EnergyMeter | None:
    """Return a meter that this process may read, or None.

    Args:
        system: where sysfs is mounted.
    """
    packages = sorted((system / "class/powercap").glob("intel-rapl:[0-9]"))
    counters = [package / name for package in packages for name in ("energy_uj", "max_energy_range_uj")]
    if counters and all(_readable_number(counter) for counter in counters):
        return RaplMeter(packages)
    for name_file in sorted((system / "bus/i2c/drivers/ina3221x").glob("*/iio*/rail_name_*")):
        rail = name_file.name.removeprefix("rail_name_")
        power_file = name_file.with_name(f"in_power{rail}_input")
        try:
            is_input = name_file.read_text().strip().endswith("VDD_IN")
        except OSError:
            continue
        if is_input and _readable_number(power_file):
            return Ina3221Meter(power_file)
    return None


def _readable_number(path: Path) -> bool:
    try:
        int(path.read_text())
    except (OSError, ValueError):
        return False
    return True
