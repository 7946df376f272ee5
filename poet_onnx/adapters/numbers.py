"""The numbers of adapters in a file, some at a time: read, compared and written, whichever way they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.adapters.lora import Array, Floats
from poet_onnx.errors import InputError
from poet_onnx.files.checkpoint import Checkpoint

_BLOCK = 2**14
"""Numbers at a time: what is made of them takes less than 1 MiB."""

_FLOATS = {"float16": "<f2", "BF16": "<u2", "float32": "<f4", "float64": "<f8"}
"""Types of numbers that are read, and how their bytes are."""

_SPREAD, _FIRST, _SECOND = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", section 5)."""


class Block(NamedTuple):
    """Numbers that stand one after the other in a tensor.

    Attributes:
        start: how many stand before them.
        numbers: in single precision.
    """

    start: int
    numbers: Floats


def blocks_of(pieces: Iterator[memoryview], dtype: str) -> Iterator[Block]:
    """Yield a tensor's numbers in single precision, each block to be used before the next one.

    Args:
        pieces: the tensor's bytes; none cuts a number.
        dtype: of the numbers.
    """
    start = 0
    for piece in pieces:
        found = np.frombuffer(piece, _FLOATS.get(dtype, dtype))
        for place in range(0, found.size, _BLOCK):
            numbers = _single(found[place : place + _BLOCK], is_bfloat=dtype == "BF16")
            yield Block(start, numbers)
            start += numbers.size


def _single(numbers: npt.NDArray[np.generic], *, is_bfloat: bool) -> Floats:
    if is_bfloat:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # what is too large is infinite, and named
        return numbers.astype(np.float32, copy=False)


class StoredNumbers:
    """A tensor of an adapter's file, in single precision, as PEFT takes adapters of any precision."""

    def __init__(
        self, file: Checkpoint, name: str, path: Path, shape: tuple[int, ...], *, turned: bool = False
    ) -> None:
        """Check what it is.

        Args:
            file: that holds it.
            name: of the tensor there.
            path: of the file.
            shape: that it must have in the graph.
            turned: whether it stands transposed in the file.

        Raises:
            InputError: if it is something else.
        """
        self._file, self._name, self._path, self._turned = file, name, path, turned
        self._shape = shape[::-1] if turned else shape
        self._kind = file.kinds()[name]
        if self._kind.dtype not in _FLOATS or self._kind.shape != self._shape:
            raise InputError(
                f"Tensor '{name}' in {path} is {self._kind.dtype} {list(self._kind.shape)}, but must be real numbers"
                f" {list(self._shape)}: it was made of another model."
            )

    def __iter__(self) -> Iterator[Block]:
        """Yield its numbers.

        Raises:
            InputError: if they cannot be read, or, after the last one, are damaged or not finite.
        """
        wrong = 0
        for block in blocks_of(self._file.pieces(self._name), self._kind.dtype):
            wrong += block.numbers.size - int(np.isfinite(block.numbers).sum())
            yield block
        if wrong:
            raise InputError(
                f"Tensor '{self._name}' in {self._path} holds {wrong} numbers of {math.prod(self._shape)} that are NaN"
                " or infinite: give an adapter whose numbers are finite."
            )

    def fingerprint(self) -> int:
        """Read all, and return the `fingerprint` of the tensor as it is in the graph."""
        return fingerprint(self, self._shape if self._turned else None)

    def copy_to(self, array: Array) -> None:
        """Fill an array of the graph."""
        room = array.T.flat if self._turned else array.flat
        for start, numbers in self:
            room[start : start + numbers.size] = numbers

    def equals(self, array: Array) -> bool:
        """Return whether an array of the graph has these numbers."""
        there = array.T.flat if self._turned else array.flat
        return all(np.array_equal(there[start : start + numbers.size], numbers) for start, numbers in self)


def fingerprint(blocks: Iterator[Block] | StoredNumbers, turned: tuple[int, ...] | None = None) -> int:
    """Return a number that is the same for the same numbers at the same places, in whichever order they come.

    Others have the same one once in 2^64 cases: the sum of well mixed numbers, one for each place and number.

    Args:
        blocks: all of the tensor.
        turned: shape of a matrix whose transposed is meant.
    """
    total = 0
    for start, numbers in blocks:
        places = np.arange(start, start + numbers.size, dtype=np.uint64)
        if turned is not None:
            rows, columns = np.divmod(places, np.uint64(turned[1]))
            places = columns * np.uint64(turned[0]) + rows
        bits = (numbers + np.float32(0)).view(np.uint32)  # of the two zeros the positive one
        mixed = ((places << np.uint64(32)) ^ bits) * _SPREAD
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
        total += int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
    return total % 2**64
