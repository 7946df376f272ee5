"""Gradients of resizing: along each axis a resize is a product with a matrix, its gradient one with that transposed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from poet_onnx.errors import InputError
from poet_onnx.graph.shapes import Array
from poet_onnx.passes.lowering.builder import LoweringBuilder, Rules, UnsupportedError
from poet_onnx.passes.node_builder import NodeBuilder
from poet_onnx.runtime.computing import computed

_OPSET, _IR_VERSION = 19, 9
_MEANING = (
    *("coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value"),
    *("antialias", "mode", "nearest_mode"),
)
"""Attributes of Resize that say what an element is made of."""


def _resize(builder: LoweringBuilder) -> None:
    """ResizeGrad(dY, X, roi?, scales?, sizes?): of X only the shape counts."""
    if builder.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise UnsupportedError("it crops")
    small, large = builder.shape(1), builder.shape(0)
    known = builder.known(3) if builder.has(3) else None
    scales = [float(scale) for scale in known] if known is not None and known.size else None
    builder.give(0, resize_gradient(builder, builder.input(0), small, large, scales, dtype=builder.type(0).dtype))


def resize_gradient(
    builder: NodeBuilder,
    gradient: ir.Value,
    before: Sequence[int],
    after: Sequence[int],
    scales: Sequence[float] | None,
    *,
    dtype: ir.DataType,
) -> ir.Value:
    """Write the gradient of what a Resize reads: along each resized axis, a product with the transposed matrix.

    Whole repetitions are summed instead.

    Args:
        builder: for a node that has the attributes of the Resize.
        gradient: of what the Resize makes.
        before: shape of what it reads.
        after: shape of what it makes.
        scales: of each axis, as the node says them; None where it says the shape of what it makes.
        dtype: of all of them.

    Raises:
        UnsupportedError: a scale does not make so many elements.
    """
    value, current = gradient, list(after)
    for axis, (few, many) in enumerate(zip(before, after, strict=True)):
        scale = None if scales is None else scales[axis]
        if (many if scale is None else few * scale) == few:
            continue
        current[axis] = few
        matrix = resize_matrix(builder.attributes, few, many, scale).astype(dtype.numpy())
        value = _contract(builder, value, matrix, math.prod(current[:axis]), math.prod(current[axis + 1 :]))
    return _reshape(builder, value, *before)


def _contract(builder: NodeBuilder, value: ir.Value, matrix: Array, outer: int, inner: int) -> ir.Value:
    """Multiply a gradient, seen as [outer, after, inner], with a matrix of [before, after] along its middle axis."""
    before, after = matrix.shape
    if after % before == 0 and np.array_equal(matrix, np.repeat(np.eye(before), after // before, axis=1)):
        return builder.reduce_sum(_reshape(builder, value, outer, before, after // before, inner), (2,), keep=False)
    if inner == 1:
        return builder.op(
            "MatMul", _reshape(builder, value, outer, after), builder.constant(np.ascontiguousarray(matrix.T))
        )
    return builder.op("MatMul", builder.constant(matrix), _reshape(builder, value, outer, after, inner))


def _reshape(builder: NodeBuilder, value: ir.Value, *shape: int) -> ir.Value:
    return builder.op("Reshape", value, builder.ints(*shape))


def resize_matrix(attributes: Mapping[str, Any], before: int, after: int, scale: float | None) -> Array:
    """Return what each element before a resize gives to each one after it: what ONNX Runtime makes of unit vectors.

    Its coordinates are not those of onnx's reference: where corners are aligned and a scale does not divide evenly, and
    where single precision decides which of two elements is the nearest.

    Args:
        attributes: of the Resize; those that say nothing of its elements are not read.
        before: elements along the axis of what is resized.
        after: elements along it of the result.
        scale: as the node says it; None where it says `after`.

    Raises:
        UnsupportedError: the scale does not make so many elements, or ONNX Runtime cannot tell.
    """
    meaning = {name: attributes[name] for name in _MEANING if name in attributes}
    given = ["", "to"] if scale is None else ["to"]
    node = helper.make_node("Resize", ["x", "", *given], ["y"], **meaning)
    kind = onnx.TensorProto.INT64 if scale is None else onnx.TensorProto.FLOAT
    types = {"x": onnx.TensorProto.FLOAT, "to": kind, "y": onnx.TensorProto.FLOAT}
    x, to, y = (
        helper.make_tensor_value_info(name, each, [4] if name == "to" else None) for name, each in types.items()
    )
    graph = helper.make_graph([node], "resize", [x, to], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    target = np.array([1, 1, before, after]) if scale is None else np.array([1, 1, 1, scale], np.float32)
    feeds = {"x": np.eye(before, dtype=np.float32).reshape(1, 1, before, before), "to": target}
    try:
        resized = computed(model.SerializeToString(), feeds, failure="ONNX Runtime cannot resize")["y"]
    except InputError as error:
        raise UnsupportedError(str(error)) from error
    matrix: Array = resized[0, 0]
    if matrix.shape != (before, after):
        raise UnsupportedError(f"a scale of {scale} does not make {after} of {before}")
    return matrix


RULES: Rules = {"ResizeGrad": _resize}
