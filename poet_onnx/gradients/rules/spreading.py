"""Gradients of padding, repetition, triangles, running sums and resizing."""

from __future__ import annotations

import numpy as np

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.passes.lowering.builder import UnsupportedError
from poet_onnx.passes.lowering.resizing import resize_gradient


@gradient_of("Pad", stops=(1, 3))
def pad(builder: GradientBuilder) -> None:
    """Cut the padding off; what was copied into it is added to where it was copied from."""
    if builder.wants(2):
        raise NoGradientError("the number that it pads with is trained")
    shape = builder.shape(builder.input(0))
    begins, ends = _padding(builder, len(shape))
    mode = builder.attributes.get("mode", "constant")
    if mode == "constant":
        builder.send(0, builder.op("Pad", builder.gradient(), builder.ints(*(-size for size in (*begins, *ends)))))
        return
    if min(*begins, *ends) < 0:
        raise NoGradientError("it cuts off and copies")
    value, current = builder.gradient(), list(builder.shape(builder.output()))
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if not begin and not end:
            continue
        sources = np.pad(np.arange(shape[axis]), (begin, end), mode=mode)
        current[axis] = shape[axis]
        value = builder.own("GatherGrad", builder.ints(*current), builder.constant(sources), value, axis=axis)
    builder.send(0, value)


def _padding(builder: GradientBuilder, rank: int) -> tuple[list[int], list[int]]:
    """Return what is added before and behind each axis."""
    given = builder.integers(1)
    axes = builder.integers(3) if builder.has(3) else tuple(range(rank))
    begins, ends = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        begins[axis], ends[axis] = given[place], given[place + len(axes)]
    return begins, ends


@gradient_of("Tile", stops=(1,))
def tile(builder: GradientBuilder) -> None:
    """Sum over the repetitions."""
    shape, repeats = builder.shape(builder.input(0)), builder.integers(1)
    pairs = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    axes = [2 * axis for axis, count in enumerate(repeats) if count != 1]
    value = builder.gradient()
    if axes:
        value = builder.reshape(builder.reduce_sum(builder.reshape(value, pairs), axes, keep=False), shape)
    builder.send(0, value)


@gradient_of("Trilu", stops=(1,))
def triangle(builder: GradientBuilder) -> None:
    """Take the same triangle of the gradient."""
    rest = [builder.input(1)] if builder.has(1) else []
    builder.send(0, builder.op("Trilu", builder.gradient(), *rest, upper=builder.attributes.get("upper", 1)))


@gradient_of("CumSum", stops=(1,))
def running_sum(builder: GradientBuilder) -> None:
    """Sum the gradient from the other end."""
    exclusive, reverse = (builder.attributes.get(name, 0) for name in ("exclusive", "reverse"))
    total = builder.op("CumSum", builder.gradient(), builder.input(1), exclusive=exclusive, reverse=1 - reverse)
    builder.send(0, total)


@gradient_of("Resize", stops=(1, 2, 3))
def resize(builder: GradientBuilder) -> None:
    """Multiply along each resized axis with the transposed matrix of the resize; whole repetitions are summed."""
    attributes = builder.attributes
    refused = ("antialias", "axes", "keep_aspect_ratio_policy")
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize" or any(attributes.get(name, 0) not in (0, "stretch") for name in refused):
        raise NoGradientError("it crops, filters, keeps an aspect ratio or names axes")
    before, after = builder.type(builder.input(0)), builder.type(builder.output())
    try:
        gradient = resize_gradient(
            builder, builder.gradient(), before.shape, after.shape, _scales(builder), dtype=after.dtype
        )
    except UnsupportedError as problem:
        raise NoGradientError(str(problem)) from problem
    builder.send(0, gradient)


def _scales(builder: GradientBuilder) -> list[float]:
    """Return the scale of each axis, from the scales where they are given, from the shapes otherwise."""
    if builder.has(2) and builder.shape(builder.input(2)) != (0,):
        tensor = builder.input(2).const_value
        known = tensor.numpy() if tensor is not None else builder.known(2)
        if known is None:
            raise NoGradientError("its scales are computed at run time, but must be constants")
        return [float(scale) for scale in known]
    shapes = zip(builder.shape(builder.output()), builder.shape(builder.input(0)), strict=True)
    return [after / before for after, before in shapes]
