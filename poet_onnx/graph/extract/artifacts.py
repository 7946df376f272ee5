"""The names and the order by which training graphs of onnxruntime-training tell what is what: that is their format.

Nobody else reads names or order. Source: onnxruntime/python/training/onnxblock of github.com/microsoft/onnxruntime,
v1.19.2: `_training_graph_utils.py` appends to the inputs of a forward model, in this order, what the loss is held
against, the parameters, trained and frozen ones in the order of the model's initializers, the gradient buffers, and a
flag; `loss/loss.py` has the names of the labels. Our own training graphs have the same names, for the same runtime.
"""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.graph.operators import spec_of
from poet_onnx.graph.training_graph import Role

RESET = "lazy_reset_grad"
"""Input that says whether gradients start anew."""

GRADIENT_SUFFIX = "_grad"
"""Behind a tensor's name: the gradient of the loss with respect to it."""

BUFFER_SUFFIX = f"{GRADIENT_SUFFIX}.accumulation.buffer"
"""Behind a parameter's name: the input that collects its gradient."""

LABELS = ("labels", "target")
"""What a loss of onnxruntime-training holds outputs against."""


def is_accumulator(node: ir.Node) -> bool:
    """Return whether a node adds a gradient, or a part of one, to its buffer; running statistics are no gradients."""
    if spec_of(node.domain, node.op_type).reset_input is None or not node.inputs:
        return False
    buffer = node.inputs[0]
    return buffer is not None and buffer.is_graph_input()


def flag_of(node: ir.Node) -> ir.Value | None:
    """Return the input of an accumulator that says whether to start anew."""
    place = spec_of(node.domain, node.op_type).reset_input
    return node.inputs[place] if place is not None and place < len(node.inputs) else None


def parameter_of(buffer: str) -> str:
    """Return the name of the parameter whose gradient a buffer collects; empty where its name does not tell."""
    return buffer.removesuffix(BUFFER_SUFFIX) if buffer.endswith(BUFFER_SUFFIX) else ""


def unsaid_roles(graph: ir.Graph) -> dict[str, Role]:
    """Return what each input is for in a graph of onnxruntime-training.

    What stands before the labels, or before the first trained parameter where none has a label's name, is a batch's.
    Example: x, labels, stem.weight, head.weight, head.weight_grad.accumulation.buffer, lazy_reset_grad: the stem is
    frozen.
    """
    inputs = [value.name or "" for value in graph.inputs]
    roles: dict[str, Role] = {}
    for node in graph:
        if not is_accumulator(node):
            continue
        buffer, flag = node.inputs[0], flag_of(node)
        assert buffer is not None
        roles[buffer.name or ""] = Role.GRADIENT_BUFFER
        if parameter_of(buffer.name or "") in inputs:
            roles[parameter_of(buffer.name or "")] = Role.PARAMETER
        if flag is not None and flag.is_graph_input():
            roles[flag.name or ""] = Role.FLAG
    first = min((place for place, name in enumerate(inputs) if roles.get(name) is Role.PARAMETER), default=len(inputs))
    labels = [place for place, name in enumerate(inputs[:first]) if name in LABELS]
    last = max(labels, default=first - 1)
    given = {name: Role.BATCH if place <= last else Role.FROZEN for place, name in enumerate(inputs)}
    return given | {inputs[place]: Role.LABEL for place in labels} | roles
