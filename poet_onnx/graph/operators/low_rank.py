"""Low-rank adapters beside products with frozen matrices, and their gradients (ops/kernels/low_rank.cpp)."""

from __future__ import annotations

from functools import partial

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect, expect_count
from poet_onnx.graph.operators.rules import FLOAT
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import Attribute, Call, OpSpec, Schema, StorageWork, Work, elements

ADD, GRADIENT, WEIGHT_GRADIENT = "AddLowRank", "AddLowRankGradient", "AddLowRankWeightGradient"
"""What adds; the gradient by all that is trained; and the one by the weights alone."""

_FLOAT_BYTES, _HANDLE = 4, "INT64"
_F32 = "tensor(float)"


def _sum(context: ShapeContext) -> list[TensorType]:
    return [context.type(0), TensorType(FLOAT, (*context.type(1).shape[:-1], context.attributes["rank"]))]


def _fits(context: ShapeContext, index: int, shape: tuple[int, int]) -> None:
    """Check that an input is such a matrix, or the handle of one."""
    if context.type(index).dtype.name != _HANDLE:
        expect(context, index, shape)


def _sum_fits(context: ShapeContext) -> None:
    rank = context.integer("rank", 0)
    if rank < 1:
        raise RuleError(f"no matrices have the rank {rank}")
    (*rows, taken), made = context.type(1).shape, context.type(0).shape[-1]
    expect(context, 0, (*rows, made))
    tall, wide = (made, taken) if context.integer("transposed", 0) else (taken, made)
    _fits(context, 2, (tall, rank))
    _fits(context, 3, (rank, wide))
    expect_count(context, 4, 1)
    if context.integer("biased", 0):
        expect(context, 5, (made,))


def _gradients(context: ShapeContext) -> list[TensorType]:
    added = context.integer("added", 0)
    return [context.type(added + 1), *_weight_gradients(context, added)]


def _gradients_fit(context: ShapeContext) -> None:
    added = context.integer("added", 0)
    if added < 0:
        raise RuleError(f"{added} terms cannot be added")
    taken, rank, _ = _gradient_fits(context, added)
    for index in range(added):
        expect(context, index, context.type(added + 1).shape)
    _fits(context, added + 3, (taken, rank))


def _gradient_fits(context: ShapeContext, first: int) -> tuple[int, int, int]:
    """Check dY, which is this input, x and low, and what is behind A or low; return the sizes of A and B."""
    behind = first + 4 if context.op_type == GRADIENT else first + 3
    (*rows, made), taken, rank = (
        context.type(first).shape,
        context.type(first + 1).shape[-1],
        context.type(first + 2).shape[-1],
    )
    expect(context, first + 1, (*rows, taken))
    expect(context, first + 2, (*rows, rank))
    _fits(context, behind, (rank, made))
    expect_count(context, behind + 1, 1)
    return taken, rank, made


def _weight_gradients(context: ShapeContext, first: int = 0) -> list[TensorType]:
    made, taken, rank = (context.type(first + place).shape[-1] for place in range(3))
    return [TensorType(FLOAT, (taken, rank)), TensorType(FLOAT, (rank, made))]


def _weight_gradients_fit(context: ShapeContext) -> None:
    _gradient_fits(context, 0)


def _added(call: Call) -> int:
    return call.integer("added", 0)


def _work_of_sum(call: Call) -> Work:
    """Return the work of two products, and of what is done with each number of the small one, and of the bias."""
    low, x, y = call.output(1), call.input(1), call.output(0)
    flops = elements(low) + elements(y) * call.integer("biased", 0)
    return Work(2 * elements(low) * (x.shape[-1] + y.shape[-1]), flops, call.read_bytes + call.written_bytes)


def _work_of_gradients(call: Call) -> Work:
    """Return the work of two products with A or x, two with B or dY, and of sums."""
    d_y, x, low = (call.input(_added(call) + place) for place in range(3))
    flops = elements(low) + elements(x) * max(0, _added(call) - 1)
    return Work(4 * elements(low) * (x.shape[-1] + d_y.shape[-1]), flops, call.read_bytes + call.written_bytes)


def _work_of_weight_gradients(call: Call) -> Work:
    """Return the work without the product that makes dX."""
    d_y, x, low = (call.input(place) for place in range(3))
    flops = 2 * elements(low) * (x.shape[-1] + 2 * d_y.shape[-1])
    return Work(flops, elements(low), call.read_bytes + call.written_bytes)


def matrices(operator: str, added: int) -> tuple[int, ...]:
    """Return which inputs are A and B, which may be in a store.

    Args:
        operator: one of the three.
        added: how many terms a gradient adds.
    """
    return {ADD: (2, 3), GRADIENT: (added + 3, added + 4), WEIGHT_GRADIENT: (3,)}.get(operator, ())


def _stored_bytes(call: Call) -> list[int]:
    """Return the bytes of A and B as far as they are in a store."""
    added = _added(call)
    if call.op_type == ADD:
        widths, rank = (call.input(1).shape[-1], call.input(0).shape[-1]), call.integer("rank", 0)
        widths = widths[::-1] if call.integer("transposed", 0) else widths
    else:
        made, taken, rank = (call.input(added + place).shape[-1] for place in range(3))
        widths = (taken, made)
    places = matrices(call.op_type, added)
    found = zip(places, widths[-len(places) :], strict=True)
    return [_FLOAT_BYTES * width * rank for place, width in found if call.input(place).dtype == _HANDLE]


def _read(call: Call) -> StorageWork:
    stored = _stored_bytes(call)
    return StorageWork(sum(stored), 0, len(stored))


def _room(call: Call) -> int:
    """Return the bytes of the gradient by x A, and of A or B where they are in a store: one after the other is read."""
    low = 0 if call.op_type == ADD else call.input(_added(call) + 2).size_bytes
    return low + max(_stored_bytes(call), default=0)


_spec = partial(OpSpec, domain=POET_DOMAIN, of_graphs=True, storage=_read, workspace=_room)

SPECS = [
    _spec(
        ADD,
        inplace=((0, 0),),
        optional_outputs=1,
        shape=_sum,
        check=_sum_fits,
        work=_work_of_sum,
        schema=Schema(
            "AddLowRank(base, x, A, B, scale, bias?, after...) -> y, low: base + bias + low B, low = scale * x A.",
            (("y", _F32), ("low", _F32)),
            (
                Attribute("biased", "INT", "Whether there is a bias."),
                Attribute("rank", "INT", "Columns of A."),
                Attribute("transposed", "INT", "Whether low = scale * x B' and low A' is added: the gradient by x."),
            ),
        ),
    ),
    _spec(
        GRADIENT,
        inplace=((0, 0),),
        shape=_gradients,
        check=_gradients_fit,
        work=_work_of_gradients,
        schema=Schema(
            "AddLowRankGradient(added..., dY, x, low, A, B, scale, after...) -> dX, dA, dB: the gradients of what "
            "AddLowRank adds, that of x plus what is added.",
            (("dX", _F32), ("dA", _F32), ("dB", _F32)),
            (Attribute("added", "INT", "How many terms are added to dX."),),
        ),
    ),
    _spec(
        WEIGHT_GRADIENT,
        shape=_weight_gradients,
        check=_weight_gradients_fit,
        work=_work_of_weight_gradients,
        schema=Schema(
            "AddLowRankWeightGradient(dY, x, low, B, scale, after...) -> dA, dB: the same without that of x.",
            (("dA", _F32), ("dB", _F32)),
        ),
    ),
]
"""Sums with a product of low rank, and their gradients."""
