"""The operators' updates as plain functions on arrays: for gradients that are used after the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from poet_onnx.runtime.library import operator_library

Array = npt.NDArray[np.generic]

_FUNCTIONS = {
    "UpdateSgd": "poet_update_sgd",
    "UpdateMomentum": "poet_update_momentum",
    "UpdateAdam": "poet_update_adam",
}


def update(operator: str, gradient: Array, rates: Array, parameter: Array, slots: Sequence[Array]) -> None:
    """Update a parameter and what the optimizer keeps for it, in place: the bits are those of the operator.

    Args:
        operator: of domain `poet`.
        gradient: as large as the parameter.
        rates: the operator's second input.
        parameter: contiguous, of float32 as all of them.
        slots: the operator's further inputs.
    """
    assert all(array.size == gradient.size for array in (parameter, *slots))
    function = getattr(operator_library(), _FUNCTIONS[operator])
    function(_address(gradient), gradient.size, *map(_address, (rates, parameter, *slots)))


def sum_of_squares(gradient: Array) -> float:
    """Return the sum of the squares of a gradient of float32, added up in double and always in the same order."""
    return float(operator_library().poet_sum_of_squares(_address(gradient), gradient.size))


def _address(array: Array) -> int:
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    return array.ctypes.data
