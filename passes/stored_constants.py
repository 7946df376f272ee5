"""Large constants of a model's graphs, such as frozen weights, that live in a store: each once, for all graphs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.description.metadata import Constant
from poet_onnx.description.names import CODES_SUFFIX, METADATA, OWN_PREFIX
from poet_onnx.files.embedded import Elsewhere
from poet_onnx.files.hashes import hash_of
from poet_onnx.files.values import Kind, Values
from poet_onnx.graph.extract import constant_array, constant_view
from poet_onnx.passes.quantized.blocks import BITS, bytes_of

Array = npt.NDArray[np.generic]

LEAST_BYTES = 64 << 10
"""A smaller tensor stays resident: a node that loads it takes some 8 KB of a session."""

LEAST_MATRIX_BYTES = 8 << 10
"""So does a smaller matrix of an adapter, or of few bits, which no node loads: the store has whole blocks of 4 KiB."""

_BLOCK_BYTES = 4 << 20
"""Of an array, that are put in order at once."""

_LEAST_ROWS = 16
"""Likewise: what lies side by side in such an array is in one line of a cache."""

_TYPES = {ir.DataType.FLOAT: "float32", ir.DataType.UINT8: "uint8"}
"""Of elements that may live in a store: floats, and bytes of weights of few bits."""

_LEAST = {ir.DataType.FLOAT: LEAST_BYTES, ir.DataType.UINT8: LEAST_MATRIX_BYTES}


class StoredConstants:
    """The large constants of a forward graph, which others find by what is in them.

    A graph that was made of it may have a constant under another name, or transposed. A store has one constant for all
    with the same numbers, but a weight with an adapter by itself: an export may merge the adapter into it.
    """

    def __init__(self, constants: Iterable[ir.Value], apart: Collection[str] = ()) -> None:
        """Take those that are worth it.

        Args:
            constants: initializers; they are not changed.
            apart: names of those that have a place of their own, whatever numbers others have.

        Raises:
            InputError: if one cannot be read.
        """
        self._keys: dict[int, tuple[ir.TensorProtocol, Constant]] = {}  # holds the tensors: others get no such number
        self._found: dict[Constant, tuple[str, bool]] = {}
        self._apart: dict[Constant, tuple[str, bool]] = {}
        self._tensors: dict[str, ir.TensorProtocol] = {}
        self.kinds: dict[str, Constant] = {}
        """What each one is, by name."""
        for value in constants:
            name, tensor = value.name or "", value.const_value
            if tensor is not None and tensor.dtype in BITS and not name.endswith(CODES_SUFFIX):
                tensor = bytes_of(name, tensor)
                name = tensor.name or ""
            if tensor is None or not _is_large(tensor) or name == METADATA or name.startswith(OWN_PREFIX):
                continue
            key = self._key(name, tensor)
            places = self._apart if name in apart else self._found
            if places is self._found and key in places:
                continue
            self._tensors[name] = tensor
            self.kinds[name] = key
            places.setdefault(key, (name, False))
            if len(key.shape) == 2:
                turned = Constant(key.dtype, key.shape[::-1], hash_of(_blocks(constant_view(name, tensor).T)))
                places.setdefault(turned, (name, True))

    def find(self, value: ir.Value) -> tuple[str, bool] | None:
        """Return the name of the constant that an initializer holds, and whether transposed; None for others."""
        tensor = value.const_value
        if tensor is None or not _is_large(tensor):
            return None
        name = value.name or ""
        key = self._key(name, tensor)
        if key in self._apart and self.kinds.get(name) == key:
            return name, False
        return self._found.get(key) or self._apart.get(key)

    def values(self, names: Iterable[str]) -> Values:
        """Return constants, whose numbers are read when they are asked for."""
        chosen = {name: self._tensors[name] for name in names}
        return Values(
            "the model",
            {name: Kind(self.kinds[name].dtype, self.kinds[name].shape) for name in chosen},
            lambda name, array: np.copyto(array, constant_array(name, chosen[name])),
            lambda name: _pieces(name, chosen[name]),
        )

    def _key(self, name: str, tensor: ir.TensorProtocol) -> Constant:
        if id(tensor) not in self._keys:
            digest, shape = hash_of(_pieces(name, tensor)), tuple(tensor.shape.numpy())
            self._keys[id(tensor)] = tensor, Constant(_TYPES[tensor.dtype], shape, digest)
        return self._keys[id(tensor)][1]


def _is_large(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype in _TYPES and math.prod(tensor.shape.numpy()) * tensor.dtype.itemsize >= _LEAST[tensor.dtype]


def _pieces(name: str, tensor: ir.TensorProtocol) -> Iterator[memoryview]:
    """Yield the bytes of a tensor."""
    if isinstance(tensor, Elsewhere):
        return tensor.chunks()
    return _blocks(constant_view(name, tensor))


def _blocks(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of an array, some rows at a time where they are not in order."""
    rows = len(array) if array.flags.c_contiguous else max(_LEAST_ROWS, _BLOCK_BYTES * len(array) // array.nbytes)
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows]).data
