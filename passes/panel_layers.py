"""What linear layers and convolutions on panels have in common: loads, and the product that is a gradient."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.views import only_maker


def loads_of(handle: ir.Value) -> list[ir.Node]:
    """Return the nodes that load what a handle names."""
    return [node for node, _ in handle.uses() if node.op_type == "LoadStored" and node.domain == POET_DOMAIN]


def takes_transposed(node: ir.Node) -> bool:
    """Return whether a node of the store transposes what it loads, or takes a transposed gradient."""
    return bool(node.attributes.get_int("transposed", 0))


def is_product(node: ir.Node, transposes: tuple[int, int]) -> bool:
    """Return whether a node multiplies matrices, of which these are transposed, and adds nothing."""
    return transposed_in(node) == transposes


def transposed_in(node: ir.Node) -> tuple[int, int] | None:
    """Return which of two matrices, 1 for each, a node that multiplies them and adds nothing transposes; else None."""
    is_plain = len(node.inputs) == 2 and node.attributes.get_float("alpha", 1.0) == 1.0
    if node.op_type != "Gemm" or node.domain not in ONNX_DOMAINS or not is_plain:
        return None
    return node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0)


def product_behind(
    value: ir.Value | None, through: Collection[str], transposes: tuple[int, int]
) -> tuple[ir.Node, ...]:
    """Return what `made_behind` does where that begins with a product, as of `is_product`; else nothing."""
    found = made_behind(value, through)
    return found if found and is_product(found[0], transposes) else ()


def made_behind(value: ir.Value | None, through: Collection[str]) -> tuple[ir.Node, ...]:
    """Return the node that makes a value, and the views of it that lead to the value, first to last; none of an input.

    Args:
        value: that one node alone reads.
        through: operators of the views.
    """
    views: list[ir.Node] = []
    maker = only_maker(value)
    while maker is not None and maker.op_type in through and maker.domain in ONNX_DOMAINS:
        views.insert(0, maker)
        maker = only_maker(maker.inputs[0])
    return () if maker is None else (maker, *views)


def remove_unread(graph: ir.Graph, values: list[ir.Value], operators: Collection[str]) -> None:
    """Remove the nodes of these operators that made values for what is not there any more, and what they alone read."""
    while values:
        value = values.pop()
        maker = value.producer()
        if maker is None or maker.graph is not graph or maker.op_type not in operators:
            continue
        if any(made.uses() or made.is_graph_output() for made in maker.outputs):
            continue
        values += [read for read in maker.inputs if read is not None]
        graph.remove(maker, safe=True)
