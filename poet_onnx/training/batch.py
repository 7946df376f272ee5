"""A batch as the caller gives it: arrays by name or in order, checked against what the graph takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.graph.input_ranges import Ranges
from poet_onnx.training.indices import check_indices

Array = npt.NDArray[np.generic]
Arrays = Array | Sequence[Array] | Mapping[str, Array] | None
"""One array, several in the order of the graph's inputs, several by name, or none."""


class Wanted(NamedTuple):
    """An input that a batch fills.

    Attributes:
        name: of the input.
        dtype: of its elements.
        shape: sizes, and names of dimensions that may have any size.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str | None, ...]

    @property
    def least_bytes(self) -> int:
        """Return the bytes of the smallest array that fills it."""
        return self.dtype.itemsize * math.prod(size for size in self.shape if isinstance(size, int))


def read_batch(wanted: Sequence[Wanted], inputs: Arrays, labels: Arrays, ranges: Ranges) -> dict[str, Array]:
    """Return the arrays of a batch by the names of the inputs they fill.

    Arrays without a name fill the inputs that none was named for, in order, labels after inputs.

    Args:
        wanted: what the graph takes.
        inputs: what was given.
        labels: what was given besides.
        ranges: what labels and indices may be.

    Raises:
        InputError: if one is missing, left over, of another type, of another shape, or holds a label or an index that
            the graph cannot take.
    """
    names = [want.name for want in wanted]
    found: dict[str, Array] = {}
    unnamed: list[Array] = []
    for given in (inputs, labels):
        if isinstance(given, Mapping):
            for name, array in given.items():
                if name not in names:
                    raise InputError(f"The model has no input '{name}' for data: it has {_list(names)}.")
                if name in found:
                    raise InputError(f"Input '{name}' is given twice.")
                found[name] = array
        elif isinstance(given, Sequence):
            unnamed += given
        elif given is not None:
            unnamed.append(given)
    free = [name for name in names if name not in found]
    if len(free) != len(unnamed):
        given_names = f" besides {_list(list(found))}" if found else ""
        raise InputError(
            f"{len(unnamed)} arrays were given{given_names}, but the model takes {len(free)}: {_list(free)}."
        )
    found.update(zip(free, unnamed, strict=True))
    sizes: dict[str, tuple[int, str]] = {}
    batch = {want.name: _checked(want, found[want.name], sizes) for want in wanted}
    for name, array in batch.items():
        for allowed in ranges.get(name, ()):
            check_indices(name, array, allowed)
    return batch


def _checked(want: Wanted, array: object, sizes: dict[str, tuple[int, str]]) -> Array:
    if not isinstance(array, np.ndarray):
        raise InputError(f"Input '{want.name}' is a {type(array).__name__}, but must be a numpy array.")
    if array.dtype != want.dtype:
        raise InputError(
            f"Input '{want.name}' has elements of type {array.dtype}, but must have {want.dtype}: "
            f"use .astype(numpy.{want.dtype})."
        )
    fits = array.ndim == len(want.shape)
    for size, expected in zip(array.shape, want.shape, strict=False):
        if isinstance(expected, str) and expected:
            known, other = sizes.setdefault(expected, (size, want.name))
            if known != size:
                raise InputError(
                    f"Dimension '{expected}' is {size} in input '{want.name}', but {known} in '{other}': they must "
                    "be equal."
                )
        elif isinstance(expected, int):
            fits = fits and size == expected
    if not fits:
        shape = [expected if expected is not None else "any" for expected in want.shape]
        raise InputError(f"Input '{want.name}' has shape {list(array.shape)}, but must have {shape}.")
    return array


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
