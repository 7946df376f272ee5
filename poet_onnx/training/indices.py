"""Labels and indices of a batch, held against what the graph can take before anything runs."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.graph.input_ranges import END, Range

Array = npt.NDArray[np.generic]

_PIECE_ELEMENTS = 1 << 14
"""So many elements are checked at once: what a check takes for itself is in no plan."""


def check_indices(name: str, array: Array, allowed: Range) -> None:
    """Check the numbers of an input; where it holds no integers, what is left of them without their fractions.

    Raises:
        InputError: if one of them is none that the graph can take.
    """
    index = allowed.index(array.ndim)
    part = array[index]
    flat = part.reshape(-1) if part.flags.c_contiguous else part.flat  # which copies no more than a piece
    for first in range(0, part.size, _PIECE_ELEMENTS):
        fits = fitting(flat[first : first + _PIECE_ELEMENTS], allowed)
        if not fits.all():
            place = np.unravel_index(first + np.argmin(fits), part.shape)
            rows = (range(size)[row] for size, row in zip(array.shape, index, strict=True))
            _refuse(name, array, tuple(row[int(each)] for row, each in zip(rows, place, strict=True)), allowed)


def fitting(piece: Array, allowed: Range) -> npt.NDArray[np.bool_]:
    """Return which numbers a graph can take, as far as a range tells."""
    numbers: npt.NDArray[Any] = piece if piece.dtype.kind in "iub" else np.trunc(piece.astype(np.float64))
    fits: npt.NDArray[np.bool_] = (numbers >= allowed.lowest) & (numbers <= allowed.highest)
    if allowed.ignored is not None:
        fits |= numbers == allowed.ignored
    return fits


def _refuse(name: str, array: Array, place: tuple[int, ...], allowed: Range) -> NoReturn:
    where = f" at {list(place)}" if place else ""
    besides = "" if allowed.ignored is None else f", or {allowed.ignored} to be ignored"
    raise InputError(
        f"Input '{name}' holds {array[place]}{where}, but the graph takes {allowed.lowest} to {allowed.highest}"
        f"{_in_part(allowed)}{besides}: correct the batch."
    )


def _in_part(allowed: Range) -> str:
    """Return where a range holds, as numpy writes it; nothing if that is everywhere."""
    rows = dict(allowed.part)
    words = [_words(rows.get(axis)) for axis in range(max(rows, default=-1) + 1)]
    return f" in [{', '.join(words)}]" if words else ""


def _words(row: range | None) -> str:
    if row is None:
        return ":"
    if len(row) == 1:
        return f"{row.start}"
    end, step = "" if row.stop >= END else f"{row.stop}", "" if row.step == 1 else f":{row.step}"
    return f"{row.start}:{end}{step}"
