"""Nodes that change a layout alone, put behind one that works on rows: attention reads what is before them."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.node_builder import let_stand_for
from poet_onnx.passes.views import only_maker, sizes_of

HEADS_AND_TOKENS = (0, 2, 1, 3)
"""Order of a transposition of heads and tokens, there and back."""


def turns(node: ir.Node, order: tuple[int, ...]) -> bool:
    """Return whether a node transposes to an order."""
    is_transposition = node.op_type == "Transpose" and node.domain in ONNX_DOMAINS
    return is_transposition and tuple(node.attributes.get_ints("perm", ())) == order


def before_transposition(value: ir.Value | None) -> ir.Value | None:
    """Return [batch, tokens, heads, width] of which a value that is read once is [batch, heads, tokens, width]."""
    maker = only_maker(value)
    return maker.inputs[0] if maker is not None and turns(maker, HEADS_AND_TOKENS) else None


def transpose_behind(node: ir.Node) -> None:
    """Let a node read what a transposition reads that it alone reads, and transpose the first output instead."""
    before = move_behind(node, ("tokens_first", "transposed"))
    assert before.graph is not None
    before.graph.remove(before, safe=True)


def move_behind(node: ir.Node, names: tuple[str, str]) -> ir.Node:
    """Let a node read what the maker of its first input reads, and a node like that one make its first output.

    Args:
        node: that does the same to what is before its maker.
        names: behind that of the output: of what the node makes now, and of the new node.

    Returns:
        the maker, which others may read.
    """
    given, made, graph = node.inputs[0], node.outputs[0], node.graph
    assert given is not None
    assert graph is not None
    before = given.producer()
    assert before is not None
    source = before.inputs[0]
    assert source is not None
    moved = ir.Value()
    let_stand_for(moved, made)
    made.name, made.shape = f"{moved.name}/{names[0]}", ir.Shape(sizes_of(source))
    inputs, name = [made, *before.inputs[1:]], f"{moved.name}/{names[1]}"
    new = ir.Node(before.domain, before.op_type, inputs, list(before.attributes.values()), outputs=[moved], name=name)
    graph.insert_after(node, new)
    node.replace_input_with(0, source)
    return before
