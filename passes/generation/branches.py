"""Tables that a model for generation chooses by the length of what it has seen: in training that length is known.

Decoders with two sets of rotary angles have an If for them, whose branches are constants
(`make_rotary_embedding_multi_cache` in builders/base.py of onnxruntime-genai).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import onnx_ir as ir

from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.node_builder import tensor_initializer

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
}
_SAME = ("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape")
"""Operators that keep a single number."""


def choose_branches(graph: ir.Graph, mask: str, tokens: int) -> None:
    """Replace each If that compares the length of a sequence with a number by the constants of its branch.

    Others stay. The graph is changed.

    Args:
        graph: of a model for generation.
        mask: name of the input of which a row is as long as a sequence.
        tokens: how many a sequence has.
    """
    for node in list(graph):
        if node.op_type != "If" or node.domain not in ONNX_DOMAINS:
            continue
        truth = _truth(node.inputs[0], mask, tokens)
        branch = None if truth is None else node.attributes["then_branch" if truth else "else_branch"].as_graph()
        tensors = [] if branch is None else [ir.convenience.get_const_tensor(value) for value in branch.outputs]
        if not tensors or len(tensors) != len(node.outputs) or any(tensor is None for tensor in tensors):
            continue
        for output, tensor in zip(node.outputs, tensors, strict=True):
            assert tensor is not None
            tensor.name, output.name = output.name, None
            output.replace_all_uses_with(tensor_initializer(graph, tensor), replace_graph_outputs=True)
        graph.remove(node, safe=True)


def _truth(value: ir.Value | None, mask: str, tokens: int) -> bool | None:
    """Return what a comparison comes to; None where it is not known."""
    node = value.producer() if value is not None else None
    compare = _COMPARISONS.get(node.op_type) if node is not None and node.domain in ONNX_DOMAINS else None
    if node is None or compare is None:
        return None
    first, second = (_number(each, mask, tokens) for each in node.inputs)
    return None if first is None or second is None else compare(first, second)


def _number(value: ir.Value | None, mask: str, tokens: int) -> float | None:
    """Return a constant of one number, or the length of a sequence."""
    value = _origin(value)
    constant = _constant(value)
    node = value.producer() if constant is None and value is not None else None
    if node is None or node.op_type != "Gather" or node.domain not in ONNX_DOMAINS:
        return constant
    shape = node.inputs[0].producer() if node.inputs[0] is not None else None
    if shape is None or shape.op_type != "Shape" or shape.inputs[0] is None or shape.inputs[0].name != mask:
        return None
    return float(tokens) if _constant(_origin(node.inputs[1])) in (1, -1) else None


def _origin(value: ir.Value | None) -> ir.Value | None:
    """Return what a single number is made of by nodes that keep it."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in _SAME and node.domain in ONNX_DOMAINS:
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    return value


def _constant(value: ir.Value | None) -> float | None:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return float(tensor.numpy().ravel()[0]) if tensor is not None and tensor.size == 1 else None
