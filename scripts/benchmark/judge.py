"""The judge: every method's plan goes through the same simulator, as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import Prediction, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate import simulate


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the simulator says of a plan.

    Attributes:
        verdict: "holds", "late" (only the deadline is missed), "over budget" or "invalid".
        prediction: its figures, without the limit that it breaks; None if it is invalid.
    """

    verdict: str
    prediction: Prediction | None


def judge(problem: ScheduleProblem, limits: Limits, steps: Sequence[Step]) -> Verdict:
    """Simulate a plan within its limits, and without them to tell what it breaks."""
    for trial, verdict in (
        (limits, "holds"),
        (limits.without_deadline(), "late"),
        (limits.without_deadline().within(None), "over budget"),
    ):
        try:
            return Verdict(verdict, simulate(problem, steps, trial))
        except CheckFailedError:
            continue
    return Verdict("invalid", None)
