"""Trees of sysfs as boards show their meters in them, with links as the kernel makes them.

Sources: JetPack 4: NVIDIA's Tegra Linux Driver Package Development Guide, release 32, "Software-Based Power Consumption
Modeling" (`ina3221x`, iio). JetPack 5 and 6: https://docs.kernel.org/5.10/hwmon/ina3221.html and
https://docs.kernel.org/hwmon/ina3221.html, whose later version has the sum of shunt voltages as `in7` and `curr4`.
Rails of an AGX Orin: arch/arm64/boot/dts/nvidia/tegra234-p3701.dtsi of Linux; an Orin Nano's have the same form there.
INA238: https://docs.kernel.org/hwmon/ina238.html. RAPL: https://docs.kernel.org/power/powercap/powercap.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write(folder: Path, files: Mapping[str, object]) -> Path:
    """Write files of one line each into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def jetpack4(system: Path, bus: int, rails: Mapping[int, tuple[tuple[str, int, int], ...]]) -> None:
    """Make what JetPack 4 shows of its INA3221s: by address three rails, each a name, mV and mA."""
    for number, (address, channels) in enumerate(sorted(rails.items())):
        client = f"{bus}-{address:04x}"
        device = write(system / f"devices/7000c400.i2c/i2c-{bus}/{client}", {"name": "ina3221x"})
        files: dict[str, object] = {"name": "ina3221x"}
        for channel, (name, millivolts, milliamperes) in enumerate(channels):
            files |= {
                f"rail_name_{channel}": name,
                f"in_voltage{channel}_input": millivolts,
                f"in_current{channel}_input": milliamperes,
                f"in_power{channel}_input": millivolts * milliamperes // 1000,
                f"crit_current_limit_{channel}": "32760 ma",
            }
        write(device / f"iio:device{number}", files)
        driver = system / "bus/i2c/drivers/ina3221x"
        driver.mkdir(parents=True, exist_ok=True)
        (driver / client).symlink_to(device)


def hwmon(system: Path, number: int, files: Mapping[str, object]) -> Path:
    """Make a chip that a hwmon driver shows, and return its folder."""
    device = system / f"devices/platform/bus@0/c240000.i2c/i2c-1/1-{0x40 + number:04x}"
    folder = write(device / f"hwmon/hwmon{number}", files)
    shown = system / "class/hwmon"
    shown.mkdir(parents=True, exist_ok=True)
    (shown / f"hwmon{number}").symlink_to(folder)
    return folder


def ina3221(rails: Mapping[int, tuple[str, int, int]], *, sum_of_shunts: bool = False) -> dict[str, object]:
    """Return the files of an INA3221 in JetPack 5, or 6: by channel a name, mV and mA."""
    files: dict[str, object] = {"name": "ina3221", "update_interval": 10, "samples": 1}
    for channel, (name, millivolts, milliamperes) in rails.items():
        files |= {
            f"in{channel}_label": name,
            f"in{channel}_input": millivolts,
            f"in{channel}_enable": 1,
            f"curr{channel}_input": milliamperes,
            f"curr{channel}_max": 7784,
            f"shunt{channel}_resistor": 5000,
            f"in{channel + 3}_input": milliamperes * 5,
        }
    if sum_of_shunts:
        total = sum(milliamperes for _, _, milliamperes in rails.values())
        files |= {"in7_input": 5 * total, "in7_label": "sum of shunt voltages", "curr4_input": total}
    return files


def rapl_zone(system: Path, name: str, label: str, *, range_microjoules: int, count: int) -> Path:
    """Make a zone of RAPL."""
    return write(
        system / "class/powercap" / name,
        {"name": label, "energy_uj": count, "max_energy_range_uj": range_microjoules, "enabled": 1},
    )
