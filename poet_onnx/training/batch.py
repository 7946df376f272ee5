"""A batch as the caller gives it, by name or in order: arrays, tensors or lists, checked against what the graph takes.

Whatever changes no number is taken: int32 for int64, if all of them fit int64 for int32, float16 for float32. Numbers
in lists have no element type of their own, and become the input's; a buffer or an image has one, also in a list. What
rounds (float64) or may be a slip (pixels of uint8 for float32) is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError, quoted
from poet_onnx.graph.input_ranges import Ranges
from poet_onnx.quantities import is_whole
from poet_onnx.training.given import is_a
from poet_onnx.training.indices import check_indices

Array = npt.NDArray[np.generic]
Arrays = npt.ArrayLike | Sequence[npt.ArrayLike] | Mapping[str, npt.ArrayLike] | None
"""One array, several in the order of the graph's inputs, several by name, or none.

An array may be one of numpy's, a tensor of torch, whatever else numpy reads in place, or numbers in lists. A list with
an array in it is several; one of numbers alone is one.
"""

_NUMBERS = frozenset({bool, int, float})
"""Classes of which a list may hold millions: nothing else is asked of them."""

_NO_LISTS = (str, bytes, memoryview)
"""Classes of sequences that hold no arrays."""


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


def read_batch(
    wanted: Sequence[Wanted], inputs: Arrays, labels: Arrays, ranges: Ranges, *, fewer: bool = False
) -> dict[str, Array]:
    """Return the arrays of a batch by the names of the inputs they fill.

    Arrays without a name fill the inputs that none was named for, in order, labels after inputs. They are not copied:
    an element type may be another one than the graph's, which takes the same numbers.

    Args:
        wanted: what the graph takes.
        inputs: what was given.
        labels: what was given besides.
        ranges: what labels and indices may be.
        fewer: whether all inputs may have fewer samples than the graph takes, the same number each.

    Raises:
        InputError: if one is missing, left over, of a type that would change its numbers, of another shape, or holds a
            label or an index that the graph cannot take.
    """
    names = [want.name for want in wanted]
    found: dict[str, object] = {}
    unnamed: list[object] = []
    for given in (inputs, labels):
        if isinstance(given, Mapping):
            for name, array in given.items():
                if name not in names:
                    raise InputError(f"The model has no input '{name}' for data: it has {_list(names)}.")
                if name in found:
                    raise InputError(f"Input '{name}' is given twice.")
                found[name] = array
        elif isinstance(given, Sequence) and _is_several(given):
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
    if fewer:
        wanted = _of_fewer(wanted, found)
    batch = {want.name: _checked(want, found[want.name], sizes) for want in wanted}
    for name, array in batch.items():
        for allowed in ranges.get(name, ()):
            check_indices(name, array, allowed)
    return batch


def why_not_finite(loss: float, step: int, batch: Mapping[str, Array]) -> str:
    """Say that a loss is NaN or infinite, from which inputs that may come, and what to do.

    Args:
        loss: of the step.
        step: its number, from 1.
        batch: arrays by name. Only smallest and largest numbers are looked at, which takes no memory.
    """
    floats = {name: array for name, array in batch.items() if array.dtype.kind == "f" and array.size}
    found = [name for name, array in floats.items() if not np.isfinite((array.min(), array.max())).all()]
    said = f", and NaN or infinity is in the batch's {quoted(found)}" if found else ""
    remedy = "leave such samples out" if found else "give a smaller learning rate, or a clip_norm"
    return (
        f"The loss of step {step} is {loss}{said}, so parameters may be no numbers any more: load a checkpoint of "
        f"before, and {remedy}."
    )


def _of_fewer(wanted: Sequence[Wanted], given: Mapping[str, object]) -> Sequence[Wanted]:
    """Return what is wanted of a batch of fewer samples; as it is where the batch is not such a one."""
    counts = {_samples(given[want.name]) for want in wanted}
    sizes = {want.shape[0] if want.shape else None for want in wanted}
    (size, *others), count = sizes, min(counts, default=-1)
    if others or len(counts) != 1 or not isinstance(size, int) or not 0 < count < size:
        return wanted
    return [want._replace(shape=(count, *want.shape[1:])) for want in wanted]


def _samples(given: object) -> int:
    """Return the size of the first dimension; -1 if there is none."""
    shape = getattr(given, "shape", None)
    if isinstance(given, (list, tuple)):
        return len(given)
    return shape[0] if isinstance(shape, tuple) and shape and is_whole(shape[0]) else -1


def _is_several(given: Sequence[Any]) -> bool:
    """Return whether a sequence holds arrays, and not the numbers of one.

    Raises:
        InputError: if it holds arrays by name.
    """
    if isinstance(given, _NO_LISTS) or _has_type(given):
        return False
    if any(isinstance(item, Mapping) for item in given):
        raise InputError(
            f"Arrays by name are in a {type(given).__name__} of {len(given)}: give the mapping itself, or a pair of "
            "inputs and labels."
        )
    return not given or any(type(item) not in _NUMBERS and _has_type(item) for item in given)


def _has_type(given: object) -> bool:
    """Return whether something has elements of a type of its own: an array, a tensor, an image or a buffer."""
    if isinstance(given, (str, bytes, np.generic)):
        return False
    if any(hasattr(given, way) for way in ("__array__", "__array_interface__", "__array_struct__")):
        return True
    try:
        memoryview(given)  # type: ignore[arg-type] # it is what is asked
    except (BufferError, TypeError, ValueError):  # the last one of a memoryview that was released
        return False
    return True


def _with_types(given: object) -> Iterator[object]:
    """Yield what has elements of a type of its own: what was given, or what is in its lists."""
    if _has_type(given):
        yield given
    elif isinstance(given, Sequence) and not isinstance(given, _NO_LISTS):
        for item in given:
            if type(item) not in _NUMBERS:
                yield from _with_types(item)


def _checked(want: Wanted, given: object, sizes: dict[str, tuple[int, str]]) -> Array:
    array = _as_array(want, given)
    if array.dtype != want.dtype and not _same_numbers(array, want.dtype):
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


def _as_array(want: Wanted, given: Any) -> Array:
    """Return what numpy makes of a tensor, without a copy, or of numbers in lists; an array as it is."""
    try:
        array: Array = given if isinstance(given, np.ndarray) else np.asarray(_detached(given))
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"Input '{want.name}' is a {type(given).__name__} that numpy cannot read: {reason}") from error
    typed = list(_with_types(given))  # behind numpy, which has refused lists that hold themselves
    if any(is_a(each, "numpy.ma", "MaskedArray") for each in typed):
        raise InputError(
            f"Input '{want.name}' is a masked array, of which the hidden numbers would count, too: fill it first, as "
            "with .filled(0)."
        )
    if array.dtype.kind not in "biuf" and not typed:
        raise InputError(f"Input '{want.name}' is a {type(given).__name__}, but must be an array of {want.dtype}.")
    if want.dtype.kind == "f" and array.dtype.kind in "iuf" and not typed:
        return array.astype(want.dtype)
    return array


def _detached(given: Any) -> Any:
    """Return a tensor that torch lets numpy read; anything else as it is."""
    return given.detach() if hasattr(given, "__array__") and getattr(given, "requires_grad", False) else given


def _same_numbers(array: Array, dtype: np.dtype[np.generic]) -> bool:
    """Return whether a type can hold the numbers of an array, and is of its kind."""
    kinds = {array.dtype.kind, dtype.kind}
    if kinds in ({"f"}, {"b"}):
        return np.can_cast(array.dtype, dtype)
    if not kinds <= {"i", "u"}:
        return False
    if np.can_cast(array.dtype, dtype) or not array.size:
        return True
    limits = np.iinfo(dtype.name)
    integers: npt.NDArray[Any] = array
    return bool(limits.min <= int(integers.min()) and int(integers.max()) <= limits.max)


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
