"""A forward graph with the exporter's nodes within the file of another graph, of which it has the constants."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.description.forward import pack_forward
from poet_onnx.files.external_data import embed
from poet_onnx.graph.extract import constant_array
from poet_onnx.graph.extract.roles import forget_roles

MOST_OWN_BYTES = 8 << 20
"""Of constants that the other graph has not, such as masks of attention."""

_LEAST_BYTES = 256
_TYPES = (ir.DataType.FLOAT, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT64)
"""Of elements of constants that are looked up: those that a session can read in a file."""


def own_bytes(forward: ir.Graph, other: ir.Graph) -> int:
    """Return the bytes of a graph's constants that another one has not, by their names."""
    missing = (value.const_value for name, value in forward.initializers.items() if name not in other.initializers)
    return sum(tensor.nbytes for tensor in missing if tensor is not None)


def live_nodes(forward: ir.Graph) -> int:
    """Return how many nodes of a graph with static shapes depend on its inputs: the others are folded."""
    live, count = set(forward.inputs), 0
    for node in forward:
        if node.op_type != "Shape" and not live.isdisjoint(node.inputs):
            live.update(node.outputs)
            count += 1
    return count


def packed_forward(forward: ir.Model, other: ir.Graph) -> str:
    """Return a model as metadata of another one; its constants that both have are inputs.

    Args:
        forward: is changed.
        other: the other model's graph.
    """
    graph = forward.graph
    for name, value in list(graph.initializers.items()):
        tensor, its = value.const_value, other.initializers.get(name)
        if tensor is None or its is None or not _is_same(name, tensor, its.const_value):
            continue
        del graph.initializers[name]
        value.type, value.shape, value.const_value = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy()), None
        graph.inputs.append(value)
    embed(forward)
    forget_roles(graph)
    return pack_forward(ir.to_proto(forward).SerializeToString(deterministic=True))


def _is_same(name: str, tensor: ir.TensorProtocol, other: ir.TensorProtocol | None) -> bool:
    if other is None or tensor.dtype not in _TYPES or tensor.nbytes < _LEAST_BYTES:
        return False
    if (tensor.dtype, tuple(tensor.shape.numpy())) != (other.dtype, tuple(other.shape.numpy())):
        return False
    return tensor is other or constant_array(name, tensor).tobytes() == constant_array(name, other).tobytes()
