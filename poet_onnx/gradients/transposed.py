"""Weights that an exporter transposes for a product: frozen ones are stored so, trained ones read as they are."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from poet_onnx.files.turned_tensor import TurnedTensor
from poet_onnx.gradients.paths import REAL
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.passes.node_builder import tensor_initializer
from poet_onnx.passes.transposed import read_as_it_lies
from poet_onnx.passes.views import is_matrix_transpose


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
    read_bytes = 0
    for node in [node for node in model.graph if is_matrix_transpose(node)]:
        weight = node.inputs[0]
        if weight is not None and weight.name in trained and read_as_it_lies(node):
            model.graph.opset_imports[MICROSOFT_DOMAIN] = 1
            read_bytes += 0 if weight.const_value is None else weight.const_value.nbytes
    return read_bytes
