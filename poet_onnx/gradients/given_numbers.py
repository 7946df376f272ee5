"""Numbers that a program was given rather than learned, as far as their place and they themselves tell.

Some exporters name weights and constants alike (jax2onnx `const_3`), and many name them in no known way. Such a number
is in doubt where it scales or shifts what the model is given, or what its last layer makes; where it is a limit; where
it is a grid of places that a layer reads; or where a matrix or a filter is one that no layer draws: symmetric, its own
mirror, or of zeros and ones.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.evidence import (
    CONSTANT,
    DOUBTFUL,
    MOVES,
    NAMED,
    PARAMETER,
    VARIABLE,
    first_computed,
    has_bias,
    is_by_stored,
    is_mirrored,
    is_stored,
    unmoved,
)
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes import Array

_OF_A_VARIABLE = (VARIABLE, "/embedding_lookup/")
"""What names of tf2onnx have in them of numbers that TensorFlow calls a variable."""

_LOOKED_AT = 64
"""Numbers in a row that are read before all of them: large models have many."""

_LIMITS = ("Min", "Max")
_SCALES = ("Add", "Sub", "Mul", "Div")


def given(value: ir.Value) -> str:
    """Return the verdict on a tensor that seems to be a parameter, in a model that does not call it one.

    Args:
        value: an initializer that has uses.
    """
    name, tensor = value.name or "", value.const_value
    if tensor is None or not tensor.size or NAMED.match(name) or any(part in name for part in _OF_A_VARIABLE):
        return PARAMETER
    uses = list(value.uses())
    array = np.asarray(tensor.numpy())
    if all(node.op_type == "Mul" and node.domain in ONNX_DOMAINS for node, _ in uses) and _is_of_zeros_and_ones(array):
        return CONSTANT  # a mask
    return DOUBTFUL if all(_is_given(node, index, array) for node, index in uses) else PARAMETER


def _is_given(node: ir.Node, index: int, array: Array) -> bool:
    """Return whether a node reads numbers that seem to be given."""
    if node.domain not in ONNX_DOMAINS:
        return False
    if node.op_type in _LIMITS:
        return True
    if node.op_type in _SCALES and sum(size > 1 for size in array.shape) <= 1:
        other = node.inputs[1 - index]
        return _is_of_input(other) or (has_bias(other) and _is_result(node.outputs[0]))
    if node.op_type in ("Conv", "ConvTranspose"):
        return index == 1 and is_mirrored(array)
    if node.op_type not in ("MatMul", "Gemm") or index > 1:
        return False
    other = node.inputs[1 - index]
    return _is_never_drawn(array) or (index == 0 and other is not None and is_stored(other) and _is_grid(array))


def _is_of_input(value: ir.Value | None) -> bool:
    """Return whether a tensor is what the model is given, moved, scaled or shifted at most."""
    while value is not None:
        value = unmoved(value)
        node = value.producer()
        if node is None:
            return value.is_graph_input()
        value = first_computed(node) if is_by_stored(node) else None
    return False


def _is_result(value: ir.Value) -> bool:
    """Return whether a tensor becomes what the model returns, moved, scaled or shifted at most."""
    if value.is_graph_output():
        return True
    nodes = {node for node, _ in value.uses() if node.domain in ONNX_DOMAINS}
    return bool(nodes) and all(
        (node.op_type in MOVES or is_by_stored(node)) and _is_result(node.outputs[0]) for node in nodes
    )


def _is_never_drawn(array: Array) -> bool:
    """Return whether a matrix is one that no layer begins with: symmetric or a selection; some try out filled ones."""
    if array.ndim != 2:
        return False
    corner, is_square = array[:_LOOKED_AT, :_LOOKED_AT], array.shape[0] == array.shape[1] > 2
    is_symmetric = is_square and np.array_equal(corner, corner.T) and np.array_equal(array, array.T)
    return (is_symmetric and array.min() < array.max()) or _is_of_zeros_and_ones(array)


def _is_grid(array: Array) -> bool:
    """Return whether rows lie evenly around their middle, as places do of which a network makes a bias."""
    if array.ndim < 2 or array.min() == array.max():
        return False
    rows = array.reshape(-1, array.shape[-1])
    sums = rows[:_LOOKED_AT] + rows[::-1][:_LOOKED_AT]
    return len(rows) > 2 and np.allclose(sums, sums[0], atol=1e-5 * np.abs(array).max())


def _is_of_zeros_and_ones(array: Array) -> bool:
    """Return whether an array has zeros, ones and nothing else."""
    if not np.isin(array.reshape(-1)[:_LOOKED_AT], (0, 1)).all():
        return False
    return bool(array.min() == 0 and array.max() == 1 and np.isin(array, (0, 1)).all())
