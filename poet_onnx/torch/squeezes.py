"""Squeezes of dimensions that are not 1, which are nothing in torch, and which its dynamo exporter writes all the same.

ONNX has no such Squeeze. PixArt, a model of diffusers, has them (torch 2.13.0).
"""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.passes.node_builder import replace_nodes


def drop_idle_squeezes(model: ir.Model) -> None:
    """Take those out of a forward model, which changes."""
    for node in list(model.graph):
        if not is_op(node, "Squeeze") or not _is_idle(node):
            continue
        same = ir.Node("", "Identity", node.inputs[:1], name=node.name)
        replace_nodes(model.graph, [node], [same], node.outputs)


def _is_idle(squeeze: ir.Node) -> bool:
    """Return whether no dimension that a node is to take away is 1."""
    source, axes = squeeze.inputs[0], squeeze.inputs[1] if len(squeeze.inputs) > 1 else None
    numbers = None if axes is None else ir.convenience.get_const_tensor(axes)
    if source is None or source.shape is None or numbers is None:
        return False
    sizes = [source.shape[int(axis)] for axis in numbers.numpy().reshape(-1)]
    return bool(sizes) and all(isinstance(size, int) and size != 1 for size in sizes)
