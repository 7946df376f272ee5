"""Weights of a few bits, as quantizers and exporters write them, into plain ONNX: DequantizeLinear, and a product.

Rules:
    Q1. A MatMulNBits becomes a product with the transposed weight, a GatherBlockQuantized a Gather; what is added to
        the product is added behind it. `accuracy_level` asks for coarser arithmetic, which no training has.
    Q2. A DequantizeLinear of a constant matrix with blocks along its columns, which products alone read, becomes one of
        the transposed matrix: so every weight lies as Blocks has it.
    Q3. Each reader has a DequantizeLinear of its own, as ONNX Runtime would write it on loading.
    Q4. A table that an embedding and a head have in common is there once.
    Q5. A weight loses what a quantizer put behind its name, if that is free: it goes by the name of the float one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import InputError
from poet_onnx.graph.extract import constant_array
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.passes.node_builder import replace_nodes
from poet_onnx.passes.quantized.blocks import (
    BITS,
    LEAST_BLOCK,
    Blocks,
    Floats,
    Integers,
    blocks_of_row,
    halves,
    packed,
    seen_as,
    unpacked,
)

_BYTE = 8
_WIDTHS = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}
_ENDINGS = ((re.compile(r"(_DQ)?_Q[48]$"), ""), (re.compile(r"\.qweight$"), ".weight"))
_PRODUCTS = ("MatMul", "Gemm")


class UnfuseQuantized(InPlacePass):
    """Write weights of a few bits as plain ONNX (Q1 to Q5).

    Requires a graph without functions, of opset 21 or later.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Write the nodes.

        Raises:
            InputError: naming a node whose weight is quantized in a way that is not known.
        """
        graph = model.graph
        weights = _Weights(graph)
        modified = False
        for node in list(graph):
            rule = _RULES.get(node.op_type)
            home = ONNX_DOMAINS if node.op_type == "DequantizeLinear" else (MICROSOFT_DOMAIN,)
            if rule is not None and node.domain in home:
                modified = rule(weights, node) or modified
        for value in weights.replaced:
            if not value.uses() and not value.is_graph_output():
                graph.initializers.pop(value.name or "", None)
        return PassResult(model, modified=modified)


def is_quantized(graph: ir.Graph) -> bool:
    """Return whether a graph has operators that this pass replaces, and older opsets have nothing for."""
    return any(node.domain == MICROSOFT_DOMAIN and node.op_type in _RULES for node in graph)


class _RefusalError(Exception):
    """Why a weight cannot be read, as the end of a sentence."""


class _Weights:
    """The weights of a graph that are written anew."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.replaced: dict[ir.Value, None] = {}
        """Initializers that were read."""
        self._made: dict[tuple[object, ...], tuple[tuple[ir.Value, ...], int]] = {}
        self._names = {value.name for node in graph for value in node.outputs} | set(graph.initializers)
        self._names |= {value.name for value in graph.inputs}

    def constant(self, node: ir.Node, index: int, what: str) -> ir.Value:
        """Return the initializer that an input is, or is a view of."""
        value = node.inputs[index] if index < len(node.inputs) else None
        maker = None if value is None else value.producer()
        while maker is not None and maker.op_type in ("Reshape", "Identity"):
            value = maker.inputs[0]
            maker = None if value is None else value.producer()
        if value is None or not value.is_initializer() or value.const_value is None:
            raise _RefusalError(f"its {what} is no constant")
        self.replaced[value] = None
        return value

    def array(self, node: ir.Node, index: int, what: str) -> npt.NDArray[Any] | None:
        """Return the numbers of an input that may be absent."""
        if index >= len(node.inputs) or node.inputs[index] is None:
            return None
        value = self.constant(node, index, what)
        array: npt.NDArray[Any] = constant_array(value.name or "", value.const_value)
        return array

    def dequantized(self, node: ir.Node, source: ir.Value, blocks: Blocks) -> ir.Value:
        """Write what makes floats of a weight in front of a node (Q3), and return those.

        Args:
            node: that reads the weight.
            source: the initializer that the weight was read from.
            blocks: the weight.
        """
        key = blocks.shape, blocks.size, blocks.codes.dtype, *map(_digest, _parts(blocks))
        if key not in self._made:
            self._made[key] = blocks.write(self.graph, self._named(source)), 0
        inputs, count = self._made[key]
        self._made[key] = inputs, count + 1
        attributes = [ir.AttrInt64("axis", 1), ir.AttrInt64("block_size", blocks.size)]
        name = f"{inputs[0].name}/DequantizeLinear" + (f"_{count}" if count else "")
        made = ir.Node("", "DequantizeLinear", inputs, attributes, num_outputs=1, name=name)
        made.outputs[0].name = f"{name}_output"
        self.graph.insert_before(node, made)
        return made.outputs[0]

    def _named(self, source: ir.Value) -> str:
        """Return the name of a weight (Q5)."""
        name = source.name or ""
        for ending, other in _ENDINGS:
            plain = ending.sub(other, name)
            if plain != name and plain not in self._names:
                self._names.add(plain)
                return plain
        del self.graph.initializers[name]
        source.name = f"{name}/as given"
        self.graph.register_initializer(source)
        return name


