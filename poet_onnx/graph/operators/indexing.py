"""Gathers and scatters, their gradients, and operators that find indices."""

from __future__ import annotations

import numpy as np

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import OTHER_SIZE, expect, said
from poet_onnx.graph.operators.rules import (
    like,
    movement,
    nothing,
    of_each,
    of_each_row,
    per_input,
    per_output,
    shape_from,
)
from poet_onnx.graph.operators.shape_context import Array, RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, Attribute, Call, OpSpec, Schema, elements, family
from poet_onnx.graph.operators.updates import LISTED_BYTES


def _gathered(context: ShapeContext) -> list[TensorType]:
    data, indices = context.type(0), context.type(1)
    axis = context.axis(0, len(data.shape))
    return [TensorType(data.dtype, data.shape[:axis] + indices.shape + data.shape[axis + 1 :])]


def _gather(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    return [np.take(inputs[0], inputs[1].astype(np.int64), axis=context.axis(0, inputs[0].ndim))]


def _indices_fit(context: ShapeContext) -> None:
    """Gather(data, indices), GatherElements(data, indices): constant indices are in the data."""
    indices = context.values[1] if context.has(1) else None
    shape = context.type(0).shape
    if indices is None or not indices.size or not shape:
        return
    size = shape[context.axis(0, len(shape))]
    for index in (int(indices.min()), int(indices.max())):
        if not -size <= index < size:
            raise RuleError(f"its index {index} is outside the size {size} of {list(shape)}; {OTHER_SIZE}")


def _coordinates_fit(context: ShapeContext) -> None:
    """GatherND(data, indices): onnx itself reads beyond its memory where batch_dims is none."""
    batch, ranks = context.integer("batch_dims", 0), [len(context.type(index).shape) for index in (0, 1)]
    if not 0 <= batch < min(ranks):
        raise RuleError(f"its batch_dims is {batch} and must be at least 0 and below {min(ranks)}")


def _gather_gradient_fits(context: ShapeContext) -> None:
    shape, indices = context.integers(0), context.type(1)
    axis = context.axis(0, len(shape))
    expect(context, 2, (*shape[:axis], *indices.shape, *shape[axis + 1 :]))


def _attributes_shape(context: ShapeContext) -> list[TensorType]:
    return [TensorType(context.type(1).dtype, tuple(int(size) for size in context.attributes["shape"]))]


def _rows_fit(context: ShapeContext) -> None:
    (made,), axis = _attributes_shape(context), context.integer("axis", 0)
    if not 0 <= axis < len(made.shape):
        raise RuleError(f"its axis is {axis} and its shape {list(made.shape)}")
    expect(context, 1, (*made.shape[:axis], *context.type(0).shape, *made.shape[axis + 1 :]))


def _added_rows_fit(context: ShapeContext) -> None:
    base, first, rows = context.type(0).shape, context.integer("first", 0), context.integer("rows", 0)
    if not base or not 0 <= first <= rows - base[0]:
        raise RuleError(f"rows from {first} on of a table of {rows} are no {list(base)}")
    expect(context, 2, (*context.type(1).shape, *base[1:]))


def _gather_elements_gradient_fits(context: ShapeContext) -> None:
    shape = context.integers(1)
    context.axis(0, len(shape))
    expect(context, 2, context.type(0).shape)
    if len(shape) != len(context.type(0).shape):
        raise RuleError(f"{said(context, 0)} has another rank than {list(shape)}")


def _gather_nd_gradient_fits(context: ShapeContext) -> None:
    shape, indices = context.integers(0), context.type(1).shape
    batch = context.integer("batch_dims", 0)
    depth = indices[-1] if indices else -1
    fits = 0 <= batch < len(indices) and 0 <= depth <= len(shape) - batch
    if not fits or indices[:batch] != shape[:batch]:
        raise RuleError(f"indices of shape {list(indices)} do not point into {list(shape)}")
    expect(context, 2, (*indices[:-1], *shape[batch + depth :]))


def _places(call: Call) -> int:
    """Return the bytes of the places that NonZero collects: as if there were no zero."""
    x = call.input(0)
    return 8 * max(1, len(x.shape)) * elements(x)


def _ranked(call: Call) -> int:
    """Return the bytes of TopK's numbers: every thread ranks a row, and boards have four."""
    x, longest = call.input(0), max(call.input(0).shape, default=0)
    axis = call.integer("axis", -1) % max(1, len(x.shape))
    kept = call.output(0).shape[axis] if x.shape else 0
    return 4 * 8 * (longest + kept)


# What they take from malloc: github.com/microsoft/onnxruntime, v1.19.2, onnxruntime/core/providers/cpu/tensor, such as
# GetIndices of scatter.cc; tests/costing/test_heap.py measures it.
SPECS = [
    OpSpec("Gather", value=_gather, check=_indices_fit, work=movement, workspace=nothing),
    OpSpec("GatherElements", check=_indices_fit, work=movement, workspace=nothing),
    OpSpec(
        "GatherND", MICROSOFT_DOMAIN, check=_coordinates_fit, work=movement, workspace=nothing, heap=of_each_row(1, 8)
    ),
    OpSpec("ScatterElements", inplace=((0, 0),), work=per_output(1), workspace=nothing, heap=of_each(1, 8)),
    OpSpec("ScatterND", work=per_output(1), workspace=nothing, heap=of_each_row(1, 8)),
    OpSpec("Scatter", workspace=nothing, heap=of_each(1, 8)),
    OpSpec("TensorScatter", workspace=nothing),
    OpSpec("OneHot", workspace=nothing, heap=of_each(0, 8)),
    OpSpec("NonZero", workspace=nothing, heap=_places),
    OpSpec("Unique", MICROSOFT_DOMAIN, workspace=nothing, heap=of_each(0, 128)),
    *family("ArgMax ArgMin", work=per_input(1), workspace=nothing),
    OpSpec("TopK", work=per_input(1), workspace=nothing, heap=_ranked),
    OpSpec(
        "GatherGrad",
        MICROSOFT_DOMAIN,
        shape=shape_from(0, 2),
        check=_gather_gradient_fits,
        work=per_output(1),
        workspace=nothing,
    ),
    OpSpec(
        "GatherGradient",
        POET_DOMAIN,
        shape=_attributes_shape,
        check=_rows_fit,
        work=per_output(1),
        workspace=nothing,
        heap=of_each(0, LISTED_BYTES),
        schema=Schema(
            "GatherGradient(indices, dY) -> dX: the gradient of a gather, summed in the order of the indices.",
            (("dX", "tensor(float)"),),
            (
                Attribute("shape", "INTS", "Shape of dX."),
                Attribute("axis", "INT", "Along which indices point, 0 or more."),
            ),
        ),
    ),
    OpSpec(
        "AddRows",
        POET_DOMAIN,
        inplace=((0, 0),),
        shape=like(0),
        check=_added_rows_fit,
        work=per_output(1),
        workspace=nothing,
        heap=of_each(1, LISTED_BYTES),
        schema=Schema(
            "AddRows(base, indices, gradient, after...) -> sum: adds rows of a gradient to rows of a table.",
            (("sum", "tensor(float)"),),
            (
                Attribute("first", "INT", "Row that is the base's first."),
                Attribute("rows", "INT", "Rows of the table."),
            ),
        ),
    ),
    OpSpec(
        "GatherElementsGrad",
        MICROSOFT_DOMAIN,
        shape=shape_from(1, 0),
        check=_gather_elements_gradient_fits,
        work=per_output(1),
        workspace=nothing,
    ),
    OpSpec("GatherNDGrad", MICROSOFT_DOMAIN, shape=shape_from(0, 2), check=_gather_nd_gradient_fits, workspace=nothing),
    OpSpec("ShrunkenGather", MICROSOFT_DOMAIN, shape=_gathered),
]
"""Gathers and scatters."""
