"""What exporters leave between the nodes of a layer, out of the way: copies, and numbers that are made of numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.names import STOPS_GRADIENT
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes import Array
from poet_onnx.passes.fused.reading import number_in
from poet_onnx.passes.node_builder import initializer, let_stand_for
from poet_onnx.passes.views import VIEWS, sizes_of

_ROUNDED: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Sqrt": np.sqrt,
}
"""What IEEE 754 rounds in one way: the number has the bits that the runtime would compute."""

_CONVERT = ("Cast", "CastLike")
_REAL = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


class DropCopies(InPlacePass):
    """Let readers of what changes nothing read what it reads: an Identity, a view of the same shape, a dropout of none.

    Requires static shapes. One stays that makes an output, gives a name to what no node makes, or stops gradients.
    """

    def __init__(self, op_types: Collection[str] = ("Identity", "Dropout", *VIEWS)) -> None:
        """Take operators whose nodes may go."""
        super().__init__()
        self._op_types = op_types

    def call(self, model: ir.Model) -> PassResult:
        """Drop them."""
        modified = False
        for node in list(model.graph):
            source = _copied(node) if node.op_type in self._op_types else None
            if source is None:
                continue
            node.outputs[0].replace_all_uses_with(source)
            model.graph.remove(node, safe=True)
            modified = True
        return PassResult(model, modified=modified)


class FoldNumbers(InPlacePass):
    """Make constants of single numbers that nodes compute of constants, such as the root of a scale.

    Only for the training graph: `FoldShapes`, which is for any, does no arithmetic with floats.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Fold them."""
        graph, modified = model.graph, False
        for node in list(graph):
            number = _computed(node)
            if number is None:
                continue
            let_stand_for(initializer(graph, f"{node.outputs[0].name}/folded", number), node.outputs[0])
            graph.remove(node, safe=True)
            modified = True
        return PassResult(model, modified=modified)


def _copied(node: ir.Node) -> ir.Value | None:
    """Return what a copy that may go is one of."""
    if node.domain not in ONNX_DOMAINS or STOPS_GRADIENT in node.metadata_props or not node.inputs:
        return None
    source, copy = node.inputs[0], node.outputs[0]
    if source is None or source.producer() is None or copy.is_graph_output():
        return None
    return source if _changes_nothing(node, source) else None


def _changes_nothing(node: ir.Node, source: ir.Value) -> bool:
    if node.op_type == "Dropout":
        is_read = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
        return len(node.inputs) > 1 and number_in(node.inputs[1]) == 0 and not is_read
    return node.op_type == "Identity" or (node.op_type in VIEWS and sizes_of(source) == sizes_of(node.outputs[0]))


def _computed(node: ir.Node) -> Array | None:
    """Return the single number that a node always makes; None where it makes another thing, or is not known."""
    made = node.outputs[0] if node.outputs else None
    if node.domain not in ONNX_DOMAINS or made is None or made.is_graph_output() or made.dtype not in _REAL:
        return None
    if node.op_type in _CONVERT:
        given = [_constant(node.inputs[0])]
        compute: Callable[..., Any] | None = np.asarray
    else:
        given = [_constant(value) for value in node.inputs]
        compute = _ROUNDED.get(node.op_type)
    numbers = [each for each in given if each is not None]
    if compute is None or len(numbers) != len(given) or made.shape is None:
        return None
    with np.errstate(all="ignore"):
        found = np.asarray(compute(*numbers), made.dtype.numpy())
    return found.reshape(sizes_of(made))


def _constant(value: ir.Value | None) -> Array | None:
    """Return a number of floats that nothing trains or gives."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy() if value.dtype in _REAL and value.const_value.size == 1 else None
