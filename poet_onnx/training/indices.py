"""Labels and indices of a batch, held against what the graph can take before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.graph.input_ranges import Range

Array = npt.NDArray[np.generic]


def check_indices(name: str, array: Array, allowed: Range) -> None:
    """Check the numbers of an input; where it holds no integers, what is left of them without their fractions.

    Raises:
        InputError: if one of them is none that the graph can take.
    """
    numbers: npt.NDArray[Any] = array if array.dtype.kind in "iub" else np.trunc(array.astype(np.float64))
    fits = (numbers >= allowed.lowest) & (numbers <= allowed.highest)
    if allowed.ignored is not None:
        fits |= numbers == allowed.ignored
    if fits.all():
        return
    place = np.unravel_index(np.argmin(fits), fits.shape)
    where = f" at {[int(index) for index in place]}" if place else ""
    besides = "" if allowed.ignored is None else f", or {allowed.ignored} to be ignored"
    raise InputError(
        f"Input '{name}' holds {array[place]}{where}, but the graph takes {allowed.lowest} to {allowed.highest}"
        f"{besides}: correct the batch."
    )
