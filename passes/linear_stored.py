"""Linear layers on panels of the matrices that a store has, in place of loads of whole ones.

Rules (stored_panels.py has more):
    L1. Loads go where all their readers are products with the matrix, or with it transposed: these become LinearStored
        nodes.
    L2. Where such a matrix has one product in the forward pass, one that is the gradient of its input, and one update
        by the product that is its gradient, the latter three become a LinearStoredBackward: the matrix's gradient is
        never whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.graph.operators.linear import BACKWARD, panel_rows
from poet_onnx.passes.matrix_products import TIMES, Product, product_of
from poet_onnx.passes.panel_comparison import ACROSS, ALONG, GRADIENT, Comparison
from poet_onnx.passes.panel_layers import loads_of, product_behind, remove_unread, takes_transposed
from poet_onnx.passes.views import VIEWS, replace_node, seen, sizes_of


@dataclass(frozen=True)
class _Backward:
    """The two products of a layer's backward pass, and the update.

    Attributes:
        forward: the product of the forward pass.
        product: the gradient of its operand.
        gradient: the node that makes the matrix's gradient.
        between: nodes from there to the update, first to last.
        update: in the store.
    """

    forward: Product
    product: Product
    gradient: ir.Node
    between: tuple[ir.Node, ...]
    update: ir.Node

    def comparison(self, matrix: tuple[int, int], panel: int) -> Comparison:
        """Return the comparison of panels of the matrix's gradient with the whole one."""
        samples = math.prod(sizes_of(self.forward.operand)[:-1])
        is_transposed = takes_transposed(self.update)
        return Comparison(GRADIENT, (samples,), matrix, panel, "Gemm", is_transposed, is_biased=False)


class LinearLayer:
    """All products with a matrix, which nodes load."""

    def __init__(self, graph: ir.Graph, handle: ir.Value, loads: list[ir.Node], products: tuple[Product, ...]) -> None:
        self._graph = graph
        self._handle = handle
        self._loads = loads
        self._products = products
        rows, columns = sizes_of(loads[0].outputs[0])
        self._matrix = (columns, rows) if takes_transposed(loads[0]) else (rows, columns)
        self._backward = self._found_backward()

    @classmethod
    def of(cls, graph: ir.Graph, handle: ir.Value) -> LinearLayer | None:
        """Return the products with the matrix of a handle; None where others read it, too (L1)."""
        loads = loads_of(handle)
        products = []
        for load in loads:
            value = load.outputs[0]
            if len(load.inputs) > 1 or len(sizes_of(value)) != 2 or value.is_graph_output():
                return None
            products += [product_of(*use, is_transposed=takes_transposed(load)) for use in value.uses()]
        known = tuple(each for each in products if each is not None)
        return cls(graph, handle, loads, known) if known and len(known) == len(products) else None

    def comparisons(self, *, backward: bool) -> Iterator[tuple[Comparison, ...]]:
        """Yield, for some sizes of panels, all comparisons that must hold; nothing where there is no such form."""
        if backward and self._backward is None:
            return
        usual = panel_rows(self._matrix[1])
        for panel in (times * usual for times in TIMES):
            made = [product.comparison(self._matrix, panel) for product in self._products]
            if backward and self._backward is not None:
                made.append(self._backward.comparison(self._matrix, panel))
            yield tuple(made)

    def write(self, panel: int, *, backward: bool) -> None:
        """Write the nodes (L1, L2)."""
        attributes = [ir.AttrInt64s("matrix", self._matrix), ir.AttrInt64("panel_rows", panel)]
        for product in self._products:
            if backward and self._backward is not None and product is self._backward.product:
                self._write_backward(self._backward, attributes)
            else:
                self._write_product(product, attributes)
        self._graph.remove(self._loads, safe=True)

    def _write_product(self, product: Product, attributes: list[ir.Attr]) -> None:
        biases = [] if product.bias is None else [product.bias]
        own = [ir.AttrInt64("transposed", int(product.way == ACROSS)), ir.AttrInt64("biased", len(biases))]
        inputs = [product.operand, self._handle, *biases]
        replace_node(product.node, "LinearStored", inputs, [*attributes, *own], [product.node.outputs[0]])

    def _write_backward(self, found: _Backward, attributes: list[ir.Attr]) -> None:
        rates = found.update.inputs[1]
        operator = found.update.op_type.replace("UpdateStored", BACKWARD)
        transposed = ir.AttrInt64("transposed", int(found.forward.way == ACROSS))
        d_y = found.product.node.inputs[0]  # which a node of the layer itself may have made anew
        inputs = [d_y, found.forward.operand, rates, self._handle]
        outputs = [found.product.node.outputs[0], found.update.outputs[0]]
        replace_node(found.product.node, operator, inputs, [*attributes, transposed], outputs)
        made_of = [value for value in found.gradient.inputs if value is not None]
        self._graph.remove([found.update, *reversed(found.between), found.gradient], safe=True)
        remove_unread(self._graph, made_of, VIEWS)

    def _found_backward(self) -> _Backward | None:
        """Return what L2 asks for, if it is there."""
        updates = [node for node, _ in self._handle.uses() if node not in self._loads]
        if len(updates) != 1 or len(self._products) != 2:
            return None
        (update,) = updates
        position = {node: index for index, node in enumerate(self._graph)}
        forward, product = sorted(self._products, key=lambda each: position[each.node])
        if not update.op_type.startswith("UpdateStored") or len(update.inputs) > 3 or product.bias is not None:
            return None
        gradient = product_behind(update.inputs[0], ("Identity",), transposes=(1, 0))
        if not gradient:
            return None
        maker, *between = gradient
        found = _Backward(forward, product, maker, tuple(between), update)
        ways = {each.way: each.operand for each in (forward, product)}
        rows, columns = maker.inputs[1::-1] if takes_transposed(update) else maker.inputs[:2]
        if len(ways) != 2 or not _is_view_of(rows, ways[ALONG]) or not _is_view_of(columns, ways[ACROSS]):
            return None
        return found


def _is_view_of(matrix: ir.Value | None, operand: ir.Value) -> bool:
    """Return whether a matrix has the samples of an operand, row by row."""
    return matrix is not None and sizes_of(matrix)[-1:] == sizes_of(operand)[-1:] and seen(matrix) is seen(operand)
