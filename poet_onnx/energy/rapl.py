"""RAPL: the energy counters of x86 processors, as the kernel's powercap shows them.

Source: https://docs.kernel.org/power/powercap/powercap.html. A zone is a directory with `name`, `energy_uj` and
`max_energy_range_uj`, at which the counter begins anew. Zones of packages hold cores and what else is on the chip; the
memory's, "dram", stand below them and are not part of them; "psys" is a whole platform, which holds both. Since Linux
5.10 the counters may be read by root alone (CVE-2020-8694). They change about every millisecond.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from poet_onnx.energy.meters import Mark, Watched
from poet_onnx.errors import InputError

_UPDATE_SECONDS = 0.001
_WATCH_SECONDS = 30.0
"""No counter wraps twice within: the shortest range in use, 65 kJ, lasts a minute at 1 kW."""

_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")


class RaplMeter(Watched):
    """The processor packages' counters, with the memory's where there are any."""

    update_seconds = _UPDATE_SECONDS

    def __init__(
        self, zones: list[Path], *, clock: Callable[[], float] = time.perf_counter, in_background: bool = True
    ) -> None:
        """Read the counters for the first time.

        Args:
            zones: directories of powercap.
            clock: in seconds.
            in_background: look for wraps from a thread; otherwise a mark must be taken often enough.

        Raises:
            OSError, ValueError: if they cannot be read.
        """
        self.name = "RAPL " + " + ".join(_name(zone) for zone in zones)
        self._counters = [zone / "energy_uj" for zone in zones]
        self._ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in zones]
        self._last = [int(counter.read_text()) for counter in self._counters]
        self._microjoules = 0
        super().__init__(_WATCH_SECONDS, clock, in_background=in_background)

    def watch(self) -> None:
        """Notice a wrap."""
        self.mark()

    def mark(self) -> Mark:
        """Return this moment; a counter that wrapped once is continued."""
        with self._lock:
            try:
                for index, counter in enumerate(self._counters):
                    now = int(counter.read_text())
                    passed = now - self._last[index]
                    self._microjoules += passed if passed >= 0 else passed + self._ranges[index]
                    self._last[index] = now
            except (OSError, ValueError) as error:
                self._failure = error
            return Mark(self._clock(), self._microjoules * 1e-6)


def rapl_zones(system: Path) -> list[Path]:
    """Return the zones that make a processor and its memory; none where there is no RAPL.

    Raises:
        InputError: if this process may not read their counters.
    """
    folders = sorted((system / "class/powercap").glob("intel-rapl:*"))
    zones = [each for each in folders if _ZONE.fullmatch(each.name) and _name(each).startswith(("package", "dram"))]
    for zone in zones:
        for name in ("energy_uj", "max_energy_range_uj"):
            try:
                (zone / name).read_bytes()
            except PermissionError as error:
                raise InputError(
                    f"The processor's energy counter {zone / name} may be read by root alone: allow it until the next "
                    f"boot with `sudo chmod a+r {system}/class/powercap/intel-rapl:*/energy_uj`, run this as root, or "
                    "give the CSV file of an external meter."
                ) from error
            except OSError as error:
                raise InputError(
                    f"The processor's energy counter {zone / name} cannot be read: {error.strerror}; give the CSV file "
                    "of an external meter."
                ) from error
    return zones


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return ""
