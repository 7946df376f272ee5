"""What passes ask of values in a graph of static shapes: sizes, makers, and what a value is a view of."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators import ONNX_DOMAINS

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
"""Operators whose output has the input's elements in their order."""


def sizes_of(value: ir.Value) -> tuple[int, ...]:
    """Return a value's shape."""
    assert value.shape is not None
    return tuple(value.shape.numpy())


def only_maker(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes a value which only one other node reads."""
    is_one = value is not None and len(value.uses()) == 1 and not value.is_graph_output()
    return value.producer() if value is not None and is_one else None


def is_matrix_transpose(node: ir.Node) -> bool:
    """Return whether a node transposes a matrix."""
    if node.op_type != "Transpose" or node.domain not in ONNX_DOMAINS or node.inputs[0] is None:
        return False
    shape = node.inputs[0].shape
    return shape is not None and len(shape) == 2 and tuple(node.attributes.get_ints("perm", [1, 0])) == (1, 0)


def takes_rows(node: ir.Node, index: int) -> bool:
    """Return whether a node takes rows of an input."""
    is_gather = node.op_type == "Gather" and node.domain in ONNX_DOMAINS
    return is_gather and index == 0 and node.attributes.get_int("axis", 0) == 0


def seen(value: ir.Value) -> ir.Value:
    """Return what a value is a view of."""
    maker = value.producer()
    while maker is not None and maker.op_type in VIEWS and maker.domain in ONNX_DOMAINS:
        viewed = maker.inputs[0]
        assert viewed is not None  # these operators have one
        value, maker = viewed, viewed.producer()
    return value


def replace_node(
    old: ir.Node,
    operator: str,
    inputs: Sequence[ir.Value | None],
    attributes: Sequence[ir.Attr],
    replaced: Sequence[ir.Value],
    *,
    domain: str = POET_DOMAIN,
) -> None:
    """Put a node in the place of an old one, under its name; it makes the values that are replaced."""
    graph = old.graph
    assert graph is not None
    outputs = [ir.Value(type=value.type, shape=value.shape) for value in replaced]
    new = ir.Node(domain, operator, inputs, attributes, outputs=outputs, name=old.name)
    graph.insert_after(old, new)
    for value, output in zip(replaced, outputs, strict=True):
        name, value.name = value.name, None
        value.replace_all_uses_with(output, replace_graph_outputs=True)
        output.name = name
    graph.remove(old, safe=True)
