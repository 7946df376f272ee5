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
from poet_onnx.errors import CheckFailedError, InputError

_UPDATE_SECONDS = 0.001
_WATCH_SECONDS = 1.0
"""No counter wraps twice within: the shortest range in use, 65 kJ, lasts a minute at 1 kW."""

_MOST_WATTS = 1000.0
"""Of a package or its memory: a counter that says more began anew, by a reset or while the machine was suspended."""

_LATE_SECONDS = 0.01
"""A counter may tell so late what it counted."""

_STILL_SECONDS = 0.1
"""Every processor takes something in so long; counters of virtual machines stand still."""

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
            OSError, ValueError: if they cannot be read, or have no range.
        """
        self.name = "RAPL " + " + ".join(_name(zone) for zone in zones)
        self._counters = [zone / "energy_uj" for zone in zones]
        self._ranges = [_range_microjoules(zone) for zone in zones]
        self._before_seconds = clock()
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
                before_seconds = self._clock()
                counts = [int(counter.read_text()) for counter in self._counters]
                most_joules = _MOST_WATTS * (self._clock() - self._before_seconds + _LATE_SECONDS)
                self._microjoules += sum(
                    _passed_microjoules(*each, most_joules)
                    for each in zip(self._counters, self._last, counts, self._ranges, strict=True)
                )
                self._last, self._before_seconds = counts, before_seconds
            except (OSError, ValueError) as error:
                self._failure = error
            return Mark(self._clock(), self._microjoules * 1e-6)

    def joules(self, start: Mark, end: Mark) -> float:
        """Return the joules between two moments.

        Raises:
            CheckFailedError: if a counter could not be read meanwhile, or began anew, or none moved.
        """
        joules, seconds = super().joules(start, end), end.seconds - start.seconds
        if joules == 0 and seconds >= _STILL_SECONDS:
            raise CheckFailedError(
                f"The meter {self.name} counted 0 J in {seconds:.3g} s, as counters of virtual machines do: give the "
                "CSV file of an external meter."
            )
        return joules


def _range_microjoules(zone: Path) -> int:
    """Return where a counter begins anew.

    Raises:
        OSError, ValueError: if that cannot be read, or is nowhere.
    """
    path = zone / "max_energy_range_uj"
    found = int(path.read_text())
    if found <= 0:
        raise ValueError(f"{path} is {found} uJ")
    return found


def _passed_microjoules(counter: Path, last: int, now: int, range_microjoules: int, most_joules: float) -> int:
    """Return what a counter has counted, which may have wrapped once.

    Raises:
        ValueError: if that is more than a processor can take.
    """
    passed = now - last if now >= last else now - last + range_microjoules
    if not 0 <= passed <= 1e6 * most_joules:
        raise ValueError(
            f"{counter} went from {last} to {now} uJ where at most {most_joules:.3g} J can have passed, so it began "
            "anew, as after a suspend: measure again"
        )
    return passed


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
