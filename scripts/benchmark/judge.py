"""The judge: every method's plan goes through the same clean-up, the same transfer placement and the same simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import Prediction, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.baselines.tidy import tidied
from poet_onnx.simulate import simulate
from poet_onnx.transfers import overlap


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the simulator says of a plan.

    Attributes:
        verdict: "holds", "late" (only the deadline is missed), "over budget" or "invalid".
        prediction: its figures, without the limit that it breaks; None if it is invalid.
        steps: the plan after clean-up.
    """

    verdict: str
    prediction: Prediction | None
    steps: tuple[Step, ...]


def judge(problem: ScheduleProblem, limits: Limits, steps: Sequence[Step]) -> Verdict:
    """Clean a plan up, let its transfers run beside compute where the device can, and simulate it."""
    clean = tidied(problem, steps)
    for trial, verdict in (
        (limits, "holds"),
        (limits.without_deadline(), "late"),
        (limits.without_deadline().within(None), "over budget"),
    ):
        for candidate in (_overlapped(problem, limits, clean), clean):
            try:
                return Verdict(verdict, simulate(problem, candidate, trial), candidate)
            except CheckFailedError:
                continue
    return Verdict("invalid", None, clean)


def _overlapped(problem: ScheduleProblem, limits: Limits, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    try:
        return overlap(problem, limits, steps)
    except CheckFailedError:  # the simulator will say the same of the steps as they are
        return steps
