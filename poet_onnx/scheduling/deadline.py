"""Time in the model: rows (5).

All that recomputes and waits for transfers add up to may not exceed what the deadline leaves beside the computations.
Where transfers stop the step, each one is waited for. Where they run beside the computations, only placing them tells
how long the step waits: then a relaxation leaves their time out, and a stricter model, which leaves plans out, takes
them all as waited for.

    (5)   sum t_u R + c (sum tin_k I + sum tout_k F) <= deadline - seconds of the computations

with c = 1 where transfers are charged, else 0.

Two nodes: a makes k in 1 s, k takes 3 s to write and 2 s to read, b reads it, and the deadline leaves 4 s. The row is
R[b,a] + 2 I[k,0] + 3 F[k] <= 4: k is made again, or stays in RAM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poet_onnx.plan.limits import ROUNDING, Limits
from poet_onnx.scheduling.liveness import Instance
from poet_onnx.scheduling.memory_rows import Row

if TYPE_CHECKING:
    from poet_onnx.scheduling.model import Formulation


@dataclass(frozen=True, slots=True)
class Timing:
    """How a model sees a deadline.

    Attributes:
        spare_seconds: what it leaves beside the computations, for recomputes and waits.
        charges_transfers: the time of transfers counts as waited for.
        leaves_none_out: every plan that keeps the deadline satisfies the rows.
    """

    spare_seconds: float
    charges_transfers: bool
    leaves_none_out: bool = True

    @property
    def stricter(self) -> Timing | None:
        """Return the rows that leave plans out, but none in that miss the deadline; None if these do already."""
        return None if self.charges_transfers else replace(self, charges_transfers=True, leaves_none_out=False)


def relaxed_timing(instance: Instance, limits: Limits) -> Timing | None:
    """Return the relaxation of a deadline, which leaves no plan out; exact where transfers are synchronous.

    None where there is no deadline.
    """
    if limits.deadline_seconds is None:
        return None
    spare = max(0.0, limits.deadline_seconds - instance.base_seconds) + ROUNDING * limits.deadline_seconds
    return Timing(spare, charges_transfers=not instance.problem.costs.asynchronous)


def add_time_rows(model: Formulation, timing: Timing) -> None:
    """Add row (5), unless it can never bind."""
    units = model.candidates.units
    terms = {variable: units[number].seconds for (_, number), variable in model.recompute.items()}
    if timing.charges_transfers:
        terms |= _transfer_seconds(model)
    if sum(terms.values()) > timing.spare_seconds:
        model.time.append(Row(terms, high=timing.spare_seconds))


def _transfer_seconds(model: Formulation) -> dict[int, float]:
    """Return how long the channel is busy with each page-in and page-out, by variable."""
    instance, costs = model.candidates.instance, model.candidates.instance.problem.costs
    page_ins = {
        variable: costs.page_in[instance.values[value]].seconds for (value, _), variable in model.page_in.items()
    }
    page_outs = {variable: costs.page_out[instance.values[value]].seconds for value, variable in model.page_out.items()}
    return page_ins | page_outs
