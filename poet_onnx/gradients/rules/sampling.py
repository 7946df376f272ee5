"""The gradient of GridSample, torch's `grid_sample`, of which detection transformers and warped images are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of

_LINEAR, _NEAREST = ("linear", "bilinear"), ("nearest",)


@dataclass(frozen=True)
class _Side:
    """One of the two neighbors of a place along an axis, or the nearest.

    Attributes:
        index: of the pixel, within the image; int64 of [N, h, w].
        weight: of the pixel, which is 0 outside of the image.
        slope: the weight's derivative by the place, in the grid's numbers; None where the weight does not depend on it.
    """

    index: ir.Value
    weight: ir.Value
    slope: ir.Value | None


@gradient_of("GridSample")
def sample(builder: GradientBuilder) -> None:
    """Add each gradient to the pixels that it was read of, by their weights; a place moves along the weights' slopes.

    Pixels are rows of the image [N H W, C], as the rows of a table that words are read of.
    """
    images, places = builder.shape(builder.input(0)), builder.shape(builder.output())
    mode, padding = builder.attributes.get("mode", "linear"), builder.attributes.get("padding_mode", "zeros")
    if len(images) != 4 or mode not in (*_LINEAR, *_NEAREST) or padding == "reflection":
        raise NoGradientError("it samples volumes, cubic, or with reflection")
    count, channels, height, width = images
    table = [count * height * width, channels]
    rows = builder.reshape(builder.op("Transpose", builder.input(0), perm=[0, 2, 3, 1]), table)
    gradient = builder.op("Transpose", builder.gradient(), perm=[0, 2, 3, 1])
    first = builder.constant((np.arange(count) * (height * width)).reshape(-1, 1, 1))
    line = builder.constant(np.array(width))
    columns, lines = (list(_sides(builder, axis, size)) for axis, size in ((0, width), (1, height)))
    to_image: ir.Value | None = None
    to_grid: list[ir.Value | None] = [None, None]
    for below in lines:
        start = builder.op("Add", builder.op("Mul", below.index, line), first)
        for beside in columns:
            row = builder.op("Add", start, beside.index)
            if builder.wants(0):
                weight = builder.unsqueeze(builder.op("Mul", beside.weight, below.weight), [3])
                part = builder.own("GatherGrad", builder.ints(*table), row, builder.op("Mul", gradient, weight), axis=0)
                to_image = _sum(builder, to_image, part)
            if builder.wants(1) and beside.slope is not None and below.slope is not None:
                read = builder.op("Mul", builder.op("Gather", rows, row, axis=0), gradient)
                moved = builder.op("ReduceSum", read, builder.ints(3), keepdims=0)
                slopes = ((beside.slope, below.weight), (beside.weight, below.slope))
                for axis, pair in enumerate(slopes):
                    part = builder.op("Mul", moved, builder.op("Mul", *pair))
                    to_grid[axis] = _sum(builder, to_grid[axis], part)
    if to_image is not None:
        whole = builder.reshape(to_image, [count, height, width, channels])
        builder.send(0, builder.op("Transpose", whole, perm=[0, 3, 1, 2]))
    if builder.wants(1):
        both = [builder.unsqueeze(each, [3]) for each in to_grid if each is not None]
        grid = (count, *places[2:], 2)
        zeros = builder.expand(builder.number(0.0, builder.input(1)), grid)
        builder.send(1, builder.op("Concat", *both, axis=3) if both else zeros)


def _sum(builder: GradientBuilder, total: ir.Value | None, part: ir.Value) -> ir.Value:
    return part if total is None else builder.op("Add", total, part)


def _sides(builder: GradientBuilder, axis: int, size: int) -> Iterator[_Side]:
    """Yield what is read along an axis: 0 for columns, 1 for lines. Places are computed as torch does."""
    grid, attributes = builder.input(1), builder.attributes

    def number(value: float) -> ir.Value:
        return builder.number(value, grid)

    def within(value: ir.Value) -> ir.Value:
        return builder.op("Clip", value, number(0.0), number(size - 1))

    is_aligned = attributes.get("align_corners", 0)
    scale = (size - 1 if is_aligned else size) / 2
    given = builder.op("Gather", grid, builder.constant(np.array(axis)), axis=3)
    place = builder.op("Mul", builder.op("Add", given, number(1.0)), number(scale))
    if not is_aligned:
        place = builder.op("Sub", place, number(0.5))
    slope = number(scale)
    if attributes.get("padding_mode", "zeros") == "border":
        moves = builder.op(
            "And", *(builder.op(op, place, number(end)) for op, end in (("Greater", 0), ("Less", size - 1)))
        )
        place, slope = within(place), builder.op("Mul", builder.as_real(moves, grid), slope)

    def at(pixel: ir.Value, weight: ir.Value | None = None, rise: ir.Value | None = None) -> _Side:
        index = within(pixel)
        inside = builder.as_real(builder.op("Equal", index, pixel), grid)
        return _Side(
            builder.op("Cast", index, to=int(ir.DataType.INT64)),
            inside if weight is None else builder.op("Mul", weight, inside),
            None if rise is None else builder.op("Mul", rise, inside),
        )

    if attributes.get("mode", "linear") in _NEAREST:
        yield at(builder.op("Round", place))
        return
    before = builder.op("Floor", place)
    after = builder.op("Add", before, number(1.0))
    yield at(before, builder.op("Sub", after, place), builder.op("Neg", slope))
    yield at(after, builder.op("Sub", place, before), slope)
