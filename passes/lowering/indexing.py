"""Gradients of gathers and slices: gradients are added to, or put into, a tensor of zeros."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from poet_onnx.passes.lowering.site import Rules, Site


def _gather(site: Site) -> None:
    """GatherGrad(shape, indices, dY): rows of dY are added where they were taken from."""
    shape = site.output_shape()
    axis = int(site.attributes.get("axis", 0)) % len(shape)
    indices, d_y, dtype = site.shape(1), site.input(2), site.type(2).dtype
    rank = len(indices)
    places = site.reshape(site.input(1), math.prod(indices), 1)
    before, after = shape[:axis], shape[axis + 1 :]
    if axis:
        places_first = [*range(axis, axis + rank), *range(axis), *range(axis + rank, len(d_y.shape or ()))]
        d_y = site.op("Transpose", d_y, perm=places_first)
    d_y = site.reshape(d_y, math.prod(indices), *before, *after)
    zeros = site.zeros((shape[axis], *before, *after), dtype)
    total = site.op("ScatterND", zeros, places, d_y, reduction="add")
    if axis:
        total = site.op("Transpose", total, perm=[*range(1, axis + 1), 0, *range(axis + 1, len(shape))])
    site.give(0, total)


def _gather_elements(site: Site) -> None:
    """GatherElementsGrad(dY, shape, indices)."""
    zeros = site.zeros(site.output_shape(), site.type(0).dtype)
    axis = int(site.attributes.get("axis", 0))
    site.give(0, site.op("ScatterElements", zeros, site.input(2), site.input(0), axis=axis, reduction="add"))


def _gather_nd(site: Site) -> None:
    """GatherNDGrad(shape, indices, dY): with batch dimensions, an index gets its sample's own place before it."""
    shape, indices = site.output_shape(), site.input(1)
    batch = int(site.attributes.get("batch_dims", 0))
    if batch:
        places = site.shape(1)[:-1]
        own = np.stack(np.meshgrid(*(np.arange(size) for size in places[:batch]), indexing="ij"), axis=-1)
        own = own.reshape(*places[:batch], *(1,) * (len(places) - batch), batch).astype(np.int64)
        spread = site.op("Expand", site.constant(own), site.ints(*places, batch))
        indices = site.op("Concat", spread, site.op("Cast", indices, to=int(ir.DataType.INT64)), axis=-1)
    zeros = site.zeros(shape, site.type(2).dtype)
    site.give(0, site.op("ScatterND", zeros, indices, site.input(2), reduction="add"))


def _slice(site: Site) -> None:
    """SliceGrad(dY, shape, starts, ends, axes?, steps?): dY surrounded, and with steps interspersed, by zeros."""
    shape = site.output_shape()
    starts, ends = site.integers(2), site.integers(3)
    axes = site.integers(4) if site.has(4) else tuple(range(len(starts)))
    steps = site.integers(5) if site.has(5) else (1,) * len(starts)
    value, current = site.input(0), list(site.shape(0))
    dtype = site.type(0).dtype
    pads = [0] * (2 * len(shape))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis % len(shape)
        first, last, stride = slice(start, end, step).indices(shape[place])
        if stride == 1:
            pads[place], pads[len(shape) + place] = first, shape[place] - first - current[place]
            continue
        numbers = np.arange(first, last, stride, dtype=np.int64).reshape(-1, *(1,) * (len(shape) - place - 1))
        places = site.op("Expand", site.constant(numbers), site.ints(*current))
        current[place] = shape[place]
        value = site.op("ScatterElements", site.zeros(current, dtype), places, value, axis=place)
    if any(pads):
        value = site.op("Pad", value, site.ints(*pads))
    site.give(0, value)


def _shrunken_gather(site: Site) -> None:
    """ShrunkenGather is Gather with indices that occur once."""
    site.give(0, site.op("Gather", site.input(0), site.input(1), axis=int(site.attributes.get("axis", 0))))


def _pad_and_unflatten(site: Site) -> None:
    """PadAndUnflatten(X, indices, dims): rows of X at their places among rows of zeros; the rows' axis becomes two."""
    shape, dims = site.shape(0), site.integers(2)
    places = site.reshape(site.input(1), shape[0], 1)
    zeros = site.zeros((math.prod(dims), *shape[1:]), site.type(0).dtype)
    site.give(0, site.reshape(site.op("ScatterND", zeros, places, site.input(0)), *dims, *shape[1:]))


RULES: Rules = {
    "GatherGrad": _gather,
    "GatherElementsGrad": _gather_elements,
    "GatherNDGrad": _gather_nd,
    "SliceGrad": _slice,
    "ShrunkenGather": _shrunken_gather,
    "PadAndUnflatten": _pad_and_unflatten,
}