def _parts(blocks: Blocks) -> tuple[bytes, ...]:
    zeros = b"" if blocks.zeros is None else blocks.zeros.tobytes()
    return blocks.codes.tobytes(), blocks.scales.tobytes(), zeros


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _unfused(rule: Callable[[_Weights, ir.Node], bool]) -> Callable[[_Weights, ir.Node], bool]:
    """Return a rule that says which node it could not read."""

    def told(weights: _Weights, node: ir.Node) -> bool:
        try:
            return rule(weights, node)
        except _RefusalError as reason:
            raise InputError(
                f"The weight of '{node.name}' ({node.op_type}) is quantized in a way that is not known: {reason}. "
                "Quantize it with blocks of 4 or 8 bits along what is summed up."
            ) from None

    return told


def _integer(node: ir.Node, name: str, default: int = 0) -> int:
    return node.attributes.get_int(name, default)


def _checked(size: int, bits: int) -> None:
    if bits not in _WIDTHS:
        raise _RefusalError(f"it has {bits} bits")
    if size < LEAST_BLOCK or size & (size - 1):
        raise _RefusalError(f"its blocks have {size} numbers")


@_unfused
def _product(weights: _Weights, node: ir.Node) -> bool:
    """Write a MatMulNBits (A, B, scales, zero_points, g_idx, bias) as a product."""
    rows, columns = _integer(node, "N"), _integer(node, "K")
    size, bits = _integer(node, "block_size"), _integer(node, "bits", 4)
    _checked(size, bits)
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        raise _RefusalError("its columns are reordered (g_idx)")
    if _integer(node, "weight_prepacked"):
        raise _RefusalError("its codes lie as a GPU reads them (weight_prepacked)")
    count = blocks_of_row(columns, size)
    source = weights.constant(node, 1, "weight")
    tensor = source.const_value
    assert tensor is not None
    if tensor.dtype != ir.DataType.UINT8 or tensor.size != rows * count * size * bits // _BYTE:
        raise _RefusalError(f"{tensor.size} codes of type {tensor.dtype} are no matrix of {rows}x{columns}")
    scales = _scales(weights.array(node, 2, "scale"), (rows, count))
    zeros = _zeros(weights.array(node, 3, "zero point"), (rows, count), bits)
    codes = _codes(tensor, (rows, columns), count * size, bits)
    floats = weights.dequantized(node, source, Blocks(codes, scales, zeros, size))
    name = re.sub(r"_Q[48]$", "", node.name or "")
    _write_product(weights.graph, node, floats, name)
    return True


