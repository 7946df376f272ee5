"""Products with a matrix that panels can make: what a node computes, and what a comparison of it needs."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.passes.panel_comparison import ACROSS, ALONG, OPERATORS, Comparison
from poet_onnx.passes.views import sizes_of

TIMES = (1, 2, 4)
"""As many rows as a panel usually has: several threads share a product, of which each then has enough."""

_MATRIX = 1
"""Input of a product."""


@dataclass(frozen=True)
class Product:
    """A product with a matrix, as it is or transposed.

    Attributes:
        node: that computes it.
        operand: what is multiplied, a row for each sample.
        way: ACROSS with the transposed matrix, ALONG with the matrix.
        is_transposed: the node reads the matrix transposed already.
        bias: that is added; None for none.
    """

    node: ir.Node
    operand: ir.Value
    way: int
    is_transposed: bool
    bias: ir.Value | None

    def comparison(self, matrix: tuple[int, int], panel: int) -> Comparison:
        """Return the comparison of panels with it."""
        samples, is_biased = sizes_of(self.operand)[:-1], self.bias is not None
        return Comparison(self.way, samples, matrix, panel, self.node.op_type, self.is_transposed, is_biased)


def product_of(node: ir.Node, index: int, *, is_transposed: bool) -> Product | None:
    """Return what a node that reads a matrix computes; None where that is no product that panels can make.

    Args:
        node: that reads it.
        index: of the input that is the matrix.
        is_transposed: whether what it reads is the transposed matrix.
    """
    home = (MICROSOFT_DOMAIN,) if node.op_type == "FusedMatMul" else ONNX_DOMAINS
    if node.op_type not in OPERATORS or node.domain not in home or index != _MATRIX:
        return None
    attributes = node.attributes
    others = (attributes.get_int(name, 0) for name in ("transA", "transBatchA", "transBatchB"))
    added = node.inputs[2] if len(node.inputs) > 2 else None
    operand, made = node.inputs[0], node.outputs[0]
    if any(others) or attributes.get_float("alpha", 1.0) != 1.0 or operand is None or made.shape is None:
        return None
    sizes = sizes_of(operand)
    if len(sizes) < 2 or min(sizes) < 1 or operand.producer() is node:
        return None
    if added is not None and (attributes.get_float("beta", 1.0) != 1.0 or sizes_of(added) != sizes_of(made)[-1:]):
        return None
    transposes = bool(attributes.get_int("transB", 0))
    return Product(node, operand, ACROSS if transposes != is_transposed else ALONG, is_transposed, added)
