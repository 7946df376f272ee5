"""Normalization by the root mean square in one node.

Rules:
    R1. x^2 -> mean along the last axis, which is kept -> a small number added -> square root -> reciprocal, times x,
        becomes one node, with the scale by which the result is multiplied alone: one number for each place of a row.
        Where there is none, or others read what is not scaled yet, the scale is ones. The square may be a power or a
        product; the root and its reciprocal a power of -0.5, and x may be divided by the root.
    R2. RMSNormalization along the last axis becomes the same node, and SimplifiedLayerNormalization whose statistics
        nobody reads.
    R3. A scale that is made of frozen numbers alone, such as 1 + weight, is computed here.
    R4. All are float32; what is between is read by nobody else.
    R5. Where x is transposed heads and tokens, which nobody else reads, the result is transposed instead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators import KNOWN_DOMAINS
from poet_onnx.graph.operators.normalization import RMS_NORMALIZE
from poet_onnx.passes.fused.reading import (
    is_float,
    is_frozen,
    is_number,
    last_axis_of,
    made_by,
    number_in,
    only_reader,
    other_input,
)
from poet_onnx.passes.fused.transposed import before_transposition, transpose_behind
from poet_onnx.passes.node_builder import initializer, let_stand_for
from poet_onnx.passes.panel_layers import remove_unread
from poet_onnx.passes.views import sizes_of

_OWN = ("RMSNormalization", "SimplifiedLayerNormalization")
_PARTS = ("Pow", "Mul", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Div")
_USUAL_EPSILON = 1e-5


@dataclass(frozen=True)
class _Norm:
    """A normalization as it was found.

    Attributes:
        last: node that makes the result.
        x: what is normalized.
        scale: None for ones.
        epsilon: that is added to the mean square.
    """

    last: ir.Node
    x: ir.Value
    scale: ir.Value | None
    epsilon: float


class UseRmsNormalize(InPlacePass):
    """Write the nodes (R1 to R5). Requires a graph with static shapes, without casts that do nothing."""

    def __init__(self, trained: Collection[str] = ()) -> None:
        super().__init__()
        self._trained = frozenset(trained)

    def call(self, model: ir.Model) -> PassResult:
        """Write them."""
        graph = model.graph
        found = [norm for node in graph if (norm := _found(node)) is not None]
        for norm in found:
            self._write(graph, norm)
        return PassResult(model, modified=bool(found))

    def _write(self, graph: ir.Graph, norm: _Norm) -> None:
        x, last = norm.x, norm.last
        old = last.outputs[0]
        name = last.name or f"{old.name}/norm"
        scale = self._scale(graph, name, norm)
        shape = ir.Shape((*sizes_of(x)[:-1], 1))
        outputs = [ir.Value(), ir.Value(name=f"{name}/inverse", type=x.type, shape=shape)]
        epsilon = ir.AttrFloat32("epsilon", norm.epsilon)
        new = ir.Node(POET_DOMAIN, RMS_NORMALIZE, [x, scale], [epsilon], outputs=outputs, name=name)
        graph.insert_after(last, new)
        read = [value for value in last.inputs if value is not None]
        let_stand_for(outputs[0], old)
        graph.remove(last, safe=True)
        remove_unread(graph, read, _PARTS)
        source = before_transposition(x)
        if source is not None:
            outputs[1].shape = ir.Shape((*sizes_of(source)[:-1], 1))
            transpose_behind(new)

    def _scale(self, graph: ir.Graph, name: str, norm: _Norm) -> ir.Value:
        """Return the scale, which may be ones or computed here (R3)."""
        columns = sizes_of(norm.x)[-1]
        if norm.scale is None:
            return initializer(graph, f"{name}/ones", np.ones(columns, np.float32))
        maker = made_by(norm.scale, "Add")
        if maker is None or not all(is_frozen(value, self._trained) for value in maker.inputs):
            return norm.scale
        first, second = (value.const_value.numpy() for value in maker.inputs if value and value.const_value is not None)
        return initializer(graph, f"{name}/scale", (first + second).reshape(columns))


def _found(node: ir.Node) -> _Norm | None:
    """Return the normalization whose mean a node is, or that it is itself."""
    if node.domain not in KNOWN_DOMAINS:
        return None
    if node.op_type in _OWN:
        return _single(node)
    return _written_out(node) if node.op_type == "ReduceMean" else None


def _single(node: ir.Node) -> _Norm | None:
    x, scale = node.inputs[:2]
    rest = [value for value in node.outputs[1:] if value.uses() or value.is_graph_output()]
    if x is None or not is_float(x) or rest or not _is_scale(scale, x):
        return None
    last = len(sizes_of(x)) - 1
    is_last = node.attributes.get_int("axis", -1) in (-1, last)
    epsilon = node.attributes.get_float("epsilon", _USUAL_EPSILON)
    return _Norm(node, x, scale, epsilon) if is_last else None


def _written_out(mean: ir.Node) -> _Norm | None:
    """Return the normalization whose mean square a node computes (R1)."""
    x = _squared(mean.inputs[0])
    if x is None or not is_float(x) or not sizes_of(x) or not last_axis_of(mean, x):
        return None
    shifted = only_reader(mean.outputs[0], "Add")
    epsilon = None if shifted is None else number_in(other_input(shifted, mean.outputs[0]))
    product = None if shifted is None else _times_inverse(shifted.outputs[0], x)
    if product is None or epsilon is None or epsilon < 0:
        return None
    scaled = only_reader(product.outputs[0], "Mul")
    scale = None if scaled is None else other_input(scaled, product.outputs[0])
    if scaled is None or not _is_scale(scale, x):
        return _Norm(product, x, None, epsilon)
    return _Norm(scaled, x, scale, epsilon)


def _squared(value: ir.Value | None) -> ir.Value | None:
    """Return what a value that is read once is the square of."""
    maker = made_by(value, "Pow", "Mul")
    if value is None or maker is None or only_reader(value, "ReduceMean") is None:
        return None
    base, other = maker.inputs
    is_square = is_number(other, 2) if maker.op_type == "Pow" else base is other
    return base if is_square else None


def _times_inverse(square: ir.Value, x: ir.Value) -> ir.Node | None:
    """Return the node that multiplies x with the inverse root of a mean square."""
    reader = only_reader(square, "Sqrt", "Pow")
    if reader is None:
        return None
    value = reader.outputs[0]
    if reader.op_type == "Sqrt":
        inverse = only_reader(value, "Reciprocal", "Div")
        if inverse is None:
            return None
        if inverse.op_type == "Div":
            over, root = inverse.inputs
            if root is value and over is x:
                return inverse
            if root is not value or not is_number(over, 1):
                return None
        value = inverse.outputs[0]
    elif reader.inputs[0] is not square or not is_number(reader.inputs[1], -0.5):
        return None
    product = only_reader(value, "Mul")
    return product if product is not None and other_input(product, value) is x else None


def _is_scale(scale: ir.Value | None, x: ir.Value) -> bool:
    return scale is not None and is_float(scale) and sizes_of(scale) == sizes_of(x)[-1:]
