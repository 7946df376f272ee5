"""What a graph says before it runs: sizes of values, integers of attributes, and numbers of constants."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.graph.extract.build import plain_attributes

_MOST_NUMBERS = 4096
"""Of a constant that is read."""

_SAME_NUMBERS = frozenset(("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze"))

Dims = tuple[int | str | None, ...]
"""Sizes, and the names of such as may be any."""


def integer_of(node: ir.Node, name: str) -> int:
    """Return an attribute that is 0 where it is left out."""
    value = plain_attributes(node).get(name, 0)
    return value if isinstance(value, int) else 0


def dims_of(value: ir.Value | None) -> Dims | None:
    """Return sizes, or the names of such as may be any."""
    if value is None or value.shape is None:
        return None
    return tuple(each if isinstance(each, int) else each.value for each in value.shape)


def rank_of(*values: ir.Value | None) -> int | None:
    """Return how many axes the first value has whose shape is known."""
    return next((len(dims) for each in values if (dims := dims_of(each)) is not None), None)


def size_of(value: ir.Value, axis: int) -> int | None:
    """Return the size of an axis that is known to be of one size."""
    dims = dims_of(value) or ()
    size = dims[axis] if axis < len(dims) else None
    return size if isinstance(size, int) else None


def is_given(node: ir.Node, name: str, place: int) -> bool:
    """Return whether an attribute is there, or the input that newer opsets have instead."""
    return name in node.attributes or (place < len(node.inputs) and node.inputs[place] is not None)


def integers_of(node: ir.Node, name: str, place: int) -> list[int] | None:
    """Return the integers of an attribute, or of the constant input that newer opsets have instead."""
    given = plain_attributes(node).get(name)
    if given is not None:
        several = given if isinstance(given, (list, tuple)) else ()
        return [each for each in several if isinstance(each, int)] if several else None
    numbers = constant_of(node.inputs[place] if place < len(node.inputs) else None)
    return None if numbers is None else [int(each) for each in numbers.flat]


def constant_of(value: ir.Value | None) -> npt.NDArray[np.integer] | None:
    """Return the integers that a constant holds, converted or in another shape, as exporters write them."""
    source = value
    while source is not None and (node := source.producer()) is not None and node.op_type in _SAME_NUMBERS:
        source = node.inputs[0] if node.inputs else None
    tensor = None if source is None or source.is_graph_input() else ir.convenience.get_const_tensor(source)
    if tensor is None or not tensor.dtype.is_integer() or tensor.size > _MOST_NUMBERS:
        return None
    numbers = tensor.numpy().astype(np.int64)
    shape = numbers.shape if source is value else dims_of(value)
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    return numbers.reshape([int(size) for size in shape if size is not None])
