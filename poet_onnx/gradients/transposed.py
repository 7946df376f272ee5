"""Weights that an exporter transposes in front of a product, in the way in which the product reads them.

A step would transpose each anew, and keep the copy for the gradient of what it is multiplied with: as much RAM as the
weights themselves. torch's Linear has such weights.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from poet_onnx.files.turned_tensor import TurnedTensor
from poet_onnx.gradients.paths import REAL
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.passes.node_builder import tensor_initializer
from poet_onnx.passes.views import is_matrix_transpose, replace_node, sizes_of


def fold_transposed(graph: ir.Graph, trained: Collection[str]) -> int:
    """Store frozen weights as they are read: what transposes one, and is all that reads it, becomes an initializer.

    Args:
        graph: changed in place.
        trained: names of initializers that change.

    Returns:
        The bytes of these weights.
    """
    folded_bytes = 0
    for node in [node for node in graph if node.op_type == "Transpose" and node.domain in ONNX_DOMAINS]:
        source, output = node.inputs[0], node.outputs[0]
        known = source is not None and source.is_initializer() and source.name not in trained
        if source is None or not known or len(source.uses()) > 1 or output.is_graph_output():
            continue
        tensor = source.const_value
        if tensor is None or tensor.dtype not in REAL:
            continue
        perm = node.attributes.get_ints("perm", None)
        turned = TurnedTensor(tensor, perm, output.name or "")
        output.name = None
        output.replace_all_uses_with(tensor_initializer(graph, turned))
        graph.remove(node, safe=True)
        graph.initializers.pop(source.name or "")
        folded_bytes += tensor.nbytes
    return folded_bytes


def multiply_transposed(model: ir.Model, trained: Collection[str]) -> int:
    """Let products with a trained weight that was transposed for them read the weight itself, by a FusedMatMul.

    Args:
        model: a forward graph with static shapes, changed in place.
        trained: names of initializers that change.

    Returns:
        The bytes of these weights.
    """
    graph, read_bytes = model.graph, 0
    for node in [node for node in graph if is_matrix_transpose(node)]:
        weight, turned = node.inputs[0], node.outputs[0]
        if weight is None or weight.name not in trained or weight.dtype is not ir.DataType.FLOAT:
            continue
        products = [reader for reader, index in turned.uses() if _multiplies(reader, index)]
        for product in products:
            inputs, how = [product.inputs[0], weight], [ir.AttrInt64("transB", 1)]
            replace_node(product, "FusedMatMul", inputs, how, product.outputs, domain=MICROSOFT_DOMAIN)
        if products and not turned.uses() and not turned.is_graph_output():
            graph.remove(node, safe=True)
        if products:
            model.graph.opset_imports[MICROSOFT_DOMAIN] = 1
            read_bytes += 0 if weight.const_value is None else weight.const_value.nbytes
    return read_bytes


def _multiplies(node: ir.Node, index: int) -> bool:
    """Return whether a node multiplies rows with an input that is a matrix."""
    is_product = node.op_type == "MatMul" and node.domain in ONNX_DOMAINS and index == 1
    rows = node.inputs[0] if is_product else None
    return rows is not None and rows.shape is not None and len(sizes_of(rows)) > 1 and rows is not node.inputs[1]
