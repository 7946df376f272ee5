"""The INA3221 of a Jetson and the INA238, in the layouts that kernels show them in.

Sources. JetPack 4 (L4T 32, `ina3221x`, iio): NVIDIA's Tegra Linux Driver Package Development Guide, release 32,
"Software-Based Power Consumption Modeling" (https://developer.nvidia.cn/embedded/dlc/l4t-documentation-32-1):
`/sys/bus/i2c/drivers/ina3221x/<address>/iio:device<n>` (or `iio_device`) has `rail_name_<channel>` and
`in_power<channel>_input` in mW. JetPack 5 and 6 (`ina3221`, hwmon): https://docs.kernel.org/hwmon/ina3221.html has
`in<n>_label`, `in<n>_input` in mV, `curr<n>_input` in mA and `update_interval` in ms; `in7_label` is the sum of shunt
voltages. INA238: https://docs.kernel.org/hwmon/ina238.html has `power1_input` in uW.

A Jetson's input rail supplies the others: `VDD_IN` on TX2, Xavier NX, Orin NX and Orin Nano, `POM_5V_IN` on Nano. It is
the total, and the others are not added to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from poet_onnx.errors import InputError

INPUT_RAILS = ("VDD_IN", "POM_5V_IN", "VIN")

_UNKNOWN_UPDATE_SECONDS = 0.1
"""Where a driver does not say how long a conversion of all channels takes."""

_INA238 = ("ina238", "ina237", "ina228")


class Ina3221Rail:
    """A rail of an INA3221: of its power, or of its voltage and current."""

    def __init__(self, name: str, power: Path | None, voltage: Path, current: Path, update_seconds: float) -> None:
        self.name, self.update_seconds = f"INA3221 {name}", update_seconds
        self.label = name
        self._power, self._voltage, self._current = power, voltage, current

    def read_watts(self) -> float:
        """Return the power.

        Raises:
            OSError, ValueError: if it cannot be read.
        """
        if self._power is not None:
            return int(self._power.read_text()) * 1e-3
        return int(self._voltage.read_text()) * int(self._current.read_text()) * 1e-6


class Ina238:
    """An INA238 with what flows through its shunt."""

    def __init__(self, folder: Path) -> None:
        self.label = _text(folder / "in1_label")
        self.name = f"INA238 {self.label or folder.name}"
        self.update_seconds = _update_seconds(folder)
        self._power = folder / "power1_input"

    def read_watts(self) -> float:
        """Return the power.

        Raises:
            OSError, ValueError: if it cannot be read.
        """
        return int(self._power.read_text()) * 1e-6


def find_ina(system: Path) -> Ina238 | Ina3221Rail | None:
    """Return the sensor of what a board takes in all; None where there is no such chip.

    It is the board's input rail by its label, or an INA238 that is the only one and has no label.

    Raises:
        InputError: if there are some, and none is known to measure the whole board.
    """
    rails, chips = [*_iio_rails(system), *_hwmon_rails(system)], list(_ina238s(system))
    found: list[Ina238 | Ina3221Rail] = [*rails, *chips]
    for each in found:
        if each.label in INPUT_RAILS:
            return each
    if len(chips) == 1 and not chips[0].label:
        return chips[0]
    if found:
        names = ", ".join(each.name for each in found)
        raise InputError(
            f"None of the power rails that this board measures is known as its input ({names}), and some supply "
            "others: give the CSV file of an external meter."
        )
    return None


def _ina238s(system: Path) -> Iterator[Ina238]:
    for folder in sorted((system / "class/hwmon").glob("hwmon*")):
        if _text(folder / "name") in _INA238 and (folder / "power1_input").exists():
            yield Ina238(folder)


def _iio_rails(system: Path) -> Iterator[Ina3221Rail]:
    for name in sorted((system / "bus/i2c/drivers/ina3221x").glob("*/iio*/rail_name_*")):
        channel = name.name.removeprefix("rail_name_")
        power, voltage, current = (
            name.with_name(f"in_{kind}{channel}_input") for kind in ("power", "voltage", "current")
        )
        if rail := _text(name):
            yield Ina3221Rail(rail, power, voltage, current, _UNKNOWN_UPDATE_SECONDS)


def _hwmon_rails(system: Path) -> Iterator[Ina3221Rail]:
    for folder in sorted((system / "class/hwmon").glob("hwmon*")):
        if _text(folder / "name") != "ina3221":
            continue
        for channel in (1, 2, 3):
            rail = _text(folder / f"in{channel}_label")
            if rail and rail != "NC":
                files = (folder / f"in{channel}_input", folder / f"curr{channel}_input")
                yield Ina3221Rail(rail, None, *files, _update_seconds(folder))


def _update_seconds(folder: Path) -> float:
    text = _text(folder / "update_interval")
    return int(text) * 1e-3 if text.isdigit() and int(text) > 0 else _UNKNOWN_UPDATE_SECONDS


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
