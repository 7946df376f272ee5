"""Energy: meters of boards and processors, and how to measure with them."""

from __future__ import annotations

from poet_onnx.energy.finding import find_meter, meter_if_any, open_meter
from poet_onnx.energy.meters import Mark, Meter, SampledMeter
from poet_onnx.energy.repeating import RunEnergy, SteadyPower, power_at_rest, run_energy

__all__ = [
    "Mark",
    "Meter",
    "RunEnergy",
    "SampledMeter",
    "SteadyPower",
    "find_meter",
    "meter_if_any",
    "open_meter",
    "power_at_rest",
    "run_energy",
]
