"""Watches clock, temperature and throttling of this machine while it is measured.

Sources: https://docs.kernel.org/admin-guide/pm/cpufreq.html (kHz);
https://docs.kernel.org/driver-api/thermal/sysfs-api.html (thousandths of a degree; cooling devices do nothing in state
0). A Raspberry Pi's bits:
https://www.raspberrypi.com/documentation/computers/os.html#get_throttled, in sysfs as hexadecimal digits. Jetsons count
events of over-current in `oc<n>_event_cnt` of the chip `soctherm_oc`, and have cooling devices such as
`cpu-throttle-alert`: NVIDIA's Jetson Linux Developer Guide, release 36, "Platform Power and Performance". x86 counts in
`thermal_throttle`: arch/x86/kernel/cpu/mce/therm_throt.c of Linux.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from poet_onnx.costing.conditions import Conditions
from poet_onnx.energy.pmic import ask_firmware

SYSTEM = Path("/sys")
_LONGEST = 100

_BITS = {0: "under-voltage", 1: "clock capped", 2: "throttled", 3: "soft temperature limit"}
"""Of a Raspberry Pi's word, for now; 16 bits further up they stand for the time since the start."""

_SINCE_START = 16
_PROCESSOR_ZONES = ("cpu", "pkg", "core", "soc")
"""Words in the types of thermal zones of a processor. Others, as a Jetson's PMIC, tell fixed figures."""

_MOST_CELSIUS = 200.0
_MOST_DIGITS = 9


@dataclass(frozen=True)
class _Look:
    """What the kernel tells at a moment.

    Attributes:
        hertz: clock of the quickest core.
        celsius: of the hottest zone of the processor.
        throttled: what slows the processor down now.
        events: how often each thing has slowed it down since the start.
    """

    hertz: int | None
    celsius: float | None
    throttled: tuple[str, ...]
    events: Mapping[str, int]


class Watch:
    """Looks at the machine before, between and behind measurements; each look takes about a millisecond."""

    def __init__(self, system: Path = SYSTEM, *, vcgencmd: str = "vcgencmd") -> None:
        """Look for the first time.

        Args:
            system: where sysfs is mounted.
            vcgencmd: name or path of the tool of a Raspberry Pi's firmware, for kernels that do not tell its bits.
        """
        self._system, self._tool = system, shutil.which(vcgencmd)
        self._looks = [self._look()]
        self._busy_hertz: list[int] = []

    def note(self) -> None:
        """Look between two measurements, while the processor has been busy."""
        look = self._look()
        self._looks.append(look)
        if look.hertz is not None:
            self._busy_hertz.append(look.hertz)

    def conditions(self) -> Conditions:
        """Look for the last time, and return what was seen."""
        self._looks.append(self._look())
        first, *_, last = self._looks
        celsius = [look.celsius for look in self._looks if look.celsius is not None]
        seen = [name for look in self._looks for name in look.throttled]
        seen += [name for name, count in last.events.items() if count > first.events.get(name, 0)]
        governors = [_text(each / "scaling_governor") for each in self._clocks()]
        most_hertz = max((_count(each / "cpuinfo_max_freq") * 1000 for each in self._clocks()), default=0)
        return Conditions(
            date=datetime.date.today().isoformat(),
            board=board_model(self._system),
            governors=tuple(sorted({name for name in governors if name})),
            most_hertz=most_hertz or None,
            least_hertz=min(self._busy_hertz, default=None),
            celsius_before=first.celsius,
            most_celsius=max(celsius, default=None),
            throttled=tuple(dict.fromkeys(seen)),
        )

    def _look(self) -> _Look:
        hertz = max((_count(each / "scaling_cur_freq") * 1000 for each in self._clocks()), default=0)
        bits = self._firmware_bits()
        throttled = [name for bit, name in _BITS.items() if (bits >> bit) & 1]
        since_start = {name: (bits >> (bit + _SINCE_START)) & 1 for bit, name in _BITS.items()}
        return _Look(
            hertz or None,
            max(_processor_celsius(self._system), default=None),
            (*throttled, *_cooling(self._system)),
            {**since_start, **dict(_events(self._system))},
        )

    def _clocks(self) -> list[Path]:
        return sorted((self._system / "devices/system/cpu").glob("cpu[0-9]*/cpufreq"))

    def _firmware_bits(self) -> int:
        """Return a Raspberry Pi's word; 0 elsewhere."""
        told = next((self._system / "devices/platform").glob("*/*firmware/get_throttled"), None)
        text = self._asked() if told is None else _text(told)
        try:
            return int(text.rpartition("=")[2], 16)
        except ValueError:
            return 0

    def _asked(self) -> str:
        """Return what the firmware's tool prints, such as "throttled=0x50005"."""
        if self._tool is None:
            return ""
        try:
            return ask_firmware(self._tool, "get_throttled").strip()
        except OSError:
            return ""


def board_model(system: Path = SYSTEM) -> str:
    """Return a board's model, as its device tree or its firmware says it; empty where neither does.

    Args:
        system: where sysfs is mounted.
    """
    tree = _text(system / "firmware/devicetree/base/model")  # /proc/device-tree leads there
    product = " ".join(filter(None, (_text(system / "class/dmi/id" / each) for each in ("sys_vendor", "product_name"))))
    return (tree or product)[:_LONGEST]


def _processor_celsius(system: Path) -> Iterator[float]:
    for zone in sorted((system / "class/thermal").glob("thermal_zone*")):
        kind = _text(zone / "type").lower()
        if any(word in kind for word in _PROCESSOR_ZONES):
            celsius = _count(zone / "temp") * 1e-3  # a sensor that sleeps tells nothing
            if 0 < celsius < _MOST_CELSIUS:
                yield celsius


def _cooling(system: Path) -> Iterator[str]:
    """Yield the cooling devices that slow the processor down now; fans do not."""
    for device in sorted((system / "class/thermal").glob("cooling_device*")):
        kind = _text(device / "type")
        if ("cpu" in kind.lower() or kind == "Processor") and _count(device / "cur_state") > 0:
            yield kind


def _events(system: Path) -> Iterator[tuple[str, int]]:
    """Yield how often something has slowed the processor down since the start."""
    counters = [
        (counter, "over-current")
        for chip in (system / "class/hwmon").glob("hwmon*")
        if _text(chip / "name") == "soctherm_oc"
        for counter in chip.glob("oc*_event_cnt")
    ]
    for counter in (system / "devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count"):
        counters.append((counter, "temperature limit"))
    sums: dict[str, int] = {}
    for counter, name in counters:
        sums[name] = sums.get(name, 0) + _count(counter)
    yield from sums.items()


def _count(path: Path) -> int:
    """Return the whole number of a file; 0 where there is none that can be one."""
    text = _text(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


def _text(path: Path) -> str:
    """Return a short line of a file, printable; empty where it cannot be read."""
    try:
        text = path.read_bytes()[:4096].decode(errors="replace")
    except OSError:
        return ""
    return printable(text.strip("\0 \n\t"), _LONGEST)


def printable(text: str, most_letters: int) -> str:
    """Return a text's letters that can be shown, and no more than so many."""
    return "".join(letter for letter in text if letter.isprintable())[:most_letters]