def _write_product(graph: ir.Graph, node: ir.Node, floats: ir.Value, name: str) -> None:
    """Put nodes in the place of one that multiplies with a transposed weight."""
    turned = _transpose(floats, f"{name}/Transpose")
    product = ir.Node("", "MatMul", [node.inputs[0], turned.outputs[0]], num_outputs=1, name=name)
    product.metadata_props.update(node.metadata_props)
    nodes = [turned, product]
    bias = node.inputs[5] if len(node.inputs) > 5 else None
    if bias is not None:
        product.outputs[0].name = f"{name}/without bias"
        nodes.append(ir.Node("", "Add", [product.outputs[0], bias], num_outputs=1, name=f"{name}/Add"))
    replace_nodes(graph, [node], nodes, node.outputs)


def _transpose(floats: ir.Value, name: str) -> ir.Node:
    made = ir.Node("", "Transpose", [floats], [ir.AttrInt64s("perm", [1, 0])], num_outputs=1, name=name)
    made.outputs[0].name = f"{floats.name}/transposed"
    return made


def _codes(tensor: ir.TensorProtocol, shape: tuple[int, int], padded: int, bits: int) -> ir.TensorProtocol:
    """Return the codes of rows that are padded to whole blocks; of 8 bits where those of 4 would not fill bytes."""
    rows, columns = shape
    dtype, name = _WIDTHS[bits], tensor.name or ""
    if columns == padded:
        return seen_as(tensor, dtype, shape, name)
    data = np.frombuffer(tensor.tobytes(), np.uint8).reshape(rows, -1)
    if bits == _BYTE or columns % 2 == 0:
        kept = np.ascontiguousarray(data[:, : columns * bits // _BYTE])
        return seen_as(ir.tensor(kept), dtype, shape, name)
    return packed(halves(data)[:, :columns], ir.DataType.UINT8, name)


def _scales(array: object, shape: tuple[int, int]) -> Floats:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.size != shape[0] * shape[1]:
        raise _RefusalError("its scales are not float32, one for each block")
    return np.ascontiguousarray(array).reshape(shape)


def _zeros(array: object, shape: tuple[int, int], bits: int) -> Integers:
    """Return the zeros of blocks, which are in the middle where none are given."""
    rows, count = shape
    if array is None:
        return np.full(shape, 1 << (bits - 1), np.int16)
    row_bytes = -(-count * bits // _BYTE)
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.size != rows * row_bytes:
        raise _RefusalError("its zero points are not integers, packed as the weight is")
    data = np.ascontiguousarray(array).reshape(rows, row_bytes)
    return (data if bits == _BYTE else halves(data))[:, :count].astype(np.int16)


@_unfused
def _look_up(weights: _Weights, node: ir.Node) -> bool:
    """Write a GatherBlockQuantized (data, indices, scales, zero_points) as a Gather."""
    size, bits = _integer(node, "block_size", 128), _integer(node, "bits", 4)
    _checked(size, bits)
    source = weights.constant(node, 0, "table")
    tensor = source.const_value
    assert tensor is not None
    given = node.inputs[0]
    shape = tuple(tensor.shape.numpy()) if given is source or given is None or given.shape is None else given.shape
    if len(shape) != 2 or _integer(node, "gather_axis") != 0 or _integer(node, "quantize_axis", 1) not in (1, -1):
        raise _RefusalError("it is no table whose rows are taken, and have blocks")
    rows, width = (int(each) for each in shape if isinstance(each, int))
    zeros: Integers | None
    if tensor.dtype == ir.DataType.UINT8:
        columns = width * _BYTE // bits
        codes = seen_as(tensor, _WIDTHS[bits], (rows, columns), source.name or "")
        count = blocks_of_row(columns, size)
        zeros = _zeros(weights.array(node, 3, "zero point"), (rows, count), bits)
    elif tensor.dtype in BITS:
        columns, codes, count = width, _in_bytes(tensor), blocks_of_row(width, size)
        zeros = _plain_zeros(weights.array(node, 3, "zero point"), (rows, count))
    else:
        raise _RefusalError(f"its codes are of type {tensor.dtype}")
    scales = _scales(weights.array(node, 2, "scale"), (rows, count))
    floats = weights.dequantized(node, source, Blocks(codes, scales, zeros, size))
    found = ir.Node("", "Gather", [floats, node.inputs[1]], num_outputs=1, name=re.sub(r"_Q[48]$", "", node.name or ""))
    found.metadata_props.update(node.metadata_props)
    replace_nodes(weights.graph, [node], [found], node.outputs)
    return True


def _plain_zeros(array: object, shape: tuple[int, int]) -> Integers | None:
    """Return zeros that have the type of the codes."""
    if array is None:
        return None
    if not isinstance(array, np.ndarray) or array.shape != shape:
        raise _RefusalError("it has not one zero point for each block")
    return array.astype(np.int16)


def _dequantize(weights: _Weights, node: ir.Node) -> bool:
    """Let a weight lie as it is read (Q2), and each of its readers have it by itself (Q3)."""
    source = node.inputs[0]
    tensor = None if source is None else source.const_value
    size, axis = _integer(node, "block_size"), _integer(node, "axis", 1)
    if source is None or tensor is None or tensor.dtype not in BITS or len(tensor.shape) != 2 or size < LEAST_BLOCK:
        return False
    readers = [(reader, index) for reader, index in node.outputs[0].uses()]
    are_products = all(reader.op_type in _PRODUCTS and index == 1 for reader, index in readers)
    turns = axis in (0, -2)
    if node.outputs[0].is_graph_output() or (turns and not are_products):
        return False
    blocks = _read(weights, node, tensor, size, turns=turns)
    if blocks is None:
        return False
    weights.replaced.update(dict.fromkeys(value for value in node.inputs if value is not None))
    for number, (reader, index) in enumerate(readers):
        floats = weights.dequantized(reader, source, blocks)
        if turns:
            turned = _transpose(floats, f"{floats.name}/Transpose_{number}")
            weights.graph.insert_before(reader, turned)
            floats = turned.outputs[0]
        reader.replace_input_with(index, floats)
    weights.graph.remove(node, safe=True)
    return True


def _read(weights: _Weights, node: ir.Node, tensor: ir.TensorProtocol, size: int, *, turns: bool) -> Blocks | None:
    """Return what a DequantizeLinear reads; None where that has no blocks of columns, or no constant."""
    try:
        scales = weights.array(node, 1, "scale")
        zeros = weights.array(node, 2, "zero point")
    except _RefusalError:
        return None
    rows, columns = tensor.shape.numpy()[::-1] if turns else tensor.shape.numpy()
    shape = rows, blocks_of_row(columns, size)
    given = shape[::-1] if turns else shape
    is_known = scales is not None and scales.dtype == np.float32 and scales.shape == given
    if not is_known or (zeros is not None and zeros.shape != given) or scales is None:
        return None
    codes: ir.TensorProtocol = tensor
    known: Integers | None = None
    if zeros is not None:
        known = np.ascontiguousarray(zeros.T if turns else zeros).astype(np.int16)
    if turns:
        codes = packed(unpacked(tensor).T, tensor.dtype, tensor.name or "")
        scales = scales.T
    return Blocks(_in_bytes(codes), np.ascontiguousarray(scales, np.float32), known, size)


def _in_bytes(codes: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return codes whose rows begin with a byte: a byte for each where rows of 4 bits would not."""
    if BITS[codes.dtype] == _BYTE or codes.shape.numpy()[1] % 2 == 0:
        return codes
    wide = ir.DataType.INT8 if codes.dtype == ir.DataType.INT4 else ir.DataType.UINT8
    return packed(unpacked(codes), wide, codes.name or "")


_RULES: Mapping[str, Callable[[_Weights, ir.Node], bool]] = {
    "MatMulNBits": _product,
    "GatherBlockQuantized": _look_up,
    "DequantizeLinear": _dequantize,
}
