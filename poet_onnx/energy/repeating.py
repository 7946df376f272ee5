"""Energy of something short: repeat it until the meter has seen enough of it.

A sensor tells its power late, and a counter moves in steps. Neither matters while the power is steady, so that the
window opens when the work has run for a while, and closes while it runs. What is left is noise: the window is cut into
blocks, and grows until their mean is known well enough.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from poet_onnx.energy.meters import Meter

_SETTLING_UPDATES = 2
_LEAST_UPDATES = 20
_LEAST_SECONDS = 0.2
_BLOCKS = 10

_SHARE = 0.01
"""Of what is above rest, to which twice the standard error must come down."""

_REST_SHARE = 0.002
"""Of the power at rest: less, for what is above it may be a small part."""

_MOST_SECONDS = 30.0
_REST_SECONDS = 0.05


@dataclass(frozen=True)
class SteadyPower:
    """Power while something was repeated.

    Attributes:
        watts: mean.
        error_watts: two standard errors of it.
        run_seconds: of one repetition.
        repetitions: within the window.
    """

    watts: float
    error_watts: float
    run_seconds: float
    repetitions: int


@dataclass(frozen=True)
class RunEnergy:
    """Energy of one run of something, measured.

    Attributes:
        joules: above rest.
        error_joules: two standard errors of it.
        seconds: that it took.
        watts_above_rest: while it ran.
        repetitions: that it was measured by.
    """

    joules: float
    error_joules: float
    seconds: float
    watts_above_rest: float
    repetitions: int


def steady_power(
    run: Callable[[], object], meter: Meter, *, above_watts: float, share: float, most_seconds: float
) -> SteadyPower:
    """Return the power of the machine while it runs something over and over.

    Args:
        run: what to repeat.
        meter: of the machine.
        above_watts: from here on the power counts.
        share: of that, to which twice the standard error must come down.
        most_seconds: no larger window is begun, however large the error.

    Raises:
        CheckFailedError: if the meter has stopped.
    """
    begun = meter.now()
    while meter.now() - begun < _SETTLING_UPDATES * meter.update_seconds:
        run()
    window = min(most_seconds, max(_LEAST_UPDATES * meter.update_seconds, _LEAST_SECONDS))
    while True:
        found = _window(run, meter, window)
        if found.error_watts <= share * abs(found.watts - above_watts) or 2 * window > most_seconds:
            return found
        window *= 2


def power_at_rest(
    meter: Meter, *, sleep: Callable[[float], None] = time.sleep, most_seconds: float = _MOST_SECONDS
) -> SteadyPower:
    """Return the power of the machine while this process sleeps.

    Raises:
        CheckFailedError: if the meter has stopped.
    """
    return steady_power(
        lambda: sleep(_REST_SECONDS), meter, above_watts=0.0, share=_REST_SHARE, most_seconds=most_seconds
    )


def run_energy(
    run: Callable[[], object], meter: Meter, rest: SteadyPower, *, most_seconds: float = _MOST_SECONDS
) -> RunEnergy:
    """Return what one run of something takes above rest.

    Args:
        run: what to repeat.
        meter: of the machine.
        rest: its power at rest.
        most_seconds: of the last window.

    Raises:
        CheckFailedError: if the meter has stopped.
    """
    power = steady_power(run, meter, above_watts=rest.watts, share=_SHARE, most_seconds=most_seconds)
    above = power.watts - rest.watts
    error = math.hypot(power.error_watts, rest.error_watts)
    return RunEnergy(
        joules=above * power.run_seconds,
        error_joules=error * power.run_seconds,
        seconds=power.run_seconds,
        watts_above_rest=above,
        repetitions=power.repetitions,
    )


def _window(run: Callable[[], object], meter: Meter, window_seconds: float) -> SteadyPower:
    marks, repetitions = [meter.mark()], 0
    for _ in range(_BLOCKS):
        while True:
            run()
            repetitions += 1
            if meter.now() - marks[-1].seconds >= window_seconds / _BLOCKS:
                break
        marks.append(meter.mark())
    blocks = [meter.joules(start, end) / (end.seconds - start.seconds) for start, end in itertools.pairwise(marks)]
    seconds = marks[-1].seconds - marks[0].seconds
    return SteadyPower(
        watts=meter.joules(marks[0], marks[-1]) / seconds,
        error_watts=2 * statistics.stdev(blocks) / math.sqrt(_BLOCKS),
        run_seconds=seconds / repetitions,
        repetitions=repetitions,
    )
