"""Workspace: the bytes that a kernel of ONNX Runtime allocates beside its outputs and frees before it returns."""

from __future__ import annotations

from poet_onnx.graph import Node, TrainingGraph


def workspace_bytes(graph: TrainingGraph, node: Node, *, threads: int = 1) -> int:
    """Return the workspace of a node, in bytes, as ONNX Runtime's CPU allocator counts it."""
    if node.op_type == "ConvGrad":
        d_y, weight = graph.tensors[node.inputs[0]], graph.tensors[node.inputs[2]]
        area = _product(d_y.shape[2:])
        return 4 * area * (_product(weight.shape[1:]) + 1)
    if node.op_type == "Conv":
        y, weight = graph.tensors[node.outputs[0]], graph.tensors[node.inputs[1]]
        area = _product(y.shape[2:])
        if weight.shape[0] > area:
            return 4 * area * _product(weight.shape[1:])
        return 65536 * threads
    return 0


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
