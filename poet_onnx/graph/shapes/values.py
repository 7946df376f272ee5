"""Values of small constants, carried through the integer arithmetic with which graphs compute shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poet_onnx.graph.operators import OpSpec
from poet_onnx.graph.operators.shape_context import LARGEST_VALUE, Array, ShapeContext, TensorType


def evaluate(spec: OpSpec, context: ShapeContext, outputs: Sequence[TensorType | None]) -> Sequence[Array | None]:
    """Return the values of a node's outputs where they are small constants and exactly known, otherwise None.

    Args:
        spec: declaration of the node's operator.
        context: the node.
        outputs: types of its outputs.
    """
    nothing: list[Array | None] = [None] * len(outputs)
    if spec.value_of_shapes is not None:
        return spec.value_of_shapes(context)
    inputs = [
        value
        for value, kind in zip(context.values, context.types, strict=True)
        if value is not None and kind is not None
    ]
    if spec.value is None or not inputs or len(inputs) != len(context.types):
        return nothing
    if any(output is not None and output.elements > LARGEST_VALUE for output in outputs):
        return nothing
    computed = [np.asarray(value) for value in spec.value(context, inputs)]
    for value, output in zip(computed, outputs, strict=False):
        if output is not None and (value.shape != output.shape or value.dtype != output.dtype.numpy()):
            return nothing
    return computed
