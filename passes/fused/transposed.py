"""Transpositions of heads and tokens, put behind a node that works on rows: attention reads what is before them."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.graph.operators import ONNX_DOMAINS
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


def transpose_behind(graph: ir.Graph, node: ir.Node, source: ir.Value) -> None:
    """Let a node read what a transposition reads that is its input, and transpose the first output instead."""
    given, made = node.inputs[0], node.outputs[0]
    assert given is not None
    before = given.producer()
    assert before is not None
    name, shape = made.name, made.shape
    turned = ir.Value(type=made.type, shape=shape)
    made.replace_all_uses_with(turned, replace_graph_outputs=True)
    made.name, turned.name = f"{name}/tokens_first", name
    made.shape = ir.Shape(sizes_of(source))
    order = ir.AttrInt64s("perm", HEADS_AND_TOKENS)
    graph.insert_after(node, ir.Node("", "Transpose", [made], [order], outputs=[turned], name=f"{name}/transposed"))
    node.replace_input_with(0, source)
    graph.remove(before, safe=True)
