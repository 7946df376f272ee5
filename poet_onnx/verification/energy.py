"""Measure what steps of both models take, beside what the plan says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.description.energy import PlannedEnergy
from poet_onnx.energy import Meter, RunEnergy, SteadyPower, open_meter, power_at_rest, run_energy
from poet_onnx.errors import InputError
from poet_onnx.verification.report import EnergyRun
from poet_onnx.verification.sessions import Session

Array = npt.NDArray[np.generic]


def measure_energy(
    meter: str | os.PathLike[str],
    planned: PlannedEnergy | None,
    sessions: Mapping[str, Callable[[], Session]],
    feeds: Mapping[str, Array],
) -> EnergyRun:
    """Measure what a step of the original and of the rewritten model take.

    Args:
        meter: "auto" for this machine's own, or the CSV file of an external one.
        planned: what the rewritten model says of itself.
        sessions: make a session of "original" and "rewritten", one after the other.
        feeds: of every step.

    Raises:
        InputError: the model says nothing of its energy.
        CheckFailedError: a model cannot be run, or the meter has stopped.
    """
    if planned is None:
        raise InputError("The second model says nothing of its energy: rewrite the original again.")
    with closing(open_meter(meter)) as opened:
        rest = power_at_rest(opened)
        original, rewritten = (_measured(sessions[role], feeds, opened, rest) for role in ("original", "rewritten"))
    counts_rest = planned.idle_watts > 0
    base_watts = rest.watts if counts_rest else 0.0
    return EnergyRun(
        meter=opened.name,
        rest_watts=rest.watts,
        original_joules=original.joules + base_watts * original.seconds,
        original_error_joules=original.error_joules,
        original_seconds=original.seconds,
        rewritten_joules=rewritten.joules + base_watts * rewritten.seconds,
        rewritten_error_joules=rewritten.error_joules,
        rewritten_seconds=rewritten.seconds,
        repetitions=rewritten.repetitions,
        planned_joules=planned.joules,
        planned_origin=planned.origin,
        counts_rest=counts_rest,
    )


def _measured(make: Callable[[], Session], feeds: Mapping[str, Array], meter: Meter, rest: SteadyPower) -> RunEnergy:
    with make() as session:
        binding: Any = session.prepare(feeds)
        return run_energy(lambda: session.run(binding), meter, rest)
