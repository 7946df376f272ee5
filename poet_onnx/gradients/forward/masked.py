"""Numbers that a mask sets, as `y[y > 1] = 1` of torch, whose places exporters list, are chosen by the mask itself.

How many places there are is not known before a step runs. Where each gets the same number, a Where has the same
numbers and gradients, and sizes that are known.
"""

from __future__ import annotations

import contextlib

import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import NoMatchError, first_input, is_op, maker, require
from poet_onnx.passes.node_builder import replace_nodes
from poet_onnx.passes.panel_layers import remove_unread

_LISTING = ("NonZero", "Transpose", "Reshape", "Cast", "ReduceSum", "Concat", "Expand", "Shape", "Slice", "Constant")
"""Operators that list the places of a mask, and count them."""


def masked_as_where(model: ir.Model) -> None:
    """Write a ScatterND of one number, to all places where a mask is true, with a Where; changes the model."""
    graph = model.graph
    for node in list(graph):
        if is_op(node, "ScatterND"):
            with contextlib.suppress(NoMatchError):
                _replace(graph, node)


def _replace(graph: ir.Graph, scatter: ir.Node) -> None:
    """Replace a node and what it alone reads.

    Raises:
        NoMatchError: the node does something else.
    """
    data, places, updates = scatter.inputs
    turned = maker(places, "Transpose")
    mask = first_input(maker(first_input(turned), "NonZero"))
    require(scatter.attributes.get_string("reduction", "none") == "none")
    require(tuple(turned.attributes.get_ints("perm", (1, 0))) == (1, 0))
    if data is None or data.shape is None:
        raise NoMatchError
    if is_op(mask.producer(), "Expand") and _is_shape_of(maker(mask, "Expand").inputs[1], data):
        mask = first_input(maker(mask, "Expand"))
    else:
        require(mask.shape == data.shape and data.shape.is_static())
    require(_is_boolean(mask))
    chosen = ir.Node("", "Where", [mask, _number(updates, len(data.shape)), data], name=scatter.name)
    replace_nodes(graph, [scatter], [chosen], [scatter.outputs[0]])
    remove_unread(graph, [value for value in (places, updates) if value is not None], _LISTING)


def _is_boolean(mask: ir.Value) -> bool:
    while mask.dtype is None and is_op(mask.producer(), "Unsqueeze", "Reshape", "Identity"):
        mask = first_input(maker(mask, "Unsqueeze", "Reshape", "Identity"))
    return mask.dtype == ir.DataType.BOOL


def _is_shape_of(value: ir.Value | None, data: ir.Value) -> bool:
    node = value.producer() if value is not None else None
    if node is None or not is_op(node, "Shape") or node.inputs[0] is not data:
        return False
    return node.attributes.get_int("start", 0) == 0 and "end" not in node.attributes


def _number(updates: ir.Value | None, rank: int) -> ir.Value:
    """Return the only number that is repeated in a tensor, of at most some dimensions."""
    value = updates
    while is_op(value.producer() if value is not None else None, "Expand", "Reshape"):
        value = first_input(maker(value, "Expand", "Reshape"))
    if value is None or value.shape is None or len(value.shape) > rank or any(size != 1 for size in value.shape):
        raise NoMatchError
    return value
