"""A last batch that is smaller than the graph's: it is filled up with samples whose labels the loss ignores.

The loss is then the mean over the labels that count, and the gradients are those of the smaller batch, if no sample
sees another one. For example 3 samples of a graph for 8: the first one is repeated 5 times with the label -100, where
the loss was made with `ignore_index=-100`. A batch normalization that trains would see the repeated samples: such a
batch is refused. Other ways from sample to sample are found by a trial: the loss of the evaluation graph must be the
same, to the bit, for two fillings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.graph.input_ranges import Range, Ranges
from poet_onnx.training.batch import Wanted
from poet_onnx.training.indices import fitting

Array = npt.NDArray[Any]

REMEDY = "leave it out, as with drop_last=True of torch's DataLoader"


@dataclass(frozen=True)
class Filling:
    """How a smaller batch is filled up.

    Attributes:
        count: samples of the batch.
        size: samples that the graph takes.
        ranges: what labels and indices may be, and which labels the loss ignores.
    """

    count: int
    size: int
    ranges: Ranges

    def fill(self, name: str, array: Array, place: Array, *, for_trial: bool) -> None:
        """Fill an input.

        Args:
            name: of the input.
            array: its samples.
            place: of the graph's size.
            for_trial: whether to fill up with other numbers than the first sample's.

        Raises:
            InputError: if it is not known which other numbers the graph takes.
        """
        place[: self.count] = array
        ignoring, rest = _ignoring(self.ranges, name), place[self.count :]
        rest[...] = place[0]
        for each in ignoring:
            rest[each.index(place.ndim)] = each.ignored
        if for_trial and all(each.part for each in ignoring):
            rest[...] = self._other(name, np.array(rest[0]), ignoring)

    def _other(self, name: str, first: Array, ignoring: Sequence[Range]) -> Array:
        """Return other numbers that the graph takes where labels are not ignored; if it has none, the same are left."""
        known = self.ranges.get(name, ())
        allowed = [np.zeros_like(first)] if all(each.lowest <= 0 for each in known) else []
        if first.dtype.kind == "b" or (known and all(each.lowest <= 1 <= each.highest for each in known)):
            allowed.append(np.ones_like(first))
        turned = np.flip(first) * 0.5 + 0.25 if first.dtype.kind == "f" else np.flip(first)
        for other in (turned, *allowed):
            fit = np.array(other, first.dtype)
            for each in known:
                index = each.index(first.ndim + 1)
                part, own = fit[None][index], first[None][index]
                np.copyto(part, own, where=each in ignoring or ~fitting(part, each))
            if not np.array_equal(fit, first):
                return fit
        if ignoring:
            return first
        raise InputError(f"{self}, for it is not known what else '{name}' may hold: {REMEDY}.")

    def __str__(self) -> str:
        """Return the beginning of a refusal."""
        return f"The batch has {self.count} samples, but the graph takes {self.size}. It cannot be filled up"


def _ignoring(ranges: Ranges, name: str) -> list[Range]:
    """Return what is known of the labels in an input of which the loss ignores some number, in every sample."""
    known = ranges.get(name, ())
    return [each for each in known if each.ignored is not None and all(axis > 0 for axis, _ in each.part)]


def filling_of(batch: Mapping[str, Array], wanted: Sequence[Wanted], ranges: Ranges) -> Filling | None:
    """Return how a batch is filled up; None for a whole one.

    Raises:
        InputError: if it is smaller, and there are no labels that the loss ignores.
    """
    sizes = {want.shape[0] for want in wanted if want.shape}
    counts = {batch[want.name].shape[0] for want in wanted if want.shape}
    if counts == sizes or len(counts) != 1 or len(sizes) != 1:
        return None
    (count,), (size,) = counts, sizes
    if not isinstance(size, int):
        return None
    filling = Filling(count, size, ranges)
    if not any(_ignoring(ranges, name) for name in ranges):
        raise InputError(
            f"{filling}, for its loss ignores no label: {REMEDY}, make cross entropy with ignore_index=-100, or let "
            "the model compute a loss with a weight for each sample (loss='output:NAME')."
        )
    return filling


def check_statistics(filling: Filling, state: Iterable[str]) -> None:
    """Check that no statistics are taken of a whole batch.

    Raises:
        InputError: naming those that are.
    """
    for name in state:
        raise InputError(f"{filling}, for '{name}' is of all samples: {REMEDY}, or freeze the batch normalization.")
