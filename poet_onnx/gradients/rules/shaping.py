"""Gradients of operators that move numbers: views, transpositions, joins, cuts, look-ups, padding and repetition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of, without_gradient
from poet_onnx.graph.operators import MICROSOFT_DOMAIN

without_gradient("Shape", "Size", "Constant", "ConstantOfShape", "ArgMax", "ArgMin", "NonZero", "EyeLike")
without_gradient("Range", unknown=(0, 2))
without_gradient("OneHot", unknown=(2,))


@gradient_of("Reshape", "Squeeze", "Unsqueeze", stops=(1,))
@gradient_of("Flatten")
def view(builder: GradientBuilder) -> None:
    """View the gradient in the input's shape."""
    builder.send(0, builder.reshape(builder.gradient(), builder.shape(builder.input(0))))


@gradient_of("Transpose")
def transpose(builder: GradientBuilder) -> None:
    """Put the axes back."""
    rank = len(builder.shape(builder.input(0)))
    order = builder.attributes.get("perm") or range(rank)[::-1]
    back = sorted(range(rank), key=lambda axis: order[axis])
    builder.send(0, builder.op("Transpose", builder.gradient(), perm=back))


@gradient_of("ReverseSequence", stops=(1,))
def reverse(builder: GradientBuilder) -> None:
    """Turn each sequence once more, which is where its elements came from."""
    builder.send(0, builder.op("ReverseSequence", builder.gradient(), builder.input(1), **builder.attributes))


@gradient_of("Expand", stops=(1,))
def expand(builder: GradientBuilder) -> None:
    """Sum over the axes along which the input was repeated."""
    builder.send(0, builder.reduced(builder.gradient(), 0))


@gradient_of("Gather", stops=(1,))
def gather(builder: GradientBuilder) -> None:
    """Add each row of the gradient to the row that it came from."""
    shape = builder.ints(*builder.shape(builder.input(0)))
    axis = builder.attributes.get("axis", 0)
    builder.send(0, builder.own("GatherGrad", shape, builder.input(1), builder.gradient(), axis=axis))


@gradient_of("Slice", stops=(1, 2, 3, 4))
def cut(builder: GradientBuilder) -> None:
    """Put the gradient where it was cut from, among zeros.

    SliceGrad of onnxruntime-training 1.19 takes no steps back: what was cut so is turned before, and lies in steps on.
    """
    shape = builder.shape(builder.input(0))
    places: Sequence[ir.Value | None] = builder.node.inputs[1:]
    gradient = builder.gradient()
    if builder.has(4) and min(builder.integers(4)) < 0:
        places, back = _forward(builder, shape)
        whole = np.iinfo(np.int64)
        turned = (builder.ints(*(number for _ in back)) for number in (-1, whole.min))
        gradient = builder.op("Slice", gradient, *turned, builder.ints(*back), builder.ints(*(-1 for _ in back)))
    builder.send(0, builder.own("SliceGrad", gradient, builder.ints(*shape), *places))


def _forward(builder: GradientBuilder, shape: Sequence[int]) -> tuple[list[ir.Value], list[int]]:
    """Return starts, ends, axes and steps of the same elements in their order in the input, and the axes turned."""
    starts, ends, steps = (builder.integers(index) for index in (1, 2, 4))
    axes = builder.integers(3) if builder.has(3) else tuple(range(len(starts)))
    cuts: list[tuple[int, ...]] = []
    back: list[int] = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        taken = range(*slice(start, end, step).indices(shape[axis]))
        if step < 0:
            taken = taken[::-1]
            back.append(axis)
        cuts.append((taken.start, max(taken.start, taken.stop), axis, taken.step))
    return [builder.ints(*numbers) for numbers in zip(*cuts, strict=True)], back


@gradient_of("ConcatTraining", domain=MICROSOFT_DOMAIN)
def concat(builder: GradientBuilder) -> None:
    """Cut the gradient into the operands' parts, whose lengths the forward node saved."""
    parts = builder.ops(
        "SplitTraining",
        [builder.gradient(), builder.output(1)],
        len(builder.node.inputs),
        domain=MICROSOFT_DOMAIN,
        axis=builder.attributes["axis"],
    )
    for index, part in enumerate(parts):
        builder.send(index, part)


@gradient_of("Split", stops=(1,))
def split(builder: GradientBuilder) -> None:
    """Join the parts' gradients; a part that does not lead to the loss has zeros."""
    parts = []
    for index, output in enumerate(builder.node.outputs):
        if builder.has_gradient(index):
            parts.append(builder.gradient(index))
        else:
            parts.append(builder.expand(builder.number(0, output), builder.shape(output)))
    builder.send(0, builder.op("Concat", *parts, axis=builder.attributes.get("axis", 0)))


@gradient_of("Pad", stops=(1, 3), unknown=(2,))
def pad(builder: GradientBuilder) -> None:
    """Cut the padding off; what was copied into it is added to where it was copied from."""
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
