"""Limits beside the budget: their rows in the model and in the relaxation, and what they forbid in quick plans.

Time: all that recomputes and waits for transfers add up to may not exceed what the deadline leaves beside the
computations. Where transfers stop the step, each one is waited for. Where they run beside the computations, only
placing them tells how long the step waits: then a relaxation leaves their time out, and a stricter model, which leaves
plans out, takes them all as waited for. With c = 1 where transfers are charged, else 0:

    (5)   sum t_u R + c (sum tin_k I + sum tout_k F) <= deadline - seconds of the computations

Two nodes: a makes k in 1 s, k takes 3 s to write and 2 s to read, b reads it, and the deadline leaves 4 s. The row is
R[b,a] + 2 I[k,0] + 3 F[k] <= 4: k is made again, or stays in RAM.

Bytes moved: a value is written once however often it is read back: its page-out counts once, and each page-in counts.

    (8)   sum bytes_k F <= what may be written

a of 8 bytes and b of 12 may be paged out, and 15 bytes may be written: 2 F[a] + 3 F[b] <= 3, in the largest unit that
divides all sizes, so that rounding cannot break it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
    """Return the relaxation of a deadline, if there is one: it leaves no plan out."""
    if limits.deadline_seconds is None:
        return None
    spare = max(0.0, limits.deadline_seconds - instance.base_seconds) + ROUNDING * limits.deadline_seconds
    return Timing(spare, charges_transfers=not instance.problem.costs.asynchronous)


def add_limit_rows(model: Formulation, timing: Timing | None) -> None:
    """Add rows (5) and (8) to the model, but those that can never bind."""
    instance, units = model.candidates.instance, model.candidates.units
    page_outs = {variable: value for value, variable in model.page_out.items()}
    page_ins = {variable: value for (value, _), variable in model.page_in.items()}
    if timing is not None:
        costs, names = instance.problem.costs, instance.values
        terms = {variable: units[number].seconds for (_, number), variable in model.recompute.items()}
        if timing.charges_transfers:
            terms |= {variable: costs.page_in[names[value]].seconds for variable, value in page_ins.items()}
            terms |= {variable: costs.page_out[names[value]].seconds for variable, value in page_outs.items()}
        if sum(terms.values()) > timing.spare_seconds:
            model.time.append(Row(terms, high=timing.spare_seconds))
    sizes = instance.sizes
    model.moved = transfer_rows(
        model.limits,
        {variable: sizes[value] for variable, value in page_outs.items()},
        {variable: sizes[value] for variable, value in page_ins.items()},
    )


def transfer_rows(limits: Limits, page_outs: Mapping[int, int], page_ins: Mapping[int, int]) -> list[Row]:
    """Return the rows (8) that can bind, given the bytes of each page-out and of each page-in, by variable."""
    rows = []
    for limit, allowed_bytes in limits.on_transfers():
        sizes = {**(page_outs if limit.is_out else {}), **(page_ins if limit.is_in else {})}
        if sum(sizes.values()) > allowed_bytes:
            unit = math.gcd(*sizes.values())
            terms = {variable: float(size // unit) for variable, size in sizes.items()}
            rows.append(Row(terms, high=float(allowed_bytes // unit)))
    return rows


def forbidden(limits: Limits, sizes: NDArray[np.int64], paged: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which values may not be paged in once more, given their bytes and how often each is paged in so far.

    A value is written before it is paged in for the first time.
    """
    found = np.zeros(len(sizes), dtype=bool)
    for limit, allowed_bytes in limits.on_transfers():
        moved = limit.is_out * (paged > 0) + limit.is_in * paged
        added = sizes * (limit.is_out * (paged == 0) + limit.is_in)
        found |= added > allowed_bytes - int((sizes * moved).sum())
    return found
