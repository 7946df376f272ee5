"""The operators' updates as plain functions on arrays: for gradients that are used after the step."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from poet_onnx.runtime.library import operator_library

Array = npt.NDArray[np.generic]

_FUNCTIONS = {
    "UpdateSgd": "poet_update_sgd",
    "UpdateMomentum": "poet_update_momentum",
    "UpdateAdam": "poet_update_adam",
}

_LANES = 8
"""Sums, each of every eighth element's square (ops/kernels/optimizer.h)."""


def update(kind: str, gradient: Array, rates: Array, parameter: Array, slots: Sequence[Array]) -> None:
    """Update a parameter and what the optimizer keeps for it, in place: the bits are those of the operator.

    Args:
        kind: operator of domain `poet`.
        gradient: as large as the parameter.
        rates: the operator's second input.
        parameter: contiguous, of float32 as all of them.
        slots: the operator's further inputs.
    """
    assert all(array.size == gradient.size for array in (parameter, *slots))
    function = getattr(operator_library(), _FUNCTIONS[kind])
    function(_address(gradient), gradient.size, *map(_address, (rates, parameter, *slots)))


def sum_of_squares(pieces: Iterable[Array]) -> float:
    """Return the sum of the squares of a gradient of float32, added up in double and always in the same order.

    Args:
        pieces: of the gradient, one after the other; each but the last has a multiple of 8 elements.
    """
    lanes = np.zeros(_LANES)
    for piece in pieces:
        operator_library().poet_add_squares(_address(piece), piece.size, lanes.ctypes.data)
    return reduce(operator.add, lanes.tolist(), 0.0)  # `sum` adds in another way from Python 3.12 on


def _address(array: Array) -> int:
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    return array.ctypes.data
