"""Helpers to recognize nodes that belong together."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes import Inferred


class NoMatchError(Exception):
    """Nodes are not what a pattern asks for."""


def require(condition: bool) -> None:
    """Give up a match unless something holds."""
    if not condition:
        raise NoMatchError


def require_same_shape(source: ir.Value, result: ir.Value, inferred: Inferred) -> None:
    """Give up a match whose result has another shape than its argument: a constant of more dimensions adds some."""
    require(inferred.types[source.name or ""].shape == inferred.types[result.name or ""].shape)


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Return whether a node's operator is one of these of ONNX."""
    return node is not None and node.domain in ONNX_DOMAINS and node.op_type in op_types


def maker(value: ir.Value | None, *op_types: str) -> ir.Node:
    """Return the node that makes a value, whose operator must be one of these."""
    node = value.producer() if value is not None else None
    if node is None or not is_op(node, *op_types):
        raise NoMatchError
    return node


def readers(value: ir.Value) -> set[ir.Node]:
    """Return the nodes that read a value."""
    return {use.node for use in value.uses()}


def only_reader(value: ir.Value, *op_types: str) -> ir.Node:
    """Return the one node that reads a value, which is no graph output; its operator must be one of these."""
    found = readers(value)
    require(len(found) == 1 and not value.is_graph_output())
    node = found.pop()
    require(is_op(node, *op_types))
    return node


def first_input(node: ir.Node) -> ir.Value:
    """Return the first input of a node, which must be there."""
    if not node.inputs or node.inputs[0] is None:
        raise NoMatchError
    return node.inputs[0]


def other_input(node: ir.Node, value: ir.Value) -> ir.Value:
    """Return the other operand of a node of two."""
    require(len(node.inputs) == 2 and value in node.inputs)
    found = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    if found is None:
        raise NoMatchError
    return found
