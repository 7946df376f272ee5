"""What a plan says of the energy of a step, as a model's metadata have it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DEVICE_KEY, COSTS_KEY, ENERGY_KEY = "poet.device", "poet.costs", "poet.energy_joules"


@dataclass(frozen=True, slots=True)
class PlannedEnergy:
    """Energy of a step, as planned.

    Attributes:
        joules: of the whole step.
        idle_watts: of the device, which are counted over the step; 0 where what is above rest counts alone.
        measured: the nodes' joules come from a meter, not from the device profile's watts.
        device: that was planned for.
    """

    joules: float
    idle_watts: float
    measured: bool
    device: str

    @property
    def origin(self) -> Literal["measured", "modelled"]:
        """Whether it is "measured" or "modelled"."""
        return "measured" if self.measured else "modelled"

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, str]) -> PlannedEnergy | None:
        """Return what a model's metadata say; None where they say nothing that can be."""
        try:
            costs = json.loads(metadata[COSTS_KEY])
            joules, idle_watts = float(metadata[ENERGY_KEY]), float(costs["idle_watts"])
            found = cls(joules, idle_watts, bool(costs["energy_measured"]), metadata[DEVICE_KEY])
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        return found if all(math.isfinite(each) and each >= 0 for each in (joules, idle_watts)) else None
