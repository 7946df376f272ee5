"""Rules that operators of several families share: of shapes, of work and of workspace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest

import onnx_ir as ir

from poet_onnx.graph.operators.shape_context import Rule, RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import Call, Work, WorkRule, WorkspaceRule, elements
from poet_onnx.graph.training_graph import Tensor

BOOL, FLOAT, INT64 = ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT64


def like(*indices: int) -> Rule:
    """Return a rule: output i has the type and shape of input indices[i]; none where that input is absent."""

    def rule(context: ShapeContext) -> Sequence[TensorType | None]:
        return [context.types[index] if context.has(index) else None for index in indices]

    return rule


def with_mask(context: ShapeContext) -> list[TensorType]:
    """Return the types of an output like input 0, and of a flag for each of its elements."""
    data = context.type(0)
    return [data, TensorType(BOOL, data.shape)]


def scalar(_: ShapeContext) -> list[TensorType]:
    """Return the type of an output of one float."""
    return [TensorType(FLOAT, ())]


def of_attributes(context: ShapeContext) -> list[TensorType]:
    """Return the type that the node says in attributes."""
    return [TensorType(ir.DataType(context.attributes["dtype"]), tuple(context.attributes["shape"]))]


def shape_from(shape_index: int, dtype_index: int) -> Rule:
    """Return a rule: the output's dimensions are the value of an input, as for gradients of gathers and slices."""

    def rule(context: ShapeContext) -> list[TensorType]:
        return [TensorType(context.type(dtype_index).dtype, context.integers(shape_index))]

    return rule


def broadcast(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to.

    Raises:
        RuleError: they do not.
    """
    result = []
    for a, b in zip_longest(reversed(first), reversed(second), fillvalue=1):
        if a != b and 1 not in (a, b):
            raise RuleError(f"its inputs of shapes {tuple(first)} and {tuple(second)} do not broadcast")
        result.append(b if a == 1 else a)
    return tuple(reversed(result))


def per_output(flops: int) -> WorkRule:
    """Return a rule: so many operations for each element of the largest output."""

    def rule(call: Call) -> Work:
        largest = max(map(elements, call.outputs), default=0)
        return Work(0, flops * largest, call.read_bytes + call.written_bytes)

    return rule


def per_input(flops: int) -> WorkRule:
    """Return a rule: so many operations for each element of the largest input."""

    def rule(call: Call) -> Work:
        largest = max(map(elements, call.inputs), default=0)
        return Work(0, flops * largest, call.read_bytes + call.written_bytes)

    return rule


def product(flops: Callable[[Call], int]) -> WorkRule:
    """Return a rule of an operator that does nothing but multiply and add, given its number of operations."""
    return lambda call: Work(flops(call), 0, call.read_bytes + call.written_bytes)


def product_and_bias(flops: Callable[[Call], int]) -> WorkRule:
    """Return a rule of a product to which input 2, where it is there, is added."""

    def rule(call: Call) -> Work:
        biased = len(call.inputs) > 2 and call.inputs[2] is not None
        return Work(flops(call), elements(call.output(0)) if biased else 0, call.read_bytes + call.written_bytes)

    return rule


def movement(call: Call) -> Work:
    """Return the work of an operator that reads only what it writes."""
    return Work(0, 0, 2 * call.written_bytes)


def writing(call: Call) -> Work:
    """Return the work of an operator that reads nothing of its inputs' elements."""
    return Work(0, 0, call.written_bytes)


def nothing(call: Call) -> int:
    """Return the workspace of an operator that was measured to allocate nothing but its outputs."""
    return 0


def of_each(index: int, size_bytes: int) -> WorkspaceRule:
    """Return a rule: so many bytes for each element of an input."""
    return lambda call: size_bytes * elements(call.input(index))


def of_each_row(index: int, size_bytes: int) -> WorkspaceRule:
    """Return a rule: so many bytes for each row, along the last axis, of an input."""
    return lambda call: size_bytes * math.prod(call.input(index).shape[:-1])


def times_tensors(times: int) -> WorkspaceRule:
    """Return an estimate: some times what the operator reads and writes."""
    return lambda call: times * (call.read_bytes + call.written_bytes)


def together(buffers: Callable[[Call], tuple[int, ...]]) -> WorkspaceRule:
    """Return a rule: all buffers of the kernel's own."""
    return lambda call: sum(buffers(call))


def input_copy(call: Call) -> int:
    """Return the workspace of a kernel that copies its first input."""
    return call.input(0).size_bytes


def transposing(copies: int) -> WorkspaceRule:
    """Return a rule: copies of the first input, unless the axis that the kernel works along is the last."""

    def rule(call: Call) -> int:
        x = call.input(0)
        axis = call.integer("axis", -1) % max(1, len(x.shape))
        return 0 if axis == len(x.shape) - 1 else copies * x.size_bytes

    return rule


def shape_bytes(shape: Sequence[int], like: Tensor) -> int:
    """Return the bytes of a tensor of a shape, with elements as large as another's."""
    count = math.prod(like.shape)
    return math.prod(shape) * (like.size_bytes // count if count else 0)
