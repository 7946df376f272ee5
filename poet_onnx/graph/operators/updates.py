"""Accumulation of gradients and optimizers, of ONNX Runtime and of ours: what belongs to the update phase."""

from __future__ import annotations

from functools import partial

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect, expect_count, same_shape
from poet_onnx.graph.operators.rules import BOOL, like, nothing, of_each, writing
from poet_onnx.graph.operators.shape_context import ShapeContext, TensorType
from poet_onnx.graph.operators.spec import (
    MICROSOFT_DOMAIN,
    Attribute,
    Call,
    OpSpec,
    Schema,
    Work,
    WorkRule,
    elements,
)

FLAG = (("updated", "tensor(bool)"),)
OFFSET = (Attribute("offset", "INT", "First element of the buffer that changes."),)

KINDS = (("Sgd", 5, 1), ("Momentum", 8, 2), ("Adam", 18, 3))
"""For each optimizer: its name, the operations for an element, and the number of tensors that it changes."""

PARAMETER = 2
"""Input of an update: the first that changes, before the others."""

_TENSORS = {"Sgd": "parameter", "Momentum": "parameter, momentum", "Adam": "parameter, first_moment, second_moment"}
LISTED_BYTES = 20
"""Of a row that an index names: its number, its place in the order of all, and what sorting takes."""

_runtime = partial(OpSpec, domain=MICROSOFT_DOMAIN, update=True)
_ours = partial(OpSpec, domain=POET_DOMAIN, update=True, always_writes=True, workspace=nothing)


def flag(context: ShapeContext) -> list[TensorType]:
    """Return the type of an output that only says that the node ran."""
    return [TensorType(BOOL, (1,))]


def _flag_and_buffer(context: ShapeContext) -> list[TensorType]:
    return [TensorType(BOOL, (1,)), context.type(0)]


def _accumulator_fits(context: ShapeContext) -> None:
    expect(context, 1, context.type(0).shape)
    if context.has(2):
        expect_count(context, 2, 1)


def _sum_into_buffer(call: Call) -> Work:
    """Return the work of adding one whole tensor to another."""
    buffer_bytes = call.inputs[0].size_bytes if call.inputs and call.inputs[0] else 0
    return Work(0, max(map(elements, call.inputs), default=0), call.read_bytes + buffer_bytes)


def _part_into_buffer(changed: int) -> WorkRule:
    """Return a rule: what is read behind the buffer, and what changes of it, which is as large as input `changed`."""

    def rule(call: Call) -> Work:
        part = call.input(changed)
        read_bytes = sum(tensor.size_bytes for tensor in call.inputs[1:] if tensor)
        return Work(0, elements(part), read_bytes + 2 * part.size_bytes)

    return rule


def optimizer_work(flops: int, written: int) -> WorkRule:
    """Return a rule of an optimizer: operations for each element of the gradient, and tensors that it reads and writes.

    Of each of them as much moves as there is of gradient.
    """

    def rule(call: Call) -> Work:
        gradient = call.input(0)
        return Work(0, flops * elements(gradient), gradient.size_bytes * (1 + 2 * written))

    return rule


def _work_of_table(flops: int, tensors: int) -> WorkRule:
    """Return a rule of an optimizer that changes a whole table, of whose gradient some rows are given."""

    def rule(call: Call) -> Work:
        table = call.input(PARAMETER)
        return Work(0, flops * elements(table), call.input(0).size_bytes + 2 * tensors * table.size_bytes)

    return rule


def _changed(tensors: int) -> tuple[int, ...]:
    return tuple(range(PARAMETER, PARAMETER + tensors))


SPECS = [
    _runtime(
        "InPlaceAccumulatorV2",
        aliases=((0, 1),),
        writes=(0,),
        always_writes=True,
        reset_input=2,
        shape=_flag_and_buffer,
        check=_accumulator_fits,
        work=_sum_into_buffer,
        workspace=nothing,
    ),
    _runtime(
        "InPlaceAccumulator",
        aliases=((0, 0),),
        writes=(0,),
        shape=like(0),
        check=_accumulator_fits,
        work=_sum_into_buffer,
        workspace=nothing,
    ),
    _runtime("ZeroGradient", aliases=((0, 0),), writes=(0,), shape=like(0), work=writing, workspace=nothing),
    _runtime("SGDOptimizer", aliases=((1, 0), (2, 1)), writes=(1, 2), shape=like(1, 2, 2), check=same_shape(1, 2)),
    _runtime(
        "AdamOptimizer",
        aliases=((1, 0), (2, 3), (3, 4), (4, 1), (5, 2), (6, 5)),
        writes=(1, 2, 3, 4, 5, 6),
        shape=like(1, 4, 5, 2, 3, 6),
        check=same_shape(2, 3, 4, 5),
    ),
    _ours(
        "Accumulate",
        writes=(0,),
        reset_input=2,
        shape=flag,
        work=_part_into_buffer(1),
        schema=Schema(
            "Accumulate(buffer, part, overwrite, after...) -> updated: adds a part of a gradient to its buffer.",
            FLAG,
            OFFSET,
        ),
    ),
    _ours(
        "AccumulateRows",
        writes=(0,),
        reset_input=3,
        shape=flag,
        work=_part_into_buffer(0),
        heap=of_each(1, LISTED_BYTES),
        schema=Schema(
            "AccumulateRows(buffer, indices, gradient, overwrite, after...) -> updated: adds rows of a gradient to the "
            "rows of its buffer that the indices name.",
            FLAG,
        ),
    ),
    *(
        _ours(
            f"Update{name}",
            writes=_changed(tensors),
            shape=flag,
            work=optimizer_work(flops, tensors),
            schema=Schema(
                f"Update{name}(gradient, rates, {_TENSORS[name]}, after...) -> updated: a step, in place.",
                FLAG,
                OFFSET,
            ),
        )
        for name, flops, tensors in KINDS
    ),
    *(
        _ours(
            f"UpdateRows{name}",
            writes=_changed(tensors),
            shape=flag,
            work=_work_of_table(flops, tensors),
            heap=of_each(PARAMETER + tensors, LISTED_BYTES),
            schema=Schema(
                f"UpdateRows{name}(gradient, rates, {_TENSORS[name]}, indices, after...) -> updated: the same for a "
                "table, of whose gradient the rows are given that are not zero.",
                FLAG,
            ),
        )
        for name, flops, tensors in KINDS
    ),
]
"""Accumulators and optimizers."""
