"""The limit on what a step writes to storage: its row in the model, and its price in the quick plan.

A value is written once however often it is read back, so that its page-out alone counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poet_onnx.scheduling.memory_rows import Row

if TYPE_CHECKING:
    from poet_onnx.scheduling.model import Formulation


def add_written_row(model: Formulation) -> None:
    """Add row (8) if it can bind, in the largest unit that divides all sizes: so rounding cannot break it.

    a of 8 bytes and b of 12 may be paged out, and 15 bytes may be written: 2 F[a] + 3 F[b] <= 3.
    """
    instance = model.candidates.instance
    allowed = instance.problem.max_written_bytes
    sizes = {variable: instance.sizes[value] for value, variable in model.page_out.items()}
    if allowed is not None and sum(sizes.values()) > allowed:
        unit = math.gcd(*sizes.values())
        model.written = [Row({variable: size // unit for variable, size in sizes.items()}, high=float(allowed // unit))]


def first_page_outs(
    prices: NDArray[np.float64], sizes: NDArray[np.int64], paged: NDArray[np.int64], allowed_bytes: int | None
) -> NDArray[np.float64]:
    """Return the joules that writing each value adds: none if it is written anyway, infinite if it may not be.

    Args:
        prices: of page-outs, joules.
        sizes: of the values, bytes.
        paged: how often each value is read back so far.
        allowed_bytes: that a step may write; None for no limit.
    """
    added = np.where(paged > 0, 0.0, prices)
    if allowed_bytes is not None:
        left_bytes = allowed_bytes - int(sizes[paged > 0].sum())
        added[(paged == 0) & (sizes > left_bytes)] = math.inf
    return added
