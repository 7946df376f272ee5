"""The logarithm of a sigmoid, and of what it lacks to 1, in a form that keeps its numbers.

torch's exporters write `logsigmoid`, and so `binary_cross_entropy_with_logits`, as Log(Sigmoid(x)). Where x is above
some 10 that rounds to 0. Where it is below -18, ONNX Runtime's sigmoid stands still, and the gradient vanishes: what is
very wrong would no longer be learned. -Softplus(-x) is the same number and has neither fault.

Log(1 - Sigmoid(x)) is worse: from 17 on it is the logarithm of 0, and gradients are no numbers. -Softplus(x) is the
same. `binary_cross_entropy` of a sigmoid has both, with shapes changed in between or not.
"""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.fused.reading import number_in
from poet_onnx.passes.node_builder import replace_nodes

_VIEWS = ("Squeeze", "Unsqueeze", "Reshape", "Flatten", "Identity", "Transpose")


def keep_log_sigmoids(model: ir.Model) -> None:
    """Write each Log(Sigmoid(x)) of a forward model as -Softplus(-x), and Log(1 - Sigmoid(x)) as -Softplus(x).

    A sigmoid that others need stays.
    """
    graph = model.graph
    for log in [node for node in graph if node.op_type == "Log" and node.domain in ONNX_DOMAINS]:
        found = _sigmoid_of(log.inputs[0])
        if found is None:
            continue
        views, sigmoid, is_complement = found
        value, made = sigmoid.inputs[0], list[ir.Node]()
        for view in views:
            made.append(ir.Node("", view.op_type, [value, *view.inputs[1:]], view.attributes.values(), name=view.name))
            value = made[-1].outputs[0]
        if not is_complement:
            made.append(ir.Node("", "Neg", [value]))
            value = made[-1].outputs[0]
        made.append(ir.Node("", "Softplus", [value]))
        end = ir.Node("", "Neg", made[-1].outputs, name=log.name)
        for place, node in enumerate(made):
            node.name = node.outputs[0].name = f"{log.name}/{node.op_type.lower()}/{place}"
        replace_nodes(graph, [log], [*made, end], log.outputs)
    _drop_unread(graph)


def _sigmoid_of(value: ir.Value | None) -> tuple[list[ir.Node], ir.Node, bool] | None:
    """Return the sigmoid that a value is, the views behind it, and whether the value is what it lacks to 1."""
    views: list[ir.Node] = []
    is_complement = False
    while value is not None and (node := value.producer()) is not None and node.domain in ONNX_DOMAINS:
        rest = None if is_complement else _lacking(node)
        if node.op_type == "Sigmoid":
            return views[::-1], node, is_complement
        if rest is not None:
            value, is_complement = rest, True
        elif node.op_type in _VIEWS:
            views.append(node)
            value = node.inputs[0]
        else:
            return None
    return None


def _lacking(node: ir.Node) -> ir.Value | None:
    """Return the value of which a node computes what it lacks to 1."""
    if node.op_type == "Sub" and _is_one(node.inputs[0]):
        return node.inputs[1]
    if node.op_type != "Add" or len(node.inputs) != 2:
        return None
    for one, other in (node.inputs, node.inputs[::-1]):
        negative = None if other is None else other.producer()
        if _is_one(one) and is_op(negative, "Neg") and negative is not None:
            return negative.inputs[0]
    return None


def _is_one(value: ir.Value | None) -> bool:
    while value is not None and is_op(value.producer(), "Cast", "CastLike"):
        value = value.producer().inputs[0]  # type: ignore[union-attr]
    return number_in(value) == 1


def _drop_unread(graph: ir.Graph) -> None:
    """Remove sigmoids, and what is computed of them, that nobody reads any more."""
    kinds = ("Sigmoid", "Sub", "Add", "Neg", *_VIEWS)
    for node in reversed(list(graph)):
        is_read = any(output.uses() or output.is_graph_output() for output in node.outputs)
        if is_op(node, *kinds) and not is_read:
            graph.remove(node, safe=True)
