"""Views, and operators that move elements without looking at them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from poet_onnx.graph.operators.fitting import OTHER_SIZE, expect, expect_one_dtype
from poet_onnx.graph.operators.rules import INT64, like, movement, nothing, per_output, shape_from, writing
from poet_onnx.graph.operators.shape_context import LARGEST_VALUE, Array, RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, OpSpec, family

_MOVES: dict[str, Any] = {"work": movement, "workspace": nothing}
_VIEW: dict[str, Any] = {"aliases": ((0, 0),), **_MOVES}
_WRITES: dict[str, Any] = {"work": writing, "workspace": nothing}


def _concat_shape(context: ShapeContext) -> list[TensorType]:
    first = context.type(0)
    axis = context.axis(0, len(first.shape))
    length = sum(part.shape[axis] for part in context.types if part is not None)
    whole = TensorType(first.dtype, (*first.shape[:axis], length, *first.shape[axis + 1 :]))
    return [whole, TensorType(INT64, (len(context.types),))]


def _parts_fit(context: ShapeContext) -> None:
    """ConcatTraining: parts that differ along its axis alone."""
    first = context.type(0).shape
    axis = context.axis(0, len(first))
    for index in range(1, len(context.types)):
        shape = context.type(index).shape
        length = shape[axis] if axis < len(shape) else 0
        expect(context, index, (*first[:axis], length, *first[axis + 1 :]))
    expect_one_dtype(context, *range(len(context.types)))


def _split_shape(context: ShapeContext) -> list[TensorType]:
    data = context.type(0)
    axis, count = context.axis(0, len(data.shape)), len(context.declared)
    lengths = context.integers(1) if context.has(1) else tuple([data.shape[axis] // count] * count)
    if len(lengths) != count or sum(lengths) != data.shape[axis]:
        raise RuleError(f"it cannot split {data.shape[axis]} into {lengths}")
    return [TensorType(data.dtype, (*data.shape[:axis], length, *data.shape[axis + 1 :])) for length in lengths]


def _pad_and_unflatten(context: ShapeContext) -> list[TensorType]:
    data = context.type(0)
    return [TensorType(data.dtype, (*context.integers(2), *data.shape[1:]))]


def _slice_gradient_fits(context: ShapeContext) -> None:
    """SliceGrad(dY, shape, starts, ends, axes, steps): dY is what the slice takes."""
    shape = list(context.integers(1))
    starts, ends = context.integers(2), context.integers(3)
    axes = context.integers(4) if context.has(4) else tuple(range(len(starts)))
    steps = context.integers(5) if context.has(5) else (1,) * len(starts)
    rank = len(shape)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise RuleError("its starts, ends, axes and steps do not belong together")
    if any(not -rank <= axis < rank for axis in axes) or len({axis % rank for axis in axes}) < len(axes):
        raise RuleError(f"its axes {list(axes)} are not axes of {rank} dimensions, each once")
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis]
        past_front = step < 0 and end < -size
        shape[axis] = len(range(size)[slice(start, None if past_front else end, step)])
    expect(context, 0, shape)


def _permutes(context: ShapeContext) -> None:
    """Transpose: an order of all dimensions."""
    rank = len(context.type(0).shape)
    order = context.attributes.get("perm")
    if order is not None and sorted(order) != list(range(rank)):
        raise RuleError(f"its perm {list(order)} is no order of the {rank} dimensions of its input")


def axes_of(context: ShapeContext, inputs: list[Array], index: int = 1) -> list[int] | None:
    """Return the axes that an input or, in older versions, an attribute names; None where neither is there."""
    if index < len(inputs):
        return [int(axis) for axis in inputs[index].ravel()]
    found = context.attributes.get("axes")
    return None if found is None else [int(axis) for axis in found]


def _identity(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    return [inputs[0]]


def _squeeze(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    axes = axes_of(context, inputs)
    return [np.squeeze(inputs[0], None if axes is None else tuple(axes))]


def _unsqueeze(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    return [np.expand_dims(inputs[0], tuple(axes_of(context, inputs) or ()))]


def _reshape(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    data, target = inputs
    keep = not context.integer("allowzero", 0)
    return [data.reshape([data.shape[i] if keep and n == 0 else int(n) for i, n in enumerate(target)])]


def _elements_fit(context: ShapeContext) -> None:
    """Reshape(data, target): a constant target has as many elements as the data."""
    if not context.has(1) or context.values[1] is None:
        return
    data, target = context.type(0), list(context.integers(1))
    keep = not context.integer("allowzero", 0)
    if keep and any(size == 0 for size in target[len(data.shape) :]):
        raise RuleError(f"its target {target} keeps a size that {list(data.shape)} does not have; {OTHER_SIZE}")
    sizes = [data.shape[place] if keep and size == 0 else size for place, size in enumerate(target)]
    count = math.prod(size for size in sizes if size != -1)
    fits = data.elements % max(count, 1) == 0 if -1 in sizes else data.elements == count
    if not fits:
        made = f"a multiple of {count}" if -1 in sizes else count
        raise RuleError(
            f"its input has {data.elements} elements, as {list(data.shape)}, and its target {target} has {made}; "
            f"{OTHER_SIZE}"
        )


def _repeats(context: ShapeContext) -> None:
    """Expand(data, target): what is repeated has size 1, and a constant target the same size elsewhere."""
    if not context.has(1) or context.values[1] is None:
        return
    shape, target = context.type(0).shape, context.integers(1)
    for size, wanted in zip(shape[::-1], target[::-1], strict=False):
        if 1 not in (size, wanted) and size != wanted:
            raise RuleError(
                f"its input has the size {size} in {list(shape)}, and its target {wanted} in {list(target)}; "
                f"{OTHER_SIZE}"
            )


def _slice(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    data = inputs[0]
    if len(inputs) > 1:
        starts, ends = inputs[1].tolist(), inputs[2].tolist()
        axes = inputs[3].tolist() if len(inputs) > 3 else list(range(len(starts)))
        steps = inputs[4].tolist() if len(inputs) > 4 else [1] * len(starts)
    else:
        starts, ends = list(context.attributes["starts"]), list(context.attributes["ends"])
        axes = list(context.attributes.get("axes", range(len(starts))))
        steps = [1] * len(starts)
    where = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        past_front = step < 0 and end < -data.shape[axis]
        where[axis] = slice(start, None if past_front else end, step)
    return [data[tuple(where)]]


def _transpose(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    return [np.transpose(inputs[0], context.attributes.get("perm"))]


def _expand(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    target = np.broadcast_shapes(inputs[0].shape, tuple(int(n) for n in inputs[1]))
    return [np.broadcast_to(inputs[0], target).copy()]


def _concat(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    return [np.concatenate(inputs, axis=context.integer("axis", 0))]


def _constant_of_shape(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    fill = context.attributes.get("value")
    filling = np.zeros(1, np.float32) if fill is None else fill.numpy()
    return [np.full([int(n) for n in inputs[0]], filling.ravel()[0], filling.dtype)]


def _range(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    start, limit, step = (value.item() for value in inputs)
    return [np.arange(start, limit, step, dtype=inputs[0].dtype)]


def _shape(context: ShapeContext) -> list[Array]:
    shape = np.array(context.type(0).shape, np.int64)
    end = context.attributes.get("end")
    return [shape[context.integer("start", 0) : None if end is None else int(end)]]


def _size(context: ShapeContext) -> list[Array]:
    return [np.array(context.type(0).elements, np.int64)]


def _joined(context: ShapeContext) -> list[Array | None]:
    """Return what ConcatTraining joins, where that is known, and the lengths of the parts."""
    axis = context.axis(0, len(context.type(0).shape))
    parts = [part for part in context.values if part is not None]
    small = sum(part.size for part in parts) <= LARGEST_VALUE
    joined = np.concatenate(parts, axis=axis) if len(parts) == len(context.types) and small else None
    return [joined, np.array([part.shape[axis] for part in context.types if part is not None], np.int64)]


SPECS = [
    OpSpec("Identity", value=_identity, **_VIEW),
    OpSpec("Reshape", value=_reshape, check=_elements_fit, **_VIEW),
    OpSpec("Squeeze", value=_squeeze, **_VIEW),
    OpSpec("Unsqueeze", value=_unsqueeze, **_VIEW),
    OpSpec("Flatten", **_VIEW),
    OpSpec("Slice", value=_slice, **_MOVES),
    OpSpec("Transpose", value=_transpose, check=_permutes, **_MOVES),
    OpSpec("Expand", value=_expand, check=_repeats, **_MOVES),
    OpSpec("Concat", value=_concat, **_MOVES),
    *family("Split Tile DepthToSpace SpaceToDepth", **_MOVES),
    OpSpec("Pad", MICROSOFT_DOMAIN, **_MOVES),
    OpSpec("Shape", value_of_shapes=_shape, **_WRITES),
    OpSpec("Size", value_of_shapes=_size, **_WRITES),
    OpSpec("ConstantOfShape", value=_constant_of_shape, **_WRITES),
    OpSpec("Range", MICROSOFT_DOMAIN, value=_range, **_WRITES),
    OpSpec("EyeLike", **_WRITES),
    OpSpec("Trilu", MICROSOFT_DOMAIN, inplace=((0, 0),), shape=like(0), workspace=nothing),
    *family("ReverseSequence Compress", workspace=nothing),
    OpSpec("ExpandDims", MICROSOFT_DOMAIN, workspace=nothing),
    OpSpec(
        "ConcatTraining", MICROSOFT_DOMAIN, shape=_concat_shape, check=_parts_fit, value_of_shapes=_joined, **_MOVES
    ),
    OpSpec("SplitTraining", MICROSOFT_DOMAIN, shape=_split_shape, **_MOVES),
    OpSpec(
        "SliceGrad",
        MICROSOFT_DOMAIN,
        shape=shape_from(1, 0),
        check=_slice_gradient_fits,
        work=per_output(1),
        workspace=nothing,
    ),
    OpSpec("PadAndUnflatten", MICROSOFT_DOMAIN, shape=_pad_and_unflatten, cpu_kernel=False),
    OpSpec("FlattenAndUnpad", MICROSOFT_DOMAIN, cpu_kernel=False),
]
"""Movement of elements."""
