"""Resizes of which ONNX Runtime infers another size than it makes say the size in place of the scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.graph.shapes import Array, Inferred, infer
from poet_onnx.graph.shapes.declared import describe
from poet_onnx.passes.node_builder import initializer


def say_sizes(model: ir.Model) -> None:
    """Give the sizes of what is made to each Resize whose scales make more, in single precision, than in double.

    ONNX Runtime infers the smaller size when it loads a model, and then plans no memory for the result.

    Raises:
        InputError: a scale has another meaning than the quotient of the sizes.
    """
    inferred: Inferred | None = None
    for node in model.graph:
        if not is_op(node, "Resize") or len(node.inputs) < 3 or node.inputs[2] is None:
            continue
        inferred = inferred or infer(model)
        x, y = (inferred.types[value.name or ""].shape for value in (node.inputs[0], node.outputs[0]) if value)
        scales = inferred.values.get(node.inputs[2].name or "")
        if scales is not None and scales.size:
            axes = node.attributes.get_ints("axes") or range(len(x))
            _say(model.graph, node, scales, [x[axis] for axis in axes], [y[axis] for axis in axes])


def _say(graph: ir.Graph, node: ir.Node, scales: Array, before: Sequence[int], after: Sequence[int]) -> None:
    """Give the sizes to one node where that is needed."""
    if all(int(float(scale) * few) == many for scale, few, many in zip(scales, before, after, strict=True)):
        return
    quotients = np.array(after, np.float32) / np.array(before, np.float32)
    if not np.array_equal(quotients, scales):
        raise InputError(
            f"The {describe(node)} makes {list(after)} of {list(before)} by scales whose products are rounded up to"
            " that: ONNX infers a smaller size; export it with sizes in place of scales."
        )
    sizes = initializer(graph, f"{node.name}/sizes", np.array(after, np.int64))
    node.resize_inputs(4)
    node.replace_input_with(2, None)
    node.replace_input_with(3, sizes)
