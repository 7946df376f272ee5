"""Batches of arrays in memory or in a file: a loader for a board, where torch's DataLoader is not."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError, shown
from poet_onnx.quantities import check_whole, is_whole
from poet_onnx.training.file_rows import mapping_of, read_from_file

Array = npt.NDArray[Any]
Several = Array | Sequence[Array] | Mapping[str, Array]
"""An array with a sample in each row, several of them, or several by the names of the graph's inputs."""


class ArrayLoader:
    """Gives batches of arrays, for `fit` and `evaluate`, as torch's DataLoader does of a TensorDataset.

    An array may be a file of numpy that was opened with `np.load(path, mmap_mode="r")`: then memory holds one batch of
    it. As `loader`, `fit` gets a new order in each epoch if `shuffle=True`, always the same one for a seed and an
    epoch, so that training goes on after a break with the batches that it would have had. `evaluate` reads in order.
    """

    def __init__(
        self,
        inputs: Several,
        labels: Several | None = None,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """Say what is to be read.

        Args:
            inputs: arrays [samples, ...].
            labels: the same; they may be left out where `inputs` has them by name.
            batch_size: samples of a batch, as many as the graph was made for.
            shuffle: whether each epoch has an order of its own.
            seed: of these orders.
            drop_last: whether samples are left out that do not fill a batch; otherwise they are a smaller one.

        Raises:
            InputError: if arrays differ in their number of samples, or there is no batch, or something is no array.
        """
        self._parts: list[Any] = [
            _each(part, read_from_file) for part in ([inputs] if labels is None else [inputs, labels])
        ]
        counts = {_samples(array) for part in self._parts for array in _arrays(part)}
        if len(counts) != 1:
            raise InputError(f"The arrays have {sorted(counts)} samples: give arrays with a row for each sample.")
        if not is_whole(batch_size) or batch_size < 1:
            raise InputError(f"A batch cannot have {shown(batch_size)} samples: give a whole number of 1 or more.")
        check_whole(seed, "seed", 0)
        samples = counts.pop()
        self._samples = samples - samples % batch_size if drop_last else samples
        if not self._samples:
            raise InputError(f"{samples} samples are no batch of {batch_size}: give more, or a smaller batch_size.")
        self._size, self._seed = batch_size, seed
        self._order: Array = np.arange(samples)
        self._shuffle = shuffle

    def __len__(self) -> int:
        """Return the number of batches."""
        return (self._samples + self._size - 1) // self._size

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches in the order of the arrays."""
        return self._batches(self._order)

    def __call__(self, epoch: int) -> _Ordered:
        """Return the batches of an epoch, by its number from 0."""
        if not self._shuffle:
            return _Ordered(self, self._order)
        return _Ordered(self, np.random.default_rng((self._seed, epoch)).permutation(self._order))

    def _batches(self, order: Array) -> Iterator[Any]:
        for begin in range(0, self._samples, self._size):
            rows = order[begin : min(begin + self._size, self._samples)]
            batch = [_each(part, itemgetter(rows)) for part in self._parts]
            for part in self._parts:
                for array in _arrays(part):
                    _let_go(array)
            yield tuple(batch) if len(batch) > 1 else batch[0]


class _Ordered:
    """The batches of an epoch."""

    def __init__(self, loader: ArrayLoader, order: Array) -> None:
        self._loader, self._order = loader, order

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return self._loader._batches(self._order)


def _each(part: Several, make: Callable[[Any], Any]) -> Any:
    """Return what is made of each array of inputs or labels, as they were given."""
    if isinstance(part, Mapping):
        return {name: make(array) for name, array in part.items()}
    return [make(array) for array in part] if isinstance(part, Sequence) else make(part)


def _arrays(part: Several) -> Iterable[Array]:
    """Return the arrays of inputs or labels."""
    if isinstance(part, Mapping):
        return part.values()
    return part if isinstance(part, Sequence) else [part]


def _samples(array: object) -> int:
    """Return the number of rows of an array.

    Raises:
        InputError: if it has none, or is no array.
    """
    shape = getattr(array, "shape", ())
    if not shape:
        raise InputError(
            f"ArrayLoader was given {array!r:.60}, which is no array with a row for each sample: give numpy arrays."
        )
    return int(shape[0])


def _let_go(array: Array) -> None:
    """Take what was read of a file out of the process's memory; the page cache has it. What is in no file stays."""
    mapping = mapping_of(array)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)
