"""How much work an operator does: floating-point operations and bytes moved, from shapes and attributes."""

from __future__ import annotations

from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.graph.operators import Call, StorageWork, Work, spec_of


def count_work(graph: TrainingGraph, node: Node) -> Work:
    """Count the work of a node.

    An operator that nobody declared counts as one operation per output element: good enough for time, never used for
    memory.

    Args:
        graph: where the node's tensors are.
        node: of that graph.
    """
    if node.view:
        return Work(0, 0, 0)
    return spec_of(node.domain, node.op_type, node.attributes).work(Call.of(graph, node))


def storage_work(graph: TrainingGraph, node: Node) -> StorageWork | None:
    """Return what a node moves from and to a store on disk; None where it knows none."""
    rule = spec_of(node.domain, node.op_type).storage
    return None if rule is None else rule(Call.of(graph, node))
