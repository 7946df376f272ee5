"""A model as the bytes of its file, in pieces: each large tensor is in memory only while it is written.

A message of protobuf has copies of all tensors, and its bytes have them once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from poet_onnx.files.embedded import EmbeddedTensor
from poet_onnx.files.onnx_messages import GRAPH, INITIALIZER, RAW_DATA, tensor_head
from poet_onnx.files.protobuf import Chunk, Field, Piece, copied, fields, in_chunks, message_field, whole

LEAST_BYTES = 64 << 10
"""A smaller tensor is part of a message."""

MOST_BYTES = 2**31 - 1
"""Of a message of protobuf."""


def bytes_of_model(model: ir.Model) -> list[Piece]:
    """Return the bytes of a model in pieces, which together are those of its message; changes the model.

    Args:
        model: large initializers of its graph lose their elements; nobody may use it afterwards.

    Raises:
        ValueError: if it is larger than a message can be.
    """
    large: dict[str, ir.TensorProtocol] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and _is_large(tensor):
            large[name] = tensor
            value.const_value = _Hollow(tensor)
    message = ir.to_proto(model).SerializeToString(deterministic=True)
    pieces: list[Piece] = []
    for field in fields(message, whole(message)):
        is_graph = field.number == GRAPH
        pieces += message_field(GRAPH, list(_graph(message, field, large))) if is_graph else [_as_is(message, field)]
    size_bytes = sum(piece.size_bytes for piece in pieces)
    if size_bytes > MOST_BYTES:
        raise ValueError(f"it has {size_bytes} bytes, and a protobuf message at most {MOST_BYTES}")
    return pieces


class _Hollow(ir.LazyTensor):
    """A tensor that says what it is, and has no elements."""

    def __init__(self, tensor: ir.TensorProtocol) -> None:
        super().__init__(
            lambda: tensor,
            tensor.dtype,
            ir.Shape(tensor.shape.numpy()),
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )

    def tobytes(self) -> bytes:
        return b""


def _is_large(tensor: ir.TensorProtocol) -> bool:
    """Return whether the elements of a tensor are written by themselves."""
    if isinstance(tensor, (ir.ExternalTensor, ir.StringTensor, ir.serde.TensorProtoTensor)):
        return False  # the last is a message already, of whatever fields
    return tensor.nbytes >= LEAST_BYTES


def _graph(message: bytes, graph: Field, large: Mapping[str, ir.TensorProtocol]) -> Iterator[Piece]:
    """Yield a graph with the elements of its large tensors."""
    for field in fields(message, graph):
        head = tensor_head(message, field) if field.number == INITIALIZER else None
        if head is None or head.name not in large:
            yield _as_is(message, field)
            continue
        tensor = large[head.name]
        elements = Piece(tensor.nbytes, partial(_elements, tensor))
        parts: list[Piece] = []
        for each in fields(message, field):
            parts += message_field(RAW_DATA, [elements]) if each.number == RAW_DATA else [_as_is(message, each)]
        yield from message_field(INITIALIZER, parts)


def _as_is(message: bytes, field: Field) -> Piece:
    return copied(message, field.begin, field.end)


def _elements(tensor: ir.TensorProtocol) -> Iterable[Chunk]:
    """Return the elements of a tensor in pieces; what is in an array is not copied."""
    if isinstance(tensor, EmbeddedTensor):
        return tensor.chunks()
    if isinstance(tensor, ir.PackedTensor):
        return in_chunks(np.ascontiguousarray(tensor.numpy_packed()).reshape(-1).data)
    if isinstance(tensor, ir.Tensor) and tensor.dtype.itemsize >= 1 and tensor.numpy().flags.c_contiguous:
        return in_chunks(tensor.numpy().reshape(-1).view(np.uint8).data)
    return in_chunks(memoryview(tensor.tobytes()))
