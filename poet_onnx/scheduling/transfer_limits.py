"""Limits on the bytes that a step moves: their rows in the model and the relaxation, and their price in quick plans.

A value is written once however often it is read back: its page-out counts once, and each page-in counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poet_onnx.plan.limits import Limits, TransferLimit
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.memory_rows import Row

if TYPE_CHECKING:
    from poet_onnx.scheduling.model import Formulation


def transfer_rows(limits: Limits, page_outs: Mapping[int, int], page_ins: Mapping[int, int]) -> list[Row]:
    """Return the rows (8) that can bind, in the largest unit that divides all sizes: so rounding cannot break them.

    a of 8 bytes and b of 12 may be paged out, and 15 bytes may be written: 2 F[a] + 3 F[b] <= 3.

    Args:
        limits: of the plan.
        page_outs: bytes of each page-out, by variable.
        page_ins: bytes of each page-in, by variable.
    """
    rows = []
    for limit, allowed_bytes in limits.on_transfers():
        sizes = {**(page_outs if limit.is_out else {}), **(page_ins if limit.is_in else {})}
        if sum(sizes.values()) > allowed_bytes:
            unit = math.gcd(*sizes.values())
            terms = {variable: float(size // unit) for variable, size in sizes.items()}
            rows.append(Row(terms, high=float(allowed_bytes // unit)))
    return rows


def add_transfer_rows(model: Formulation) -> None:
    """Add rows (8) to the model."""
    sizes = model.candidates.instance.sizes
    model.moved = transfer_rows(
        model.limits,
        {variable: sizes[value] for value, variable in model.page_out.items()},
        {variable: sizes[value] for (value, _), variable in model.page_in.items()},
    )


def forbidden(limits: Limits, sizes: NDArray[np.int64], paged: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which values may not be paged in once more.

    Args:
        limits: of the plan.
        sizes: of the values, bytes.
        paged: how often each value is paged in so far; the first time, it is written before.
    """
    found = np.zeros(len(sizes), dtype=bool)
    for limit, allowed_bytes in limits.on_transfers():
        moved = limit.is_out * (paged > 0) + limit.is_in * paged
        added = sizes * (limit.is_out * (paged == 0) + limit.is_in)
        found |= added > allowed_bytes - int((sizes * moved).sum())
    return found


def bytes_as_joules(problem: ScheduleProblem, limit: TransferLimit) -> ScheduleProblem:
    """Return a problem in which energy is what a limit bounds: its cheapest plan moves least."""
    costs, tensors = problem.costs, problem.graph.tensors
    nodes = {name: replace(cost, joules=0.0) for name, cost in costs.nodes.items()}
    page_out, page_in = (
        {name: replace(cost, joules=float(counts * tensors[name].size_bytes)) for name, cost in table.items()}
        for counts, table in ((limit.is_out, costs.page_out), (limit.is_in, costs.page_in))
    )
    free = replace(costs, nodes=nodes, page_out=page_out, page_in=page_in, idle_watts=0.0)
    return replace(problem, costs=free)
