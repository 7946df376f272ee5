"""Gradients of gathers and slices: gradients are added to, or put into, a tensor of zeros."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.passes.lowering.builder import FLOAT, LoweringBuilder, Rules


def _gather(builder: LoweringBuilder) -> None:
    """GatherGrad(shape, indices, dY): rows of dY are added where they were taken from."""
    shape = builder.output_shape()
    axis = int(builder.attributes.get("axis", 0)) % len(shape)
    indices, d_y, dtype = builder.shape(1), builder.input(2), builder.type(2).dtype
    if builder.kernels and dtype == FLOAT:  # ScatterND loses numbers where several threads add to a place
        ours = builder.op("GatherGradient", builder.input(1), d_y, domain=POET_DOMAIN, shape=shape, axis=axis)
        builder.give(0, ours)
        return
    rank = len(indices)
    places = builder.reshape(builder.input(1), math.prod(indices), 1)
    before, after = shape[:axis], shape[axis + 1 :]
    if axis:
        places_first = [*range(axis, axis + rank), *range(axis), *range(axis + rank, len(d_y.shape or ()))]
        d_y = builder.op("Transpose", d_y, perm=places_first)
    d_y = builder.reshape(d_y, math.prod(indices), *before, *after)
    zeros = builder.zeros((shape[axis], *before, *after), dtype)
    total = builder.op("ScatterND", zeros, places, d_y, reduction="add")
    if axis:
        total = builder.op("Transpose", total, perm=[*range(1, axis + 1), 0, *range(axis + 1, len(shape))])
    builder.give(0, total)


def _gather_elements(builder: LoweringBuilder) -> None:
    """GatherElementsGrad(dY, shape, indices)."""
    zeros = builder.zeros(builder.output_shape(), builder.type(0).dtype)
    axis = int(builder.attributes.get("axis", 0))
    builder.give(
        0, builder.op("ScatterElements", zeros, builder.input(2), builder.input(0), axis=axis, reduction="add")
    )


def _gather_nd(builder: LoweringBuilder) -> None:
    """GatherNDGrad(shape, indices, dY): with batch dimensions, an index gets its sample's own place before it."""
    shape, indices = builder.output_shape(), builder.input(1)
    batch = int(builder.attributes.get("batch_dims", 0))
    *places, depth = builder.shape(1)
    if batch:
        own = np.stack(np.meshgrid(*(np.arange(size) for size in places[:batch]), indexing="ij"), axis=-1)
        own = own.reshape(*places[:batch], *(1,) * (len(places) - batch), batch).astype(np.int64)
        spread = builder.op("Expand", builder.constant(own), builder.ints(*places, batch))
        indices = builder.op("Concat", spread, builder.op("Cast", indices, to=int(ir.DataType.INT64)), axis=-1)
    taken = shape[: batch + depth]
    if builder.kernels and builder.type(2).dtype == FLOAT and taken:
        builder.give(0, _rows_in_order(builder, indices, math.prod(places), taken))
        return
    zeros = builder.zeros(shape, builder.type(2).dtype)
    builder.give(0, builder.op("ScatterND", zeros, indices, builder.input(2), reduction="add"))


def _rows_in_order(builder: LoweringBuilder, indices: ir.Value, count: int, taken: tuple[int, ...]) -> ir.Value:
    """Return the sums of dY's rows at their places in the sizes `taken`, which coordinates count through as one."""
    shape = builder.output_shape()
    rows, width = math.prod(taken), math.prod(shape[len(taken) :])
    steps = [math.prod(taken[axis + 1 :]) for axis in range(len(taken))]
    coordinates = builder.reshape(builder.op("Cast", indices, to=int(ir.DataType.INT64)), count, len(taken))
    counted = builder.op("Mod", coordinates, builder.ints(*taken))  # none is negative
    numbers = builder.sum(builder.op("Mul", counted, builder.ints(*steps)), 1, keep=False)
    d_y = builder.reshape(builder.input(2), count, width)
    total = builder.op("GatherGradient", numbers, d_y, domain=POET_DOMAIN, shape=(rows, width), axis=0)
    return builder.reshape(total, *shape)


def _slice(builder: LoweringBuilder) -> None:
    """SliceGrad(dY, shape, starts, ends, axes?, steps?): dY surrounded, and with steps interspersed, by zeros."""
    shape = builder.output_shape()
    starts, ends = builder.integers(2), builder.integers(3)
    axes = builder.integers(4) if builder.has(4) else tuple(range(len(starts)))
    steps = builder.integers(5) if builder.has(5) else (1,) * len(starts)
    value, current = builder.input(0), list(builder.shape(0))
    dtype = builder.type(0).dtype
    pads = [0] * (2 * len(shape))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis % len(shape)
        first, last, stride = slice(start, end, step).indices(shape[place])
        if stride == 1:
            pads[place], pads[len(shape) + place] = first, shape[place] - first - current[place]
            continue
        numbers = np.arange(first, last, stride, dtype=np.int64).reshape(-1, *(1,) * (len(shape) - place - 1))
        places = builder.op("Expand", builder.constant(numbers), builder.ints(*current))
        current[place] = shape[place]
        value = builder.op("ScatterElements", builder.zeros(current, dtype), places, value, axis=place)
    if any(pads):
        value = builder.op("Pad", value, builder.ints(*pads))
    builder.give(0, value)


def _shrunken_gather(builder: LoweringBuilder) -> None:
    """ShrunkenGather is Gather with indices that occur once."""
    builder.give(
        0, builder.op("Gather", builder.input(0), builder.input(1), axis=int(builder.attributes.get("axis", 0)))
    )


def _pad_and_unflatten(builder: LoweringBuilder) -> None:
    """PadAndUnflatten(X, indices, dims): rows of X at their places among rows of zeros; the rows' axis becomes two."""
    shape, dims = builder.shape(0), builder.integers(2)
    places = builder.reshape(builder.input(1), shape[0], 1)
    zeros = builder.zeros((math.prod(dims), *shape[1:]), builder.type(0).dtype)
    builder.give(0, builder.reshape(builder.op("ScatterND", zeros, places, builder.input(0)), *dims, *shape[1:]))


RULES: Rules = {
    "GatherGrad": _gather,
    "GatherElementsGrad": _gather_elements,
    "GatherNDGrad": _gather_nd,
    "SliceGrad": _slice,
    "ShrunkenGather": _shrunken_gather,
    "PadAndUnflatten": _pad_and_unflatten,
}
