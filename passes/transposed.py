"""Weights that an exporter transposes in front of a product, in the way in which the product reads them.

A step would transpose each anew, keep the copy for the gradient of what it is multiplied with, as much RAM as the
weights themselves, and transpose the gradient of the copy back. torch's Linear has such weights.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.graph import Role
from poet_onnx.graph.extract.roles import input_roles
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.passes.matrix_products import product_of
from poet_onnx.passes.panel_comparison import ACROSS
from poet_onnx.passes.panel_layers import transposed_in
from poet_onnx.passes.views import is_matrix_transpose, only_maker, replace_node


class ReadTransposed(InPlacePass):
    """Let products read a transposed weight itself where its gradient is accumulated, and make that the way it lies.

    Requires static shapes and that the model imports ONNX Runtime's own domain.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Let them."""
        roles = input_roles(model.graph).values()
        trained = {each.parameter for each in roles if each.role is Role.GRADIENT_BUFFER}
        modified = False
        for node in [node for node in model.graph if trained and is_matrix_transpose(node)]:
            source = node.inputs[0]
            is_trained = source is not None and source.name in trained
            modified |= read_as_it_lies(node) if is_trained else _make_as_it_lies(node)
        return PassResult(model, modified=modified)


def read_as_it_lies(node: ir.Node) -> bool:
    """Let products read what a node transposes, a matrix of floats; the node goes where nobody else reads the copy.

    Returns:
        whether a product does.
    """
    weight, turned = node.inputs[0], node.outputs[0]
    if weight is None or weight.dtype is not ir.DataType.FLOAT:
        return False
    is_read = False
    for reader, index in tuple(turned.uses()):
        product = product_of(reader, index, is_transposed=True)
        if product is None or product.bias is not None or product.operand is turned:
            continue
        inputs, made = [product.operand, weight], reader.outputs
        if product.way == ACROSS:
            replace_node(reader, "FusedMatMul", inputs, [ir.AttrInt64("transB", 1)], made, domain=MICROSOFT_DOMAIN)
        else:
            replace_node(reader, "MatMul", inputs, (), made, domain="")
        is_read = True
    if is_read and not turned.uses() and not turned.is_graph_output() and node.graph is not None:
        node.graph.remove(node, safe=True)
    return is_read


def _make_as_it_lies(node: ir.Node) -> bool:
    """Let a product of two matrices, which a node alone reads and transposes, make what the node does."""
    product = only_maker(node.inputs[0])
    transposed = transposed_in(product) if product is not None else None
    if product is None or transposed is None:
        return False
    left, right = product.inputs
    attributes = [ir.AttrInt64("transA", 1 - transposed[1]), ir.AttrInt64("transB", 1 - transposed[0])]
    replace_node(node, "Gemm", [right, left], attributes, node.outputs, domain="")
    assert product.graph is not None
    product.graph.remove(product, safe=True)
    return True
