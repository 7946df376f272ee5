"""Low-rank adapters beside products with frozen matrices, and their gradients (ops/kernels/low_rank.cpp)."""

from __future__ import annotations

from poet_onnx.description.metadata import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect, expect_count, said
from poet_onnx.graph.operators.rules import FLOAT, nothing
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import Attribute, Call, OpSpec, Schema, Work, elements

ADD, GRADIENT, WEIGHT_GRADIENT = "AddLowRank", "AddLowRankGradient", "AddLowRankWeightGradient"
"""What adds; the gradient by all that is trained; and the one by the weights alone."""

_FLOAT_BYTES = 4
_F32 = "tensor(float)"


def _sum(context: ShapeContext) -> list[TensorType]:
    return [context.type(0), TensorType(FLOAT, (*context.type(1).shape[:-1], context.type(2).shape[-1]))]


def _sum_fits(context: ShapeContext) -> None:
    taken, rank, made = _widths(context, 2, 3)
    rows = context.type(1).shape[:-1]
    expect(context, 1, (*rows, taken))
    expect(context, 0, (*rows, made))
    expect(context, 3, (rank, made))
    expect_count(context, 4, 1)
    if context.integer("biased", 0):
        expect(context, 5, (made,))


def _widths(context: ShapeContext, first: int, second: int) -> tuple[int, int, int]:
    """Return the sizes of A and B, which are these inputs: rows of A, its columns, and columns of B."""
    for index in (first, second):
        if len(context.type(index).shape) != 2 or 0 in context.type(index).shape:
            raise RuleError(f"{said(context, index)} must be a matrix")
    taken, rank = context.type(first).shape
    return taken, rank, context.type(second).shape[1]


def _gradients(context: ShapeContext) -> list[TensorType]:
    added = context.integer("added", 0)
    return [context.type(added + place) for place in (1, 3, 4)]


def _gradients_fit(context: ShapeContext) -> None:
    added = context.integer("added", 0)
    if added < 0:
        raise RuleError(f"{added} terms cannot be added")
    taken, rank, made = _widths(context, added + 3, added + 4)
    rows = context.type(added + 1).shape[:-1]
    for index in (*range(added), added + 1):
        expect(context, index, (*rows, taken))
    expect(context, added, (*rows, made))
    expect(context, added + 2, (*rows, rank))
    expect(context, added + 4, (rank, made))
    expect_count(context, added + 5, 1)


def _weight_gradients(context: ShapeContext) -> list[TensorType]:
    return [TensorType(FLOAT, (context.type(1).shape[-1], context.type(2).shape[-1])), context.type(3)]


def _weight_gradients_fit(context: ShapeContext) -> None:
    rows, (rank, made) = context.type(1).shape[:-1], context.type(3).shape
    expect(context, 0, (*rows, made))
    expect(context, 2, (*rows, rank))
    expect_count(context, 4, 1)


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


def _room(call: Call) -> int:
    """Return the bytes of the gradient by x A."""
    return call.input(_added(call) + 2).size_bytes


SPECS = [
    OpSpec(
        ADD,
        POET_DOMAIN,
        of_graphs=True,
        inplace=((0, 0),),
        shape=_sum,
        check=_sum_fits,
        work=_work_of_sum,
        workspace=nothing,
        schema=Schema(
            "AddLowRank(base, x, A, B, scale, bias?, after...) -> y, low: base + bias + low B, low = scale * x A.",
            (("y", _F32), ("low", _F32)),
            (Attribute("biased", "INT", "Whether there is a bias."),),
        ),
    ),
    OpSpec(
        GRADIENT,
        POET_DOMAIN,
        of_graphs=True,
        inplace=((0, 0),),
        shape=_gradients,
        check=_gradients_fit,
        work=_work_of_gradients,
        workspace=_room,
        schema=Schema(
            "AddLowRankGradient(added..., dY, x, low, A, B, scale, after...) -> dX, dA, dB: the gradients of what "
            "AddLowRank adds, that of x plus what is added.",
            (("dX", _F32), ("dA", _F32), ("dB", _F32)),
            (Attribute("added", "INT", "How many terms are added to dX."),),
        ),
    ),
    OpSpec(
        WEIGHT_GRADIENT,
        POET_DOMAIN,
        of_graphs=True,
        shape=_weight_gradients,
        check=_weight_gradients_fit,
        work=_work_of_weight_gradients,
        workspace=_room,
        schema=Schema(
            "AddLowRankWeightGradient(dY, x, low, B, scale, after...) -> dA, dB: the same without that of x.",
            (("dA", _F32), ("dB", _F32)),
        ),
    ),
]
"""Sums with a product of low rank, and their gradients."""
