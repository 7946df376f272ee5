"""Matrices of integers of a few bits, with a scale for each block of a row: what they are, and how they are packed.

A number is (code - zero) * scale. This is the one form that weights of a few bits have in a training graph: `codes` of
shape [rows, columns], two to a byte where they have 4 bits, the first in the lower half; blocks run along a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.description.names import CODES_SUFFIX
from poet_onnx.files.embedded import Elsewhere
from poet_onnx.passes.node_builder import initializer, tensor_initializer

Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int16]
Floats = npt.NDArray[np.float32]

BITS = {ir.DataType.UINT4: 4, ir.DataType.INT4: 4, ir.DataType.UINT8: 8, ir.DataType.INT8: 8}
"""Types of codes, and how many bits each has."""

LEAST_BLOCK = 16
"""Codes of a block, at least: as the runtime's blocked operators take them."""

_FLOATS_AT_ONCE = 1 << 18
"""Of a matrix that is quantized, as long as a row has no more: what is made of them on the way fits in a cache."""

_HALF = 4
_LOW = 0x0F


@dataclass(frozen=True)
class Blocks:
    """A matrix as it is quantized.

    Attributes:
        codes: [rows, columns], of one of the types in `BITS`.
        scales: [rows, blocks of a row].
        zeros: likewise, the code of the number 0; None where it is 0.
        size: columns of a block; the last block of a row may have fewer.
    """

    codes: ir.TensorProtocol
    scales: Floats
    zeros: Integers | None
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """Return rows and columns."""
        rows, columns = self.codes.shape.numpy()
        return rows, columns

    def write(self, graph: ir.Graph, name: str) -> tuple[ir.Value, ...]:
        """Give a graph initializers of what a DequantizeLinear reads, the first under this name, which must be free."""
        self.codes.name = name
        codes = tensor_initializer(graph, self.codes)
        scales = initializer(graph, f"{name}/scales", self.scales)
        if self.zeros is None:
            return codes, scales
        zeros = packed(self.zeros, self.codes.dtype, f"{name}/zeros")
        return codes, scales, tensor_initializer(graph, zeros)


def blocks_of_row(columns: int, size: int) -> int:
    """Return how many blocks a row has."""
    return -(-columns // size)


def halves(values: Bytes) -> Bytes:
    """Return the codes of 4 bits that bytes hold along the last axis, the lower half of each first."""
    return np.stack([values & _LOW, values >> _HALF], axis=-1).reshape(*values.shape[:-1], -1)


def packed(values: Array, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    """Return a tensor of codes, of which two are packed into a byte where they have 4 bits."""
    if BITS[dtype] > _HALF:
        return ir.tensor(np.ascontiguousarray(values, dtype.numpy()), name=name)
    return ir.PackedTensor(_in_halves(values), dtype, shape=ir.Shape(values.shape), name=name)


def unpacked(tensor: ir.TensorProtocol) -> Integers:
    """Return the codes of a tensor, one by one."""
    codes: Integers = np.asarray(tensor.numpy()).astype(np.int16)
    return codes


def seen_as(tensor: ir.TensorProtocol, dtype: ir.DataType, shape: tuple[int, ...], name: str) -> ir.TensorProtocol:
    """Return the bytes of a tensor as elements of another type; they stay in their file or array."""
    if isinstance(tensor, Elsewhere):
        return tensor.seen_as(dtype, shape, name)
    data = _bytes_in(tensor)
    if dtype.itemsize < 1:
        return ir.PackedTensor(data, dtype, shape=ir.Shape(shape), name=name)
    return ir.Tensor(data.view(dtype.numpy()).reshape(shape), dtype, name=name)


def _bytes_in(tensor: ir.TensorProtocol) -> Bytes:
    if isinstance(tensor, ir.PackedTensor):
        return tensor.numpy_packed().reshape(-1)
    if isinstance(tensor, ir.Tensor) and tensor.dtype.itemsize >= 1:
        return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
    return np.frombuffer(tensor.tobytes(), np.uint8)


def bytes_of(name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return codes of this name, or zeros, as nodes read them that take them panel by panel."""
    return seen_as(tensor, ir.DataType.UINT8, (tensor.nbytes,), f"{name}{CODES_SUFFIX}")


def quantized(rows_of: Callable[[int, int], Floats], shape: tuple[int, int], bits: int, size: int, name: str) -> Blocks:
    """Return a matrix in blocks of signed codes: the number of a block that is farthest from 0 has the least code.

    So ONNX Runtime's quantizer does it (`quant_slice_symmetric` of its matmul_nbits_quantizer.py). Some rows at a time
    are floats: the matrix may be most of a model.

    Args:
        rows_of: returns the matrix's rows from one to before another one; each row is asked for once.
        shape: of the matrix; a row has whole bytes of codes.
        bits: of a code.
        size: columns of a block.
        name: of the codes.
    """
    rows, columns = shape
    dtype = ir.DataType.INT4 if bits == _HALF else ir.DataType.INT8
    codes = np.empty((rows, columns * bits // 8), np.uint8)
    scales = np.empty((rows, blocks_of_row(columns, size)), np.float32)
    step = max(1, _FLOATS_AT_ONCE // max(1, columns))
    for start in range(0, rows, step):
        end = min(rows, start + step)
        whole, scales[start:end] = _rounded(rows_of(start, end), bits, size)
        data = _in_halves(whole) if bits == _HALF else whole.view(np.uint8)
        codes[start:end] = data.reshape(end - start, -1)
    if bits == _HALF:
        return Blocks(ir.PackedTensor(codes.ravel(), dtype, shape=ir.Shape(shape), name=name), scales, None, size)
    return Blocks(ir.tensor(codes.view(np.int8), name=name), scales, None, size)


def _rounded(floats: Floats, bits: int, size: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """Return the codes of some rows, and their scales."""
    rows, columns = floats.shape
    count, middle = blocks_of_row(columns, size), 1 << (bits - 1)
    padded = np.pad(floats, ((0, 0), (0, count * size - columns))).reshape(rows, count, size)
    low, high = padded.min(-1), padded.max(-1)
    scales = (np.where(np.abs(high) > np.abs(low), high, low) / np.float32(-middle)).astype(np.float32)
    codes = np.rint(padded / np.where(scales == 0, np.float32(1), scales)[..., None]).clip(-middle, middle - 1)
    return codes.reshape(rows, -1)[:, :columns].astype(np.int8), scales


def _in_halves(values: Array) -> Bytes:
    """Return bytes of two codes each, the first in the lower half."""
    flat: Bytes = values.astype(np.int8).view(np.uint8).ravel() & np.uint8(_LOW)
    flat = np.append(flat, np.zeros(1, np.uint8)) if flat.size % 2 else flat
    return flat[::2] | flat[1::2] << np.uint8(_HALF)
