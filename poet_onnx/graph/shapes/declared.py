"""What a model itself says of its tensors: types, named dimensions, and how errors name a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir

from poet_onnx.errors import InputError, shown
from poet_onnx.graph.operators.shape_context import TensorType
from poet_onnx.quantities import is_whole

ODD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What Python and numpy raise where a node's inputs or attributes are none that its operator can have."""

MOST_BYTES = 2**47
"""A process can address no more, on x86_64 and aarch64."""


@contextmanager
def fitting(node: ir.Node) -> Iterator[None]:
    """Name the node that a rule could not make sense of.

    Raises:
        InputError: the rule failed over inputs or attributes that the node's operator cannot have.
    """
    try:
        yield
    except ODD as problem:
        reason = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
        raise InputError(f"The {describe(node)} has inputs or attributes that do not fit it: {reason}.") from problem


def check_size(what: str, kind: TensorType) -> None:
    """Check that a tensor's shape is one that a tensor can have in memory.

    Args:
        what: the tensor, as the beginning of a sentence.
        kind: its type.

    Raises:
        InputError: a negative dimension, no element type, or more bytes than a process can address.
    """
    if min(kind.shape, default=0) < 0:
        raise InputError(
            f"{what} has shape {list(kind.shape)}: a dimension cannot be negative; export the model again."
        )
    if kind.dtype is ir.DataType.UNDEFINED:
        raise InputError(f"{what} has no element type; export the model again.")
    if kind.size_bytes > MOST_BYTES:
        raise InputError(
            f"{what} has shape {list(kind.shape)} and would take {kind.size_bytes:.3g} bytes, more than a process can"
            " address: choose smaller dimensions."
        )


def describe(node: ir.Node) -> str:
    """Return a node as errors name it."""
    return f"node '{node.name or (node.outputs[0].name if node.outputs else '')}' (operator {node.op_type})"


def dim_name(value: ir.Value, axis: int) -> str:
    """Return the name of a dimension that is not fixed: its own, or such as `x.0`, which an exporter left out."""
    assert value.shape is not None
    dim = value.shape[axis]
    own = dim.value if isinstance(dim, ir.SymbolicDim) else None
    return own or f"{value.name}.{axis}"


def fixed_dims(model: ir.Model, dims: Mapping[str, int]) -> None:
    """Check that the named dimensions exist in the graph's inputs and that their sizes make sense.

    Raises:
        InputError: a name that no input has, or a size below 1.
    """
    known = {
        dim_name(value, axis)
        for value in model.graph.inputs
        for axis, dim in enumerate(value.shape or ())
        if isinstance(dim, ir.SymbolicDim)
    }
    for name, size in dims.items():
        if not is_whole(size) or size < 1:
            raise InputError(f"Dimension '{name}' cannot be {shown(size)}: give a whole size of at least 1.")
        if name not in known:
            names = ", ".join(sorted(known)) or "none: all of its inputs have fixed sizes"
            raise InputError(f"The model has no dimension named '{name}'; its named dimensions are {names}.")


def declared_type(value: ir.Value, dims: Mapping[str, int]) -> TensorType | None:
    """Return the type that the model declares for a value, or None where it is not complete."""
    if value.dtype is None or value.shape is None or not isinstance(value.type, ir.TensorType):
        return None
    shape = [dim if isinstance(dim, int) else dims.get(dim_name(value, axis)) for axis, dim in enumerate(value.shape)]
    if any(size is None for size in shape):
        return None
    return TensorType(value.dtype, tuple(int(size) for size in shape if size is not None))


def check_kind(value: ir.Value, what: str) -> None:
    """Check that a value is a tensor of numbers.

    Raises:
        InputError: it is a sequence, a map, an optional, a sparse tensor or holds strings.
    """
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        kind = type(value.type).__name__.removesuffix("Type").lower()
        raise InputError(f"{what} '{value.name}' is a {kind}: only tensors of numbers can be scheduled.")
    if value.dtype == ir.DataType.STRING:
        raise InputError(f"{what} '{value.name}' holds strings: only tensors of numbers can be scheduled.")
