"""A forward graph with the exporter's nodes within the file of another graph, of which it has the constants."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from poet_onnx.description.forward import TURNED_BYTES, TURNED_KEY, pack_forward
from poet_onnx.files.external_data import embed
from poet_onnx.graph.extract import constant_view
from poet_onnx.graph.extract.roles import forget_roles
from poet_onnx.passes.views import is_matrix_transpose

MOST_OWN_BYTES = 8 << 20
"""Of constants that the other graph has not, such as masks of attention."""

_LEAST_BYTES = 256
_TYPES = (ir.DataType.FLOAT, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT64)
"""Of elements of constants that are looked up: those that a session can read in a file."""


class Beside(NamedTuple):
    """What an exported graph has of another one, and what not.

    Attributes:
        names: of its constants in the other graph, by its own; another name is that of the transpose.
        own_bytes: of its constants that the other graph has not.
    """

    names: dict[str, str]
    own_bytes: int

    @classmethod
    def of(cls, forward: ir.Graph, other: ir.Graph) -> Beside:
        """Look for a graph's constants in another one, by their names and by those of their transposes."""
        names, missing_bytes = dict[str, str](), 0
        for name, value in forward.initializers.items():
            transposed = _transposed(value)
            if name in other.initializers:
                names[name] = name
            elif transposed in other.initializers:
                names[name] = transposed
            elif value.const_value is not None:
                missing_bytes += value.const_value.nbytes
        return cls(names, missing_bytes)

    @property
    def exporting_bytes(self) -> int:
        """Bytes that are in memory while it is exported: of a weight that is turned both forms of a part are."""
        has_turned = any(name != its_name for name, its_name in self.names.items())
        return self.own_bytes + (2 * TURNED_BYTES if has_turned else 0)


def _transposed(value: ir.Value) -> str:
    """Return the name of a matrix's transpose, if all that reads it is what makes this; else nothing."""
    readers = [node for node, _ in value.uses()]
    return readers[0].outputs[0].name or "" if len(readers) == 1 and is_matrix_transpose(readers[0]) else ""


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
    graph, turned = forward.graph, dict[str, str]()
    for name, its_name in Beside.of(graph, other).names.items():
        value, is_turned = graph.initializers[name], its_name != name
        tensor, its = value.const_value, other.initializers[its_name].const_value
        if tensor is None or its is None or not _is_same(name, tensor, its, is_turned=is_turned):
            continue
        if is_turned:
            turned[name] = its_name
        del graph.initializers[name]
        value.type, value.shape, value.const_value = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy()), None
        graph.inputs.append(value)
    if turned:
        forward.metadata_props[TURNED_KEY] = json.dumps(turned)
    embed(forward)
    forget_roles(graph)
    return pack_forward(ir.to_proto(forward).SerializeToString(deterministic=True))


def _is_same(name: str, tensor: ir.TensorProtocol, other: ir.TensorProtocol, *, is_turned: bool) -> bool:
    if tensor.dtype not in _TYPES or tensor.nbytes < _LEAST_BYTES:
        return False
    sizes = tuple(tensor.shape.numpy())
    if (tensor.dtype, sizes[::-1] if is_turned else sizes) != (other.dtype, tuple(other.shape.numpy())):
        return False
    if tensor is other:
        return True
    mine, its = (constant_view(name, each) for each in (tensor, other))
    bits = f"u{mine.dtype.itemsize}"
    return np.array_equal(mine.view(bits), (its.T if is_turned else its).view(bits))
