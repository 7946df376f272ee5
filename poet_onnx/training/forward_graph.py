"""A forward graph as it lies in a model file: what its nodes read and make, and where its tensors are.

Only names and places are kept, so that a graph of large weights takes little memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from poet_onnx.description.names import RECOMPUTED
from poet_onnx.errors import InputError
from poet_onnx.files.contained import BelowFolder, external_data_of, location_below
from poet_onnx.files.element_types import BITS
from poet_onnx.files.onnx_messages import (
    EXTERNAL_DATA,
    FUNCTION,
    GRAPH,
    IN_A_FILE,
    INITIALIZER,
    INPUT,
    KEY,
    LOCATION,
    MODEL_METADATA,
    MOST_LEVELS,
    NODE,
    OPSET,
    OUTPUT,
    RAW_DATA,
    VALUE,
    VALUE_INFO,
    tensor_head,
)
from poet_onnx.files.protobuf import (
    MESSAGE,
    Bytes,
    Field,
    FileBytes,
    contents,
    fields,
    last_number,
    no_model,
    text,
    text_field,
    texts,
    whole,
)

_FLOAT_DATA, _DOUBLE_DATA = 4, 10  # of TensorProto: packed, as raw data are
NODE_VALUES = _NODE_INPUT, _NODE_OUTPUT = 1, 2
"""Inputs and outputs of NodeProto."""
_NODE_NAME, _ATTRIBUTE, _DOMAIN = 3, 5, 7  # of NodeProto
_SUBGRAPHS, _TENSORS = (6, 11), (5, 10)  # of AttributeProto
_VALUE_NAME, _VALUE_TYPE = 1, 2  # of ValueInfoProto
_TENSOR_TYPE, _ELEMENT, _SHAPE, _DIMENSION, _SIZE = 1, 1, 2, 1, 1  # of TypeProto and what is in it
_OPSET_DOMAIN = 1  # of OperatorSetIdProto
_NO_OTHER_DOMAIN = frozenset[str]()
_NO_NUMBER = 2**62


class Node(NamedTuple):
    """A node.

    Attributes:
        begin, end: where it is.
        is_copy: whether it has the name of a copy that a plan computes again.
        inputs: names of what it reads, in graphs within it, too.
        outputs: names of what it makes.
        domains: of its operator, and of those in graphs within it; that of ONNX itself may be missing.
    """

    begin: int
    end: int
    is_copy: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domains: frozenset[str]


class Weight(NamedTuple):
    """An initializer.

    Attributes:
        name: of it.
        kind: element type, as TensorProto.DataType numbers them.
        dims: sizes.
        message: where it is; None if its elements are not there.
        elements: where its elements begin and end, if they are there as they are in memory.
        file: where they are if they are in a file of their own.
    """

    name: str
    kind: int
    dims: tuple[int, ...]
    message: Field | None
    elements: tuple[int, int] | None
    file: BelowFolder | None

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements; none for strings."""
        return -(-math.prod(self.dims) * BITS.get(self.kind, 0) // 8)


class ForwardGraph:
    """A model whose graph is read."""

    def __init__(self, data: Bytes, folder: Path, *, only_weights: bool = False) -> None:
        """Read it.

        Args:
            data: the model.
            folder: where its external data are.
            only_weights: read no nodes, and no types of values inside.

        Raises:
            InputError: if it is damaged, or its external data are not where they may be.
        """
        self.data, self._folder = data, folder.resolve()
        self._skipped = (NODE, VALUE_INFO) if only_weights else ()
        self.nodes: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self.inputs: dict[str, Field] = {}
        self.outputs: dict[str, Field] = {}
        self.types: dict[str, Field] = {}
        """What is said of values inside of the graph."""
        self.seen: dict[str, tuple[int, tuple[int, ...]]] = {}
        """Type and sizes as which elements are read that have others where they are."""
        self.opsets: list[tuple[str, Field]] = []
        self.metadata: list[tuple[str, Field]] = []
        self.others: list[Field] = []
        """All else of the model."""
        self.graph_others: list[Field] = []
        """All else of the graph."""
        self._names: dict[str, str] = {}
        graphs = 0
        for field in fields(data, whole(data)):
            if field.number == GRAPH:
                graphs += 1
                self._read_graph(field)
            elif field.number == OPSET:
                self.opsets.append(("".join(texts(data, field, _OPSET_DOMAIN)[-1:]), field))
            elif field.number == MODEL_METADATA:
                self.metadata.append(("".join(texts(data, field, KEY)[-1:]), field))
            else:
                self.others.append(field)
        if graphs != 1:
            raise no_model()

    @property
    def has_functions(self) -> bool:
        """Whether it has functions of its own."""
        return any(field.number == FUNCTION for field in self.others)

    def add(self, number: int, message: bytes) -> Field:
        """Return a field with a message that the model did not have; it is nowhere in the graph yet."""
        field = text_field(number, message)
        if isinstance(self.data, bytes):
            begin = len(self.data)
            self.data += field
        else:
            begin = self.data.add(field)
        end = begin + len(field)
        return next(fields(self.data, Field(0, MESSAGE, begin, begin, end)))

    def read(self, weight: Weight, start: int, size_bytes: int) -> bytes | None:
        """Return a part of an initializer's elements; None if they are not there as they are in memory."""
        if weight.file is not None:
            with weight.file.opened() as descriptor:
                found = os.pread(descriptor, size_bytes, weight.file.first + start)
            if len(found) < size_bytes:
                raise InputError(f"{weight.file.path} became shorter while it was read: put it back, and try again.")
            return found
        if weight.elements is None:
            return None
        first = weight.elements[0] + start
        return bytes(self.data[first : first + size_bytes])

    def fill_parts(self, weight: Weight, starts: range, room: memoryview) -> None:
        """Read as many bytes from each of some places of an initializer's elements as fill memory together.

        Raises:
            InputError: if they are not there.
        """
        if isinstance(self.data, FileBytes) and weight.elements is not None and weight.file is None:
            first = weight.elements[0]
            self.data.fill_parts(room, range(first + starts.start, first + starts.stop, starts.step))
            return
        size_bytes = len(room) // max(1, len(starts))
        for place, start in enumerate(starts):
            room[place * size_bytes : (place + 1) * size_bytes] = self.read(weight, start, size_bytes) or b""

    def shape(self, value: Field) -> tuple[int, ...] | None:
        """Return the shape that a graph's input has, with -1 for sizes that are not known; None if it is not."""
        shape = self._within(value, (_VALUE_TYPE, _TENSOR_TYPE, _SHAPE))
        if shape is None:
            return None
        found = []
        for dimension in fields(self.data, shape):
            if dimension.number == _DIMENSION:
                sizes = [field for field in fields(self.data, dimension) if field.number == _SIZE]
                found.append(last_number(self.data, sizes, default=-1))
        return tuple(found)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape that an input or a value inside of the graph has; None if it is not known."""
        value = self.types.get(name) or self.inputs.get(name)
        return None if value is None else self.shape(value)

    def element_type(self, value: Field) -> int:
        """Return the element type of what is said of a value, as TensorProto.DataType numbers them; 0 if it is not."""
        tensor = self._within(value, (_VALUE_TYPE, _TENSOR_TYPE))
        found = () if tensor is None else fields(self.data, tensor)
        return last_number(self.data, (field for field in found if field.number == _ELEMENT))

    def _once(self, name: str) -> str:
        """Return a name that is there once, however often it stands in the file."""
        return self._names.setdefault(name, name)

    def _within(self, message: Field, path: tuple[int, ...]) -> Field | None:
        """Return a message that is some levels deep in another one."""
        found: Field | None = message
        for number in path:
            if found is not None:
                found = next((field for field in fields(self.data, found) if field.number == number), None)
        return found

    def _read_graph(self, graph: Field) -> None:
        named: Mapping[int, dict[str, Field]] = {INPUT: self.inputs, OUTPUT: self.outputs, VALUE_INFO: self.types}
        for field in fields(self.data, graph):
            if field.number in self._skipped:
                continue
            if field.number == NODE:
                self.nodes.append(self.read_node(field))
            elif field.number == INITIALIZER:
                weight = self._weight(field)
                self.weights[weight.name] = weight
            elif field.number in named:
                named[field.number][self._name(field)] = field
            else:
                self.graph_others.append(field)

    def _name(self, value: Field) -> str:
        return self._once("".join(texts(self.data, value, _VALUE_NAME)[-1:]))

    def read_node(self, node: Field) -> Node:
        """Return a node of a field."""
        is_copy, outputs = False, list[str]()
        for field in fields(self.data, node):
            if field.number == _NODE_OUTPUT:
                outputs.append(self._once(text(self.data, field)))
            elif field.number == _NODE_NAME:
                is_copy = RECOMPUTED in text(self.data, field)
        found = dict.fromkeys(self._reads(node, 0))
        domains = frozenset(domain for is_domain, domain in found if is_domain) or _NO_OTHER_DOMAIN
        inputs = tuple(value for is_domain, value in found if not is_domain and value)
        return Node(node.begin, node.end, is_copy, inputs, tuple(outputs), domains)

    def _reads(self, node: Field, level: int) -> Iterator[tuple[bool, str]]:
        """Yield domains (true) and names of values (false) that a node reads, and nodes within it."""
        if level > MOST_LEVELS:
            raise no_model()
        for field in fields(self.data, node):
            if field.number in (_NODE_INPUT, _DOMAIN):
                yield field.number == _DOMAIN, self._once(text(self.data, field))
            elif field.number == _ATTRIBUTE:
                for inner in fields(self.data, field):
                    if inner.number in _SUBGRAPHS:
                        yield from self._reads_of_graph(inner, level + 1)
                    elif inner.number in _TENSORS and texts(self.data, inner, EXTERNAL_DATA):
                        raise InputError(
                            "A node of the model has a constant as external data: export the model with its constants "
                            "embedded, or as initializers."
                        )

    def _reads_of_graph(self, graph: Field, level: int) -> Iterator[tuple[bool, str]]:
        for field in fields(self.data, graph):
            if field.number == NODE:
                yield from self._reads(field, level)
            elif field.number == OUTPUT:
                yield False, self._name(field)

    def _weight(self, tensor: Field) -> Weight:
        said, kind, dims, found = tensor_head(self.data, tensor)
        name, place = self._once(said), last_number(self.data, found.get(LOCATION, ()))
        if min(dims, default=0) < 0 or math.prod(max(1, size) for size in dims) > _NO_NUMBER:
            raise InputError(f"Tensor '{name}' of shape {list(dims)} is larger than any file: export the model again.")
        weight = Weight(name, kind, dims, tensor, None, None)
        if place == IN_A_FILE:
            entries = {}
            for field in found.get(EXTERNAL_DATA, ()):
                key = "".join(texts(self.data, field, KEY)[-1:])
                entries[key] = os.fsdecode(b"".join(contents(self.data, field, VALUE)[-1:]))
            return weight._replace(message=None, elements=(0, 0), file=self._file(weight, entries))
        for number in (RAW_DATA, _FLOAT_DATA, _DOUBLE_DATA):
            for field in found.get(number, ()) if len(found.get(number, ())) == 1 else ():
                if field.form == MESSAGE and field.end - field.content == weight.size_bytes:
                    return weight._replace(elements=(field.content, field.end))
        return weight

    def _file(self, weight: Weight, said: Mapping[str, str]) -> BelowFolder | None:
        """Return where an initializer's elements are; None where there are none."""
        subject = external_data_of(weight.name)
        location = location_below(said.get("location", ""), subject)
        try:
            first, size_bytes = int(said.get("offset", 0)), int(said.get("length", weight.size_bytes))
        except ValueError:
            first = size_bytes = -1
        if weight.kind not in BITS or size_bytes != weight.size_bytes or not 0 <= first < _NO_NUMBER:
            raise InputError(
                f"{subject} is said to have {said.get('length')} bytes from byte {said.get('offset')} on, which do not "
                f"fit its type and shape {list(weight.dims)}: export the model again."
            )
        return BelowFolder(weight.name, self._folder, location, first, size_bytes) if size_bytes else None
