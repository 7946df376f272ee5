"""The power management chip of a Raspberry Pi 5, as the firmware tells it.

`vcgencmd pmic_read_adc` (https://www.raspberrypi.com/documentation/computers/os.html#vcgencmd) prints a line for each
figure: `VDD_CORE_A current(7)=1.11625000A`, `VDD_CORE_V volt(15)=0.74944980V`. Twelve rails have both. `EXT5V_V` and
`BATT_V` are voltages alone. What the 5 V supply gives to USB devices, to a HAT or to the converters' losses is in none.
"""

from __future__ import annotations

import re
import shutil
import subprocess

_LINE = re.compile(r"\s*(\w+)_([AV])\s+(?:current|volt)\(\d+\)=([\d.]+)[AV]\s*")

_UPDATE_SECONDS = 0.2
"""Between two readings: each is a process of its own, of about 10 ms on one core."""

_MOST_SECONDS = 5.0


def ask_firmware(command: str, question: str) -> str:
    """Return what a Raspberry Pi's firmware prints.

    Args:
        command: path of its tool, `vcgencmd`.
        question: that the tool takes.

    Raises:
        OSError: if the tool cannot be run, or takes too long.
    """
    try:
        done = subprocess.run(
            [command, question], capture_output=True, text=True, errors="replace", timeout=_MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command} took longer than {_MOST_SECONDS:.0f} s") from error
    return done.stdout


class PmicSensor:
    """All rails of the chip that tell current and voltage."""

    name = "PMIC, sum of its rails"
    update_seconds = _UPDATE_SECONDS

    def __init__(self, command: str) -> None:
        self._command = command

    def read_watts(self) -> float:
        """Return the power.

        Raises:
            OSError, ValueError: if it cannot be read.
        """
        return rails_watts(ask_firmware(self._command, "pmic_read_adc"))


def rails_watts(text: str) -> float:
    """Return the sum of current times voltage over the rails that have both.

    Args:
        text: what `vcgencmd pmic_read_adc` printed.

    Raises:
        ValueError: if there are none.
    """
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None:
            found.setdefault(match[1], {})[match[2]] = float(match[3])
    rails = [each["A"] * each["V"] for each in found.values() if len(each) == 2]
    if not rails:
        raise ValueError("vcgencmd told no rail's current and voltage")
    return sum(rails)


def find_pmic(command: str = "vcgencmd") -> PmicSensor | None:
    """Return the sensor of a Raspberry Pi 5; None on other boards.

    Args:
        command: name or path of the firmware's tool.
    """
    path = shutil.which(command)
    if path is None:
        return None
    sensor = PmicSensor(path)
    try:
        sensor.read_watts()
    except (OSError, ValueError):
        return None
    return sensor
