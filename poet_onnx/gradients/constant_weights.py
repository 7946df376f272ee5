"""Weights that a file has as Constant nodes become initializers, as other files have them.

Rules:
    W1. What stands in a weight's place is one, such as the matrix of a product. Identities may be between.
    W2. So is what an Add adds to a product whose own weight was a Constant, if it has a number for each channel: a
        bias. Of any other Add nobody knows, for exporters write the numbers of formulas as Constants.
    W3. So is what the user names.
    W4. Torch's legacy exporter writes parameters as initializers. In a file where it did, W1 and W2 do not hold: its
        Constants are tensors of no state, such as tables of positions. A frozen TorchScript has nothing but Constants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from poet_onnx.gradients.evidence import WEIGHTS, WITH_WEIGHTS
from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.gradients.paths import REAL
from poet_onnx.graph.operators import ONNX_DOMAINS

_MATRICES = {operator: WEIGHTS[operator][:2] if operator == "MatMul" else (1,) for operator in WITH_WEIGHTS}
"""Inputs of products and convolutions at which the weight is, the bias aside."""


def lift_weights(graph: ir.Graph, named: Collection[str] = (), *, of_torch: bool = False) -> None:
    """Make initializers of Constant nodes that are weights (W1 to W4).

    Args:
        graph: without functions; changed in place.
        named: what the user names.
        of_torch: whether torch's legacy exporter wrote the model.
    """
    lifted = set[ir.Value]()
    nodes = list(graph)
    finds = not of_torch or not any(value.is_initializer() for node in nodes for value in inputs_at(node, WEIGHTS))
    for node in nodes:
        found = [node.outputs[0]] if is_op(node, "Constant") and node.outputs[0].name in named else []
        for value in (*found, *((*inputs_at(node, WEIGHTS), *_biases(node, lifted)) if finds else ())):
            made = _lifted(graph, _behind_identities(value))
            if made is not None:
                lifted.add(made)


def inputs_at(node: ir.Node, places: Mapping[str, tuple[int, ...]]) -> list[ir.Value]:
    """Return the inputs of a node that stand at certain places of its operator."""
    indices = places.get(node.op_type, ()) if node.domain in ONNX_DOMAINS else ()
    return [value for index in indices if index < len(node.inputs) and (value := node.inputs[index]) is not None]


def _biases(node: ir.Node, lifted: Collection[ir.Value]) -> list[ir.Value]:
    """Return what an Add may add as a bias (W2)."""
    if not is_op(node, "Add"):
        return []
    first, second = node.inputs
    pairs = ((first, second), (second, first))
    return [other for product, other in pairs if other is not None and _is_row(other) and _has_lifted(product, lifted)]


def _is_row(value: ir.Value) -> bool:
    """Return whether a constant has numbers along one dimension."""
    tensor = ir.convenience.get_const_tensor(_behind_identities(value))
    sizes = () if tensor is None else tensor.shape.numpy()
    return bool(sizes) and sum(size > 1 for size in sizes) <= 1


def _has_lifted(product: ir.Value | None, lifted: Collection[ir.Value]) -> bool:
    """Return whether a value is a product whose weight was a Constant."""
    maker = None if product is None else product.producer()
    return maker is not None and any(_behind_identities(each) in lifted for each in inputs_at(maker, _MATRICES))


def _behind_identities(value: ir.Value) -> ir.Value:
    while (maker := value.producer()) is not None and is_op(maker, "Identity") and maker.inputs[0] is not None:
        value = maker.inputs[0]
    return value


def _lifted(graph: ir.Graph, value: ir.Value) -> ir.Value | None:
    """Make an initializer of what a Constant node makes, and return it; None where it makes no real numbers."""
    maker = value.producer()
    tensor = ir.convenience.get_const_tensor(value) if maker is not None else None
    if maker is None or maker.op_type != "Constant" or tensor is None or tensor.dtype not in REAL:
        return None
    made = ir.Value(
        name=value.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    value.replace_all_uses_with(made, replace_graph_outputs=True)
    graph.remove(maker, safe=True)
    graph.register_initializer(made)
    return made
