"""Finds the meter of the machine at hand, or opens the one that was asked for."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from poet_onnx.choices import AUTO
from poet_onnx.energy.ina import find_ina
from poet_onnx.energy.log import MeterLog
from poet_onnx.energy.meters import Meter, SampledMeter
from poet_onnx.energy.pmic import find_pmic
from poet_onnx.energy.rapl import RaplMeter, rapl_zones
from poet_onnx.errors import InputError, PoetWarning

_SYSTEM = Path("/sys")


def find_meter(system: Path = _SYSTEM, *, vcgencmd: str = "vcgencmd") -> Meter | None:
    """Open the machine's own meter: what measures the whole board, or else the processor; None where there is none.

    Args:
        system: where sysfs is mounted.
        vcgencmd: name or path of the tool of a Raspberry Pi's firmware.

    Raises:
        InputError: if there is one, and it cannot be used.
    """
    sensor = find_ina(system) or find_pmic(vcgencmd)
    zones = [] if sensor is not None else rapl_zones(system)
    try:
        if sensor is not None:
            return SampledMeter(sensor)
        return RaplMeter(zones) if zones else None
    except (OSError, ValueError) as error:
        what = "RAPL" if sensor is None else sensor.name
        raise InputError(
            f"The meter {what} cannot be read: {error}; give the CSV file of an external meter."
        ) from error


def meter_if_any(system: Path = _SYSTEM) -> Meter | None:
    """Return the machine's own meter; where there is one that cannot be used, warn of it and return None."""
    try:
        return find_meter(system)
    except InputError as error:
        warnings.warn(f"Energy is modelled, not measured. {error}", PoetWarning, stacklevel=3)
        return None


def open_meter(meter: str | os.PathLike[str] = AUTO, system: Path = _SYSTEM) -> Meter:
    """Open a meter.

    Args:
        meter: "auto" for the machine's own, or the CSV file of an external one.
        system: where sysfs is mounted.

    Raises:
        InputError: if there is none, or it cannot be used.
    """
    if os.fspath(meter) != AUTO:
        return MeterLog(meter)
    found = find_meter(system)
    if found is None:
        raise InputError(
            "This machine has no energy meter that is known (INA3221, INA238, a Raspberry Pi 5's PMIC, RAPL): give the "
            "CSV file of an external meter, with time and watts."
        )
    return found
