"""What a plan must keep to. Each limit has its words here: the simulator and refusals say them.

A limit on what a step moves is one entry of TRANSFER_LIMITS; `scheduling.limit_rows` has its rows and those of the
deadline. The budget's rows are in `scheduling.memory_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poet_onnx.errors import CheckFailedError

if TYPE_CHECKING:
    from poet_onnx.plan.plan import Prediction

ROUNDING = 1e-9
"""Part of a deadline by which a step may be late: seconds are added up in different orders."""


@dataclass(frozen=True, slots=True)
class TransferLimit:
    """A limit on the bytes that the transfers of a step add up to.

    Attributes:
        field: of `Limits`, which says how many bytes are allowed.
        figure: of `Prediction`, which says how many bytes a plan moves.
        verb: what a plan does with the bytes.
        where: it does so.
        is_out: page-outs count. A value is written once, however often it is read back.
        is_in: page-ins count, each of them.
    """

    field: str
    figure: str
    verb: str
    where: str
    is_out: bool = False
    is_in: bool = False


TRANSFER_LIMITS = (TransferLimit("max_written_bytes", "page_out_bytes", "write", "to storage", is_out=True),)


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard bounds on a step; None for none.

    Attributes:
        budget_bytes: on the transient peak.
        deadline_seconds: on the predicted time.
        max_written_bytes: on what is written to storage.
    """

    budget_bytes: int | None = None
    deadline_seconds: float | None = None
    max_written_bytes: int | None = None

    def within(self, budget_bytes: int | None) -> Limits:
        """Return the limits with another budget."""
        return replace(self, budget_bytes=budget_bytes)

    def without_deadline(self) -> Limits:
        """Return the limits without the deadline."""
        return replace(self, deadline_seconds=None)

    def without_transfers(self) -> Limits:
        """Return the limits without those on what is moved."""
        return replace(self, **{limit.field: None for limit in TRANSFER_LIMITS})

    @property
    def transient_bytes(self) -> int:
        """Return the budget.

        Raises:
            CheckFailedError: if there is none: then nothing needs to be left out of RAM.
        """
        if self.budget_bytes is None:
            raise CheckFailedError("A schedule without a budget needs no model.")
        return self.budget_bytes

    @property
    def latest_seconds(self) -> float:
        """Return the deadline with the rounding that is allowed, or infinity."""
        return math.inf if self.deadline_seconds is None else self.deadline_seconds * (1 + ROUNDING)

    def on_transfers(self) -> Iterator[tuple[TransferLimit, int]]:
        """Yield each limit on what is moved, with the bytes that are allowed."""
        for limit in TRANSFER_LIMITS:
            allowed_bytes: int | None = getattr(self, limit.field)
            if allowed_bytes is not None:
                yield limit, allowed_bytes

    def broken_by(self, prediction: Prediction, peak: str = "") -> Iterator[str]:
        """Yield what a plan does that a limit forbids, in words that follow the plan's name.

        Args:
            prediction: of the plan.
            peak: the step with the most bytes in RAM, where that is known.
        """
        budget, needed = self.budget_bytes, prediction.transient_peak_bytes
        if budget is not None and needed > budget:
            yield f"needs {needed:,} bytes{peak and f' at {peak}'} but the budget is {budget:,} bytes"
        if prediction.seconds > self.latest_seconds:
            yield f"takes {prediction.seconds:.6g} s but the deadline is {self.deadline_seconds:.6g} s"
        for limit, allowed in self.on_transfers():
            moved: int = getattr(prediction, limit.figure)
            if moved > allowed:
                yield f"{limit.verb}s {moved:,} bytes {limit.where} but may {limit.verb} {allowed:,} bytes"


UNLIMITED = Limits()
