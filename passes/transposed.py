"""Weights that an exporter transposes in front of a product, in the way in which the product reads them.

A step would transpose each anew, keep the copy for the gradient of what it is multiplied with, as much RAM as the
weights themselves, and transpose the gradient of the copy back. torch's Linear has such weights.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.graph import Role
from poet_onnx.graph.extract.roles import input_roles
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.passes.views import is_matrix_transpose, only_maker, replace_node, sizes_of


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
    products = [reader for reader, index in turned.uses() if index == 1 and reader.inputs[0] is not turned]
    forward, back = ([each for each in products if fits(each)] for fits in (_multiplies_rows, _multiplies_turned))
    for product in forward:
        transposing = [ir.AttrInt64("transB", 1)]
        inputs = [product.inputs[0], weight]
        replace_node(product, "FusedMatMul", inputs, transposing, product.outputs, domain=MICROSOFT_DOMAIN)
    for product in back:
        replace_node(product, "MatMul", [product.inputs[0], weight], (), product.outputs, domain="")
    if (forward or back) and not turned.uses() and not turned.is_graph_output() and node.graph is not None:
        node.graph.remove(node, safe=True)
    return bool(forward or back)


def _multiplies_rows(node: ir.Node) -> bool:
    """Return whether a node multiplies rows with a matrix."""
    rows = node.inputs[0] if node.op_type == "MatMul" and node.domain in ONNX_DOMAINS else None
    return rows is not None and rows.shape is not None and len(sizes_of(rows)) > 1


def _multiplies_turned(node: ir.Node) -> bool:
    """Return whether a node multiplies with the transposed of a matrix, and does nothing else."""
    if node.op_type != "FusedMatMul" or node.domain != MICROSOFT_DOMAIN:
        return False
    others = (node.attributes.get_int(name, 0) for name in ("transA", "transBatchA", "transBatchB"))
    return node.attributes.get_int("transB", 0) == 1 and not any(others) and _factor(node) == 1


def _make_as_it_lies(node: ir.Node) -> bool:
    """Let a product of two matrices, which a node alone reads and transposes, make what the node does."""
    product = only_maker(node.inputs[0])
    if product is None or product.op_type != "Gemm" or product.domain not in ONNX_DOMAINS:
        return False
    if any(value is not None for value in product.inputs[2:]) or _factor(product) != 1:
        return False
    left, right = product.inputs[:2]
    turned = {"transA": product.attributes.get_int("transB", 0), "transB": product.attributes.get_int("transA", 0)}
    attributes = [ir.AttrInt64(name, 1 - value) for name, value in turned.items()]
    replace_node(node, "Gemm", [right, left], attributes, node.outputs, domain="")
    assert product.graph is not None
    product.graph.remove(product, safe=True)
    return True


def _factor(product: ir.Node) -> float:
    return product.attributes.get_float("alpha", 1.0)
