"""Trees of sysfs as boards show clock, temperature and throttling in them.

Sources: https://docs.kernel.org/admin-guide/pm/cpufreq.html,
https://docs.kernel.org/driver-api/thermal/sysfs-api.html and
https://www.raspberrypi.com/documentation/computers/os.html#get_throttled. An Orin Nano's zones and cooling devices:
NVIDIA's Jetson Linux Developer Guide, release 36, "Platform Power and Performance"; its counters of over-current:
drivers/hwmon/soctherm_oc.c there. A Jetson Nano's PMIC tells 100 °C always.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from meter_trees import write


def cores(system: Path, kilohertz: Iterable[int], *, most: int, governor: str) -> None:
    """Make cores, or change them: the clock of each, the highest one, and what decides."""
    for number, now in enumerate(kilohertz):
        files = {"scaling_cur_freq": now, "cpuinfo_max_freq": most, "scaling_governor": governor}
        write(system / f"devices/system/cpu/cpu{number}/cpufreq", files)
        write(system / "devices/system/cpu/cpuidle", {"current_driver": "none"})


def zones(system: Path, temperatures: Iterable[tuple[str, object]]) -> None:
    """Make thermal zones, or change them: a type and a temperature each."""
    for number, (kind, temperature) in enumerate(temperatures):
        write(system / f"class/thermal/thermal_zone{number}", {"type": kind, "temp": temperature})


def cooling(system: Path, states: Iterable[tuple[str, int]]) -> None:
    """Make cooling devices, or change them: a type and a state each."""
    for number, (kind, state) in enumerate(states):
        write(system / f"class/thermal/cooling_device{number}", {"type": kind, "cur_state": state, "max_state": 48})


def model(system: Path, name: str) -> None:
    """Give a board its model, as a device tree ends texts."""
    write(system / "firmware/devicetree/base", {})
    (system / "firmware/devicetree/base/model").write_bytes(name.encode() + b"\0")


def pi4(system: Path) -> None:
    """Make a Raspberry Pi 4 at rest."""
    model(system, "Raspberry Pi 4 Model B Rev 1.4")
    cores(system, [600_000] * 4, most=1_500_000, governor="ondemand")
    zones(system, [("cpu-thermal", 48_212)])
    cooling(system, [("thermal-cpufreq-0", 0)])
    write(system / "devices/platform/soc/soc:firmware", {"get_throttled": "50000"})


def orin_nano(system: Path) -> None:
    """Make a Jetson Orin Nano at rest, all of whose clocks are fixed."""
    model(system, "NVIDIA Jetson Orin Nano Developer Kit")
    cores(system, [1_510_400] * 6, most=1_510_400, governor="performance")
    zones(system, [("cpu-thermal", 51_000), ("gpu-thermal", ""), ("tj-thermal", 52_000), ("soc0-thermal", 50_500)])
    cooling(system, [("pwm-fan", 3), ("cpu-throttle-alert", 0), ("gpu-throttle-alert", 0), ("cpufreq-cpu0", 0)])
    write(system / "class/hwmon/hwmon2", {"name": "soctherm_oc", "oc1_event_cnt": 0, "oc3_event_cnt": 15})
