"""Large tensors inside of a model file: they stay in it, and who parses the file gets it without their elements.

A parser of protobuf needs the whole file at once and then copies each tensor, so that a model takes twice its size.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from poet_onnx.files.element_types import BITS
from poet_onnx.files.external_data import FileTensor
from poet_onnx.files.held_file import HeldFile
from poet_onnx.files.onnx_messages import (
    EXTERNAL_DATA,
    GRAPH,
    INITIALIZER,
    LOCATION,
    RAW_DATA,
    TensorHead,
    file_fields,
    tensor_head,
)
from poet_onnx.files.protobuf import MESSAGE, Field, FileBytes, fields, last_number, message_field, whole, written
from poet_onnx.files.regular import unchanged

LEAST_FILE_BYTES = 32 << 20
"""A smaller model is parsed as a whole, and does not depend on its file any more."""

LEAST_BYTES = 64 << 10
"""A smaller tensor is parsed with the model."""

Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]

_KINDS = (1, 2, 3, 6, 7, 10, 11, 16, 21, 22)
"""Types of elements, as TensorProto.DataType numbers them: floats, integers, and codes of weights."""

_SEGMENT = 3  # field of TensorProto
_ELSEWHERE = b"in the model's own file"


class _OpenModel:
    """A model file that is open; what is read of it is what was there when it was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file = HeldFile(path)
        self._first_look = unchanged(self.file.descriptor, path, None)

    def check(self) -> None:
        """Check that nobody has written to the file.

        Raises:
            InputError: if somebody has.
        """
        unchanged(self.file.descriptor, self._path, self._first_look)


class EmbeddedTensor(ir.LazyTensor):
    """A tensor whose elements are in the file that its model was loaded from."""

    def __init__(self, source: _OpenModel, first: int, dtype: ir.DataType, shape: Sequence[int], name: str) -> None:
        """Use `SparseModel`; the elements begin at an offset of the file."""
        super().__init__(self._made, dtype, ir.Shape(shape), name=name)
        self._source, self._first = source, first

    def seen_as(self, dtype: ir.DataType, shape: Sequence[int], name: str) -> EmbeddedTensor:
        """Return its bytes as elements of another type."""
        return EmbeddedTensor(self._source, self._first, dtype, shape, name)

    def part(self, start: int, shape: Sequence[int], name: str) -> EmbeddedTensor:
        """Return some of its elements, which have whole bytes, from one on."""
        return EmbeddedTensor(
            self._source, self._first + start * int(self.dtype.itemsize), self.dtype, shape, name or self.name or ""
        )

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces that are read and not mapped, each of which is gone when the next one comes.

        Raises:
            InputError: if the file was changed.
        """
        yield from self._source.file.chunks(self._first, self.nbytes)
        self._source.check()

    def tobytes(self) -> bytes:
        """Return the elements as the file has them."""
        return self._read().tobytes()

    def looked_at(self) -> Array:
        """Return the elements where they are, to be looked at and forgotten.

        A file that becomes shorter while it is mapped ends the process.

        Raises:
            InputError: if the file was changed.
        """
        self._source.check()
        start = self._first - self._first % mmap.ALLOCATIONGRANULARITY
        size_bytes = self._first - start + self.nbytes
        pages = mmap.mmap(self._source.file.descriptor, size_bytes, offset=start, access=mmap.ACCESS_READ)
        return self._tensor_of(np.frombuffer(pages, np.uint8, self.nbytes, self._first - start)).numpy()

    def _made(self) -> ir.TensorProtocol:
        return self._tensor_of(self._read())

    def _read(self) -> Bytes:
        data = np.empty(self.nbytes, np.uint8)
        self._source.file.fill(data.data, self._first)
        self._source.check()
        return data

    def _tensor_of(self, data: Bytes) -> ir.TensorProtocol:
        if self.dtype.itemsize < 1:
            return ir.PackedTensor(data, self.dtype, shape=self.shape, name=self.name)
        kind = np.dtype(self.dtype.numpy()).newbyteorder("<")
        return ir.Tensor(data.view(kind).reshape(self.shape.numpy()), self.dtype, name=self.name)


Elsewhere = FileTensor | EmbeddedTensor
"""Tensors that are in files until somebody looks at them."""


class SparseModel:
    """A model file of which large initializers are not parsed.

    Attributes:
        proto: the model, which says of these that they are in a file.
    """

    def __init__(self, path: Path) -> None:
        """Parse the rest.

        Raises:
            OSError: if it cannot be read.
            InputError: if it is no model.
            DecodeError: likewise.
        """
        self._source = _OpenModel(path)
        self._places: dict[str, int] = {}
        data = FileBytes(path)
        parts = []
        for field in fields(data, whole(data)):
            if field.number == GRAPH and field.form == MESSAGE:
                piece = written(b"".join(self._graph(data, field)))
                parts += [bytes(chunk) for each in message_field(GRAPH, [piece]) for chunk in each.chunks()]
            else:
                parts.append(data[field.begin : field.end])
        self._source.check()
        self.proto: onnx.ModelProto = onnx.ModelProto.FromString(b"".join(parts))

    def hold(self, model: ir.Model) -> None:
        """Let the model that was made of the message find its tensors; changes it."""
        for name, first in self._places.items():
            value = model.graph.initializers[name]
            old = value.const_value
            assert old is not None
            held = EmbeddedTensor(self._source, first, old.dtype, old.shape.numpy(), name)
            held.doc_string = old.doc_string
            held.metadata_props.update(old.metadata_props)
            value.const_value = held

    def _graph(self, data: FileBytes, graph: Field) -> Iterator[bytes]:
        """Yield a graph without elements of large tensors, in pieces."""
        begin = graph.content
        for field in fields(data, graph):
            if field.number != INITIALIZER or field.form != MESSAGE or field.end - field.begin < LEAST_BYTES:
                continue
            head = tensor_head(data, field)
            elements = _elements(data, head)
            if elements is None or head.name in self._places:
                continue
            yield data[begin : field.begin]
            begin = field.end
            self._places[head.name] = elements.content
            kept = [each for number, found in head.parts.items() if number != RAW_DATA for each in found]
            said = b"".join(data[each.begin : each.end] for each in sorted(kept, key=lambda each: each.begin))
            said += file_fields(_ELSEWHERE, elements.content, elements.end - elements.content)
            for piece in message_field(INITIALIZER, [written(said)]):
                yield from map(bytes, piece.chunks())
        yield data[begin : graph.end]


def _elements(data: FileBytes, head: TensorHead) -> Field | None:
    """Return where all elements of a tensor are; None for what a parser is to judge."""
    raw = head.parts.get(RAW_DATA, ())
    plain = head.name and head.kind in _KINDS and not {_SEGMENT, EXTERNAL_DATA} & set(head.parts)
    if not plain or len(raw) != 1 or last_number(data, head.parts.get(LOCATION, ())):
        return None
    size_bits = math.prod(head.dims) * BITS[head.kind]
    return raw[0] if raw[0].end - raw[0].content == -(-size_bits // 8) else None
