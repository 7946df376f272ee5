"""What a shape rule reads and returns: a node, the types of its inputs, and the values of small constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array: TypeAlias = npt.NDArray[Any]


LARGEST_VALUE = 1024
"""Elements of the largest constant that is followed; shapes and index lists are far smaller."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """The element type and the dimensions of a tensor, all known."""

    dtype: ir.DataType
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the elements; types below a byte are packed."""
        return math.ceil(self.elements * self.dtype.itemsize)


class RuleError(Exception):
    """A rule cannot tell the shape; says what it lacks, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class ShapeContext:
    """A node as a shape rule sees it.

    Attributes:
        op_type: the operator.
        attributes: plain values by name.
        types: of the inputs; None for an absent optional one.
        values: of the inputs, where they are small constants, otherwise None.
        declared: types of the outputs as far as the model itself declares them.
        source_types: for each input, the types of the inputs of the node that makes it.
        source_op: for each input, the operator of that node; "" for what no node makes.
    """

    op_type: str
    attributes: Mapping[str, Any]
    types: Sequence[TensorType | None]
    values: Sequence[Array | None]
    declared: Sequence[TensorType | None]
    source_types: Callable[[int], Sequence[TensorType | None]]
    source_op: Callable[[int], str]

    def type(self, index: int) -> TensorType:
        """Return the type of an input that the operator needs."""
        found = self.types[index] if index < len(self.types) else None
        if found is None:
            raise RuleError(f"its input {index} is missing")
        return found

    def has(self, index: int) -> bool:
        """Return whether an optional input is there."""
        return index < len(self.types) and self.types[index] is not None

    def integers(self, index: int) -> tuple[int, ...]:
        """Return the numbers of an input that must be a constant."""
        self.type(index)
        value = self.values[index]
        if value is None:
            raise RuleError(f"its input {index} must be a constant and is computed at run time")
        return tuple(int(number) for number in np.atleast_1d(value).ravel())

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise RuleError(f"its attribute {name} is not an integer")
        return int(value)

    def numbers(self, name: str, count: int, default: int | None = 1) -> tuple[int, ...]:
        """Return an attribute that is a list of so many integers; the default as often, where it is missing."""
        found = self.attributes.get(name)
        if not found and found != 0:
            return () if default is None else (default,) * count
        if isinstance(found, (int, float, str)) or len(found) != count:
            raise RuleError(f"its attribute {name} is not a list of {count} integers")
        return tuple(int(number) for number in found)

    def axis(self, default: int, rank: int) -> int:
        """Return the attribute `axis`, counted from the front."""
        axis = self.integer("axis", default)
        if not -rank <= axis < max(rank, 1):
            raise RuleError(f"its axis {axis} is outside the {rank} dimensions of its input")
        return axis % rank if rank else 0


Rule: TypeAlias = "Callable[[ShapeContext], Sequence[TensorType | None]]"
