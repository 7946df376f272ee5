"""Gradients of resizing: along each axis a resize is a product with a matrix, its gradient one with that transposed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from poet_onnx.graph.shapes import Array
from poet_onnx.passes.lowering.builder import LoweringBuilder, Rules, UnsupportedError
from poet_onnx.passes.node_builder import NodeBuilder

_OPSET = 17
_MEANING = (
    *("coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value"),
    *("mode", "nearest_mode"),
)
"""Attributes of Resize that say what an element is made of."""

_ROUNDING = 1e-6
"""Scales are floats: what they make of a whole number may be this far from a whole number."""


def _resize(builder: LoweringBuilder) -> None:
    """ResizeGrad(dY, X, roi?, scales?, sizes?): of X only the shape counts."""
    if builder.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise UnsupportedError("it crops")
    small, large = builder.shape(1), builder.shape(0)
    scales = builder.known(3) if builder.has(3) else None
    if scales is None or not scales.size:
        scales = np.array(large) / np.array(small)
    shares = [float(scale) for scale in scales]
    builder.give(0, resize_gradient(builder, builder.input(0), small, large, shares, dtype=builder.type(0).dtype))


def resize_gradient(
    builder: NodeBuilder,
    gradient: ir.Value,
    before: Sequence[int],
    after: Sequence[int],
    scales: Sequence[float],
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
        scales: of each axis.
        dtype: of all of them.

    Raises:
        UnsupportedError: a scale does not make so many elements.
    """
    value, current = gradient, list(after)
    for axis, (few, many) in enumerate(zip(before, after, strict=True)):
        if scales[axis] == 1:
            continue
        current[axis] = few
        matrix = resize_matrix(builder.attributes, few, many, scales[axis]).astype(dtype.numpy())
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


def resize_matrix(attributes: Mapping[str, Any], before: int, after: int, scale: float) -> Array:
    """Return what each element before a resize gives to each one after it: the resize of the unit matrix's rows.

    Args:
        attributes: of the Resize; those that say nothing of its elements are not read.
        before: elements along the axis of what is resized.
        after: elements along it of the result.
        scale: as the node says it, a rounded `after / before`.

    Raises:
        UnsupportedError: the scale does not make so many elements.
    """
    from onnx.reference import ReferenceEvaluator  # slow to import, and few graphs resize

    meaning = {name: attributes[name] for name in _MEANING if name in attributes}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **meaning)
    names = (("x", onnx.TensorProto.FLOAT), ("scales", onnx.TensorProto.FLOAT), ("y", onnx.TensorProto.FLOAT))
    x, scales, y = (helper.make_tensor_value_info(name, kind, None) for name, kind in names)
    graph = helper.make_graph([node], "resize", [x, scales], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    if abs(before * scale - after) < _ROUNDING * after:
        scale = after / before
    feeds = {"x": np.eye(before, dtype=np.float32), "scales": np.array([1, scale])}
    (resized,) = ReferenceEvaluator(model).run(None, feeds)
    matrix: Array = np.asarray(resized)
    if matrix.shape != (before, after):
        raise UnsupportedError(f"a scale of {scale} does not make {after} of {before}")
    return matrix


RULES: Rules = {"ResizeGrad": _resize}
