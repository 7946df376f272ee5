"""Values of small constants, carried through the integer arithmetic with which graphs compute shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from poet_onnx.graph.shapes.runtime_rules import broadcast_gradient_axes
from poet_onnx.graph.shapes.types import Array, Site, TensorType

LARGEST_VALUE = 1024
"""Elements of the largest constant that is followed; shapes and index lists are far smaller."""

Evaluator: TypeAlias = Callable[[Site, list[Array]], "Sequence[Any]"]


def _binary(function: Callable[[Array, Array], Any]) -> Evaluator:
    return lambda site, inputs: [function(inputs[0], inputs[1])]


def _unary(function: Callable[[Array], Any]) -> Evaluator:
    return lambda site, inputs: [function(inputs[0])]


def _divide(a: Array, b: Array) -> Any:
    """Divide as C++ does: integers towards zero."""
    if np.issubdtype(a.dtype, np.floating):
        return a / b
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) == (b < 0), quotient, -quotient).astype(a.dtype)


def _axes(site: Site, inputs: list[Array], index: int = 1) -> list[int] | None:
    if index < len(inputs):
        return [int(axis) for axis in inputs[index].ravel()]
    found = site.attributes.get("axes")
    return None if found is None else [int(axis) for axis in found]


def _squeeze(site: Site, inputs: list[Array]) -> list[Array]:
    axes = _axes(site, inputs)
    return [np.squeeze(inputs[0], None if axes is None else tuple(axes))]


def _unsqueeze(site: Site, inputs: list[Array]) -> list[Array]:
    return [np.expand_dims(inputs[0], tuple(_axes(site, inputs) or ()))]


def _reshape(site: Site, inputs: list[Array]) -> list[Array]:
    data, target = inputs
    keep = not site.integer("allowzero", 0)
    return [data.reshape([data.shape[i] if keep and n == 0 else int(n) for i, n in enumerate(target)])]


def _slice(site: Site, inputs: list[Array]) -> list[Array]:
    data = inputs[0]
    if len(inputs) > 1:
        starts, ends = inputs[1].tolist(), inputs[2].tolist()
        axes = inputs[3].tolist() if len(inputs) > 3 else list(range(len(starts)))
        steps = inputs[4].tolist() if len(inputs) > 4 else [1] * len(starts)
    else:
        starts, ends = list(site.attributes["starts"]), list(site.attributes["ends"])
        axes = list(site.attributes.get("axes", range(len(starts))))
        steps = [1] * len(starts)
    where = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        past_front = step < 0 and end < -data.shape[axis]
        where[axis] = slice(start, None if past_front else end, step)
    return [data[tuple(where)]]


def _reduce(function: Callable[..., Any]) -> Evaluator:
    def evaluate(site: Site, inputs: list[Array]) -> list[Any]:
        axes = _axes(site, inputs)
        if not axes and site.integer("noop_with_empty_axes", 0):
            return [inputs[0]]
        keep = bool(site.integer("keepdims", 1))
        return [function(inputs[0], axis=tuple(axes) if axes else None, keepdims=keep, dtype=inputs[0].dtype)]

    return evaluate


def _cast(site: Site, inputs: list[Array]) -> list[Array]:
    return [inputs[0].astype(ir.DataType(site.attributes["to"]).numpy())]


def _expand(site: Site, inputs: list[Array]) -> list[Array]:
    target = np.broadcast_shapes(inputs[0].shape, tuple(int(n) for n in inputs[1]))
    return [np.broadcast_to(inputs[0], target).copy()]


def _constant_of_shape(site: Site, inputs: list[Array]) -> list[Array]:
    fill = site.attributes.get("value")
    filling = np.zeros(1, np.float32) if fill is None else fill.numpy()
    return [np.full([int(n) for n in inputs[0]], filling.ravel()[0], filling.dtype)]


def _range(site: Site, inputs: list[Array]) -> list[Array]:
    start, limit, step = (value.item() for value in inputs)
    return [np.arange(start, limit, step, dtype=inputs[0].dtype)]


def _gather(site: Site, inputs: list[Array]) -> list[Array]:
    return [np.take(inputs[0], inputs[1].astype(np.int64), axis=site.axis(0, inputs[0].ndim))]


def _concat(site: Site, inputs: list[Array]) -> list[Array]:
    return [np.concatenate(inputs, axis=site.integer("axis", 0))]


def _gradient_axes(site: Site, inputs: list[Array]) -> list[Array]:
    axes = broadcast_gradient_axes([int(n) for n in inputs[0]], [int(n) for n in inputs[1]])
    return [np.array(side, np.int64) for side in axes]


EVALUATORS: dict[str, Evaluator] = {
    "Identity": _unary(lambda x: x),
    "Cast": _cast,
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _binary(_divide),
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Floor": _unary(np.floor),
    "Ceil": _unary(np.ceil),
    "Not": _unary(np.logical_not),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Equal": _binary(np.equal),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Max": lambda site, inputs: [np.maximum.reduce(np.broadcast_arrays(*inputs))],
    "Min": lambda site, inputs: [np.minimum.reduce(np.broadcast_arrays(*inputs))],
    "Where": lambda site, inputs: [np.where(*inputs)],
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Transpose": lambda site, inputs: [np.transpose(inputs[0], site.attributes.get("perm"))],
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "BroadcastGradientArgs": _gradient_axes,
}
"""Operators whose outputs are computed here where all inputs are small constants: exact ones only."""


def _shape(site: Site) -> Array:
    shape = np.array(site.type(0).shape, np.int64)
    end = site.attributes.get("end")
    return shape[site.integer("start", 0) : None if end is None else int(end)]


def _concat_training(site: Site) -> list[Array | None]:
    """Return what it joins, where that is known, and the lengths of the parts."""
    axis = site.axis(0, len(site.type(0).shape))
    parts = [part for part in site.values if part is not None]
    small = sum(part.size for part in parts) <= LARGEST_VALUE
    joined = np.concatenate(parts, axis=axis) if len(parts) == len(site.types) and small else None
    return [joined, np.array([part.shape[axis] for part in site.types if part is not None], np.int64)]


SHAPE_READERS: dict[str, Callable[[Site], Sequence[Array | None]]] = {
    "Shape": lambda site: [_shape(site)],
    "Size": lambda site: [np.array(site.type(0).elements, np.int64)],
    "ConcatTraining": _concat_training,
}
"""Operators with outputs that depend on their inputs' shapes alone; None for an output whose value is not known."""


def evaluate(site: Site, outputs: Sequence[TensorType | None]) -> Sequence[Array | None]:
    """Return the values of a node's outputs where they are small constants and exactly known, otherwise None.

    Args:
        site: the node.
        outputs: types of its outputs.
    """
    nothing: list[Array | None] = [None] * len(outputs)
    reader = SHAPE_READERS.get(site.op_type)
    if reader is not None:
        return reader(site)
    evaluator = EVALUATORS.get(site.op_type)
    inputs = [
        value for value, kind in zip(site.values, site.types, strict=True) if value is not None and kind is not None
    ]
    if evaluator is None or not inputs or len(inputs) != len(site.types):
        return nothing
    if any(output is not None and output.elements > LARGEST_VALUE for output in outputs):
        return nothing
    computed = [np.asarray(value) for value in evaluator(site, inputs)]
    for value, output in zip(computed, outputs, strict=False):
        if output is not None and (value.shape != output.shape or value.dtype != output.dtype.numpy()):
            return nothing
    return computed
