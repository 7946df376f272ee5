"""Compare arrays bit for bit, and say where they differ first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from poet_onnx.verification.report import Difference

Array = npt.NDArray[np.generic]


def difference(tensor: str, step: int, original: Array, rewritten: Array) -> Difference | None:
    """Return the first element whose bytes differ, or None if there is none; equal NaNs are equal."""
    if original.dtype != rewritten.dtype or original.shape != rewritten.shape:
        return Difference(
            step=step,
            tensor=tensor,
            element=(),
            original=_kind(original),
            rewritten=_kind(rewritten),
            ulp=None,
            differing_elements=max(original.size, rewritten.size),
        )
    expected, found = np.asarray(original, order="C"), np.asarray(rewritten, order="C")
    if not expected.size or expected.tobytes() == found.tobytes():
        return None
    width = expected.dtype.itemsize
    unequal = (expected.reshape(-1).view(np.uint8) != found.reshape(-1).view(np.uint8)).reshape(-1, width).any(axis=1)
    first = int(np.argmax(unequal))
    return Difference(
        step=step,
        tensor=tensor,
        element=tuple(int(index) for index in np.unravel_index(first, expected.shape)),
        original=_number(expected.reshape(-1)[first]),
        rewritten=_number(found.reshape(-1)[first]),
        ulp=_ulp(expected.reshape(-1)[first], found.reshape(-1)[first]),
        differing_elements=int(unequal.sum()),
    )


def _kind(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _number(element: np.generic) -> str:
    return str(element.item())


def _ulp(first: np.generic, second: np.generic) -> int | None:
    """Return how many floats lie between two, plus one; None for what is not a finite float."""
    if first.dtype.kind != "f" or not (np.isfinite(first) and np.isfinite(second)):
        return None
    return abs(_rank(first) - _rank(second))


def _rank(element: np.generic) -> int:
    """Return the place of a float among all floats of its type, in order of value."""
    bits = int(np.asarray(element).view(f"u{element.dtype.itemsize}").item())
    sign = 1 << (8 * element.dtype.itemsize - 1)
    return -(bits - sign) if bits & sign else bits
