"""Workspace: the bytes that a kernel of ONNX Runtime allocates beside its outputs and frees before it returns.

An operator without a rule counts as much as its inputs and outputs suggest, and whoever plans with that is told so.
"""

from __future__ import annotations

from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.graph.operators import Call, OpSpec, spec_of
from poet_onnx.graph.operators.rules import nothing
from poet_onnx.graph.operators.spec import WorkspaceRule


def workspace_bytes(graph: TrainingGraph, node: Node, *, threads: int = 1, whole_columns: bool = False) -> int:
    """Return the workspace of a node, in bytes, as ONNX Runtime's CPU allocator counts it.

    Args:
        graph: where the node's tensors are.
        node: of that graph.
        threads: threads inside an operator; a convolution takes a buffer for each.
        whole_columns: as in `DeviceProfile`.
    """
    rule = _rule(node) or _spec(node).estimate
    return rule(Call.of(graph, node, threads, whole_columns=whole_columns))


def heap_bytes(graph: TrainingGraph, node: Node) -> int:
    """Return what a node takes from malloc, past ONNX Runtime's allocator, in bytes."""
    rule = _spec(node).heap
    return 0 if rule is None or node.view else rule(Call.of(graph, node))


def workspace_parts(graph: TrainingGraph, node: Node) -> tuple[int, ...]:
    """Return the bytes of each buffer of a node's workspace where its declaration has them in order, or nothing."""
    buffers = _spec(node).buffers
    return () if buffers is None else buffers(Call.of(graph, node))


def allocation_order(node: Node) -> tuple[int, ...]:
    """Return the outputs and buffers of a node as its kernel asks for them; nothing where that is the usual order."""
    return _spec(node).allocation_order


def has_workspace_rule(node: Node) -> bool:
    """Return whether `workspace_bytes` counts a node exactly; otherwise it estimates."""
    return _rule(node) is not None


def _rule(node: Node) -> WorkspaceRule | None:
    return nothing if node.view else _spec(node).workspace


def _spec(node: Node) -> OpSpec:
    return spec_of(node.domain, node.op_type, node.attributes)
