"""Values of small constants, carried through the integer arithmetic with which graphs compute shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poet_onnx.graph.operators import OpSpec
from poet_onnx.graph.operators.site import LARGEST_VALUE, Array, Site, TensorType


def evaluate(spec: OpSpec, site: Site, outputs: Sequence[TensorType | None]) -> Sequence[Array | None]:
    """Return the values of a node's outputs where they are small constants and exactly known, otherwise None.

    Args:
        spec: declaration of the node's operator.
        site: the node.
        outputs: types of its outputs.
    """
    nothing: list[Array | None] = [None] * len(outputs)
    if spec.value_of_shapes is not None:
        return spec.value_of_shapes(site)
    inputs = [
        value for value, kind in zip(site.values, site.types, strict=True) if value is not None and kind is not None
    ]
    if spec.value is None or not inputs or len(inputs) != len(site.types):
        return nothing
    if any(output is not None and output.elements > LARGEST_VALUE for output in outputs):
        return nothing
    computed = [np.asarray(value) for value in spec.value(site, inputs)]
    for value, output in zip(computed, outputs, strict=False):
        if output is not None and (value.shape != output.shape or value.dtype != output.dtype.numpy()):
            return nothing
    return computed
