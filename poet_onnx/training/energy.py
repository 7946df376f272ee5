"""Energy of training steps, measured beside the plan's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType

from poet_onnx.choices import AUTO
from poet_onnx.description.energy import PlannedEnergy
from poet_onnx.energy import Mark, Meter, open_meter, power_at_rest
from poet_onnx.errors import InputError


class StepEnergy:
    """Measures what a machine takes while a session trains; begin and end it by `with`.

    The figures are there when it has ended. Those of a meter are measured; `planned` tells whether the plan's are.
    """

    def __init__(
        self,
        steps_done: Callable[[], int],
        evaluated: Callable[[], int],
        planned: Callable[[], PlannedEnergy | None],
        meter: str | os.PathLike[str] | Meter = AUTO,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open the meter.

        Args:
            steps_done: returns how many steps have run so far.
            evaluated: returns how many batches were evaluated.
            planned: returns what the plan says of a step.
            meter: "auto" for the machine's own, the CSV file of an external one, or one that is open, and stays so.
            sleep: rests, for the power at rest.

        Raises:
            InputError: if there is no meter, or it cannot be used.
        """
        self._steps_done, self._evaluated, self._planned, self._sleep = steps_done, evaluated, planned, sleep
        self._closes = isinstance(meter, (str, os.PathLike))
        self._meter: Meter = open_meter(meter) if isinstance(meter, (str, os.PathLike)) else meter
        self._start = self._end = Mark(0.0, 0.0)
        self._rest_watts = self._joules = 0.0
        self._first_step = self._steps = self._first_evaluation = self._evaluations = 0
        self._ended = False

    def __enter__(self) -> StepEnergy:
        """Measure the power at rest, for some seconds, and begin.

        Raises:
            CheckFailedError: if the meter has stopped.
        """
        try:
            self._rest_watts = power_at_rest(self._meter, sleep=self._sleep).watts
            self._first_step, self._first_evaluation = self._steps_done(), self._evaluated()
            self._start = self._meter.mark()
        except BaseException:  # `with` ends only what has begun
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End.

        Raises:
            CheckFailedError: if the meter has stopped meanwhile.
        """
        self._end, self._steps = self._meter.mark(), self._steps_done() - self._first_step
        self._evaluations = self._evaluated() - self._first_evaluation
        try:
            if error is None:
                self._joules = self._meter.joules(self._start, self._end)
                self._ended = True
        finally:
            self._close()

    def _close(self) -> None:
        if self._closes:
            self._meter.close()

    @property
    def meter(self) -> str:
        """What measures, in words."""
        return self._meter.name

    @property
    def steps(self) -> int:
        """Training steps that were measured."""
        return self._checked()._steps

    @property
    def seconds(self) -> float:
        """Of all that was measured."""
        return self._checked()._end.seconds - self._start.seconds

    @property
    def joules(self) -> float:
        """Of all that was measured, rest included."""
        return self._checked()._joules

    @property
    def rest_watts(self) -> float:
        """Power at rest, before the steps."""
        return self._checked()._rest_watts

    @property
    def step_joules(self) -> float:
        """Of a step, on average, counted as the plan counts: above rest, or all of it where it has idle watts.

        Raises:
            InputError: if there was no step, or batches were evaluated besides.
        """
        self._checked()
        if self._evaluations:
            raise InputError(f"{self._besides} are in what was measured: let `with` hold training steps alone.")
        if self._steps < 1:
            raise InputError("No training step ran while energy was measured: take the steps within `with`.")
        planned = self._planned()
        rest = 0.0 if planned is not None and planned.idle_watts else self._rest_watts
        return (self._joules - rest * self.seconds) / self._steps

    @property
    def planned(self) -> PlannedEnergy | None:
        """What the plan that runs says of a step; None for a model without one."""
        return self._planned()

    def __str__(self) -> str:
        """Return it in a sentence or two: what was measured, and what the plan says."""
        if self._checked()._evaluations:
            return (
                f"{self.joules:.4g} J in {self.seconds:.4g} s, measured by {self.meter}; {self._besides} are in it, so"
                " that what a step takes is not known."
            )
        planned = self.planned
        counted = (
            "all in all" if planned is not None and planned.idle_watts else f"above {self.rest_watts:.4g} W at rest"
        )
        text = (
            f"{self.step_joules:.4g} J a step {counted}, measured by {self.meter} over {self.steps} "
            f"step{'' if self.steps == 1 else 's'} of {self.seconds / self.steps:.4g} s"
        )
        if planned is None:
            return f"{text}; there is no plan."
        return f"{text}; the plan for {planned.device} says {planned.joules:.4g} J, {planned.origin}."

    @property
    def _besides(self) -> str:
        """What was measured that is no training step."""
        return f"{self._evaluations} evaluated batch{'' if self._evaluations == 1 else 'es'}"

    def _checked(self) -> StepEnergy:
        if not self._ended:
            raise InputError("The energy is known when its `with` has ended.")
        return self
