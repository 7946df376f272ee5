"""Labels and indices of a batch, held against what the graph can take before anything runs."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.graph.input_ranges import Range

Array = npt.NDArray[np.generic]

_PIECE_ELEMENTS = 1 << 14
"""So many elements are checked at once: what a check takes for itself is in no plan."""


def check_indices(name: str, array: Array, allowed: Range) -> None:
    """Check the numbers of an input; where it holds no integers, what is left of them without their fractions.

    Raises:
        InputError: if one of them is none that the graph can take.
    """
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat  # which copies no more than a piece
    for first in range(0, array.size, _PIECE_ELEMENTS):
        fits = _fitting(flat[first : first + _PIECE_ELEMENTS], allowed)
        if not fits.all():
            _refuse(name, array, np.unravel_index(first + np.argmin(fits), array.shape), allowed)


def _fitting(piece: Array, allowed: Range) -> npt.NDArray[np.bool_]:
    numbers: npt.NDArray[Any] = piece if piece.dtype.kind in "iub" else np.trunc(piece.astype(np.float64))
    fits: npt.NDArray[np.bool_] = (numbers >= allowed.lowest) & (numbers <= allowed.highest)
    if allowed.ignored is not None:
        fits |= numbers == allowed.ignored
    return fits


def _refuse(name: str, array: Array, place: tuple[np.intp, ...], allowed: Range) -> NoReturn:
    where = f" at {[int(index) for index in place]}" if place else ""
    besides = "" if allowed.ignored is None else f", or {allowed.ignored} to be ignored"
    raise InputError(
        f"Input '{name}' holds {array[place]}{where}, but the graph takes {allowed.lowest} to {allowed.highest}"
        f"{besides}: correct the batch."
    )
