"""Which network a training graph and an evaluation graph are of: a hash of what their forward model computes.

Both graphs say it, so that a session does not evaluate and export another network whose names and shapes are the same.

Rules:
    N1. Numbers that are trained and running statistics do not count: they are a session's own.
    N2. What differs between rewrites of one model does not count: the loss, sizes of a batch and modes of training.
    N3. Names of values do not count, but for those of inputs and of what is trained.
    N4. Of frozen tensors that are large type and shape count alone: reading or quantizing them takes long, and where
        they are of another model, small ones beside them are, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from poet_onnx.files.hashes import hash_of
from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.extract.contents import constant_array
from poet_onnx.graph.operators import ONNX_DOMAINS

_LARGE_BYTES = 1 << 16

_PASSED_ON = ("Dropout", "Identity")
"""Operators whose first output is their first input, in inference."""

_SIZES = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1}
"""Where operators read sizes, among which exporters write that of a batch."""

_BATCH_NORM, _STATISTICS = "BatchNormalization", (3, 4)
_MODES = ("momentum", "training_mode")


def network_of(model: ir.Model, trained: Collection[str]) -> str:
    """Return a hash of what a forward model computes in inference, in hexadecimal digits.

    Args:
        model: before it has a loss, and its named dimensions have sizes; it is not changed.
        trained: names of what is trained.

    Raises:
        InputError: if the data of a constant cannot be read.
    """
    graph = model.graph
    known = {value: _hashed("input", value.name) for value in graph.inputs}
    for name, value in graph.initializers.items():
        known[value] = _hashed("trained", name) if name in trained else _constant(name, value.const_value)
    for node in graph:
        for value, hashed in zip(node.outputs, _outputs(node, known), strict=True):
            known[value] = hashed
    return _hashed("network", *(known[value] for value in graph.outputs))


def _outputs(node: ir.Node, known: dict[ir.Value, str]) -> Iterator[str]:
    """Yield the hashes of what a node makes."""
    own = node.domain in ONNX_DOMAINS
    source = node.inputs[0] if own and node.op_type in _PASSED_ON and node.inputs else None
    if source is not None:
        first = known[source]
    else:
        first = _hashed("node", "" if own else node.domain, node.op_type, *_attributes(node), *_inputs(node, known))
    yield first
    for index in range(1, len(node.outputs)):
        yield _hashed("output", index, first)


def _inputs(node: ir.Node, known: dict[ir.Value, str]) -> Iterator[str]:
    """Yield the hashes of what a node reads; empty ones for what does not count."""
    for index, value in enumerate(node.inputs):
        yield "" if value is None or _is_left_out(node, index, value) else known[value]


def _is_left_out(node: ir.Node, index: int, value: ir.Value) -> bool:
    """Return whether an input is a running statistic (N1) or a size (N2)."""
    if node.op_type == _BATCH_NORM and index in _STATISTICS:
        return value.is_initializer()
    return _SIZES.get(node.op_type) == index


def _attributes(node: ir.Node) -> Iterator[object]:
    for name, value in sorted(plain_attributes(node).items()):
        if node.op_type != _BATCH_NORM or name not in _MODES:
            yield from (name, value)
    for name, attribute in sorted(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR:
            yield from (name, _constant(name, attribute.as_tensor()))


def _constant(name: str, tensor: ir.TensorProtocol | None) -> str:
    if tensor is None:
        return _hashed("constant", name)
    kind = (tensor.dtype.name, tuple(tensor.shape.numpy()))
    if tensor.dtype == ir.DataType.STRING or tensor.nbytes > _LARGE_BYTES:
        return _hashed("constant", *kind)
    return _hashed("constant", *kind, hash_of([constant_array(name, tensor).tobytes()]))


def _hashed(*parts: object) -> str:
    return hash_of([repr(parts).encode()])
