"""Arrays by name that a file holds: each is read when it is asked for, so that memory never holds them all twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.files.tensor_file import flat

Array = npt.NDArray[np.generic]


class Kind(NamedTuple):
    """What an array is, before it is read.

    Attributes:
        dtype: name of its element type, which numpy may not have.
        shape: its sizes.
    """

    dtype: str
    shape: tuple[int, ...]


class Values(Mapping[str, Array]):
    """Arrays by name, read when they are asked for, each time anew."""

    def __init__(
        self,
        source: object,
        kinds: Mapping[str, Kind],
        read_into: Callable[[str, Array], None],
        pieces: Callable[[str], Iterator[memoryview]] | None = None,
    ) -> None:
        """Say what there is.

        Args:
            source: where the arrays are, for errors.
            kinds: of the arrays, by name.
            read_into: fills a contiguous array of the right kind.
            pieces: yields an array's bytes without reading all of it at once; None where nothing can.
        """
        self._source, self._kinds, self._read_into, self._pieces = source, kinds, read_into, pieces

    def kind(self, name: str) -> Kind:
        """Return what an array is, which is known without reading it."""
        return self._kinds[name]

    def read_into(self, name: str, array: Array) -> None:
        """Read an array into another one.

        Args:
            name: of the array.
            array: contiguous, of the same kind.

        Raises:
            InputError: if it cannot be read.
        """
        assert self._kinds[name] == (array.dtype.name, array.shape)
        self._read_into(name, array)

    def pieces(self, name: str) -> Iterator[memoryview]:
        """Yield an array's bytes; as few as possible are in memory at once.

        Raises:
            InputError: if it cannot be read; what was yielded is then to be forgotten.
        """
        if self._pieces is None:
            return iter([flat(self[name])])
        return self._pieces(name)

    def __getitem__(self, name: str) -> Array:
        """Read an array.

        Raises:
            InputError: if it cannot be read.
        """
        dtype, shape = self._kinds[name]
        try:
            array: Array = np.empty(shape, dtype)
        except (TypeError, ValueError, MemoryError) as error:
            raise InputError(
                f"'{name}' in {self._source} is {dtype} {list(shape)}, which cannot be read: store it as float32."
            ) from error
        self._read_into(name, array)
        return array

    def __contains__(self, name: object) -> bool:
        """Return whether there is an array of a name, without reading it."""
        return name in self._kinds

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._kinds)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._kinds)


def kind_of(values: Mapping[str, Array], name: str) -> Kind:
    """Return what a value is, which is known of a file's without reading it."""
    return values.kind(name) if isinstance(values, Values) else Kind(values[name].dtype.name, values[name].shape)


def pieces_of(values: Mapping[str, Array], name: str) -> Iterator[memoryview]:
    """Return a value's bytes in pieces, of which as few are in memory at once as can be."""
    if isinstance(values, Values):
        return values.pieces(name)
    return iter([flat(np.ascontiguousarray(values[name]))])


def copy_value(values: Mapping[str, Array], name: str, array: Array) -> None:
    """Fill a contiguous array with a value, without a copy on the way where that can be.

    Raises:
        InputError: if the value is of another type or shape, or cannot be read.
    """
    kind = kind_of(values, name)
    if kind != (array.dtype.name, array.shape):
        raise InputError(
            f"The value of '{name}' is {kind.dtype} {list(kind.shape)}, but the model takes {array.dtype} "
            f"{list(array.shape)}: give the parameters of this model."
        )
    if isinstance(values, Values):
        values.read_into(name, array)
    else:
        np.copyto(array, values[name])


def joined(first: Mapping[str, Array], second: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the arrays of both, read when they are asked for; those of the second where both have a name."""
    found = {name: each for each in (first, second) for name in each}
    return Values(
        "the session",
        {name: kind_of(each, name) for name, each in found.items()},
        lambda name, array: copy_value(found[name], name, array),
        lambda name: pieces_of(found[name], name),
    )
