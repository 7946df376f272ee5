"""Weights of a few bits in each form that files have them in, and the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from poet_onnx import TrainGraph

Array = npt.NDArray[Any]
MS = "com.microsoft"


def pack(codes: Array) -> Array:
    """Return two codes a byte, the first in its lower half; an odd last one has a byte for itself."""
    padded = np.concatenate([codes, np.zeros((*codes.shape[:-1], codes.shape[-1] % 2), codes.dtype)], -1)
    return (padded[..., ::2] | padded[..., 1::2] << 4).astype(np.uint8)


@dataclass(frozen=True)
class Weight:
    """A random matrix, quantized in blocks along its rows.

    Attributes:
        rows, columns: of it.
        size: of a block.
        bits: of a code.
        has_zeros: whether each block has a zero of its own; otherwise it is in the middle.
    """

    rows: int
    columns: int
    size: int = 32
    bits: int = 4
    has_zeros: bool = False

    @property
    def count(self) -> int:
        """Return how many blocks a row has."""
        return -(-self.columns // self.size)

    @property
    def codes(self) -> Array:
        """Return the codes."""
        return self._random(0, self.rows, self.columns)

    @property
    def scales(self) -> Array:
        """Return the scales."""
        return np.random.default_rng(1).uniform(0.02, 0.1, (self.rows, self.count)).astype(np.float32)

    @property
    def zeros(self) -> Array:
        """Return the zeros."""
        middle = np.full((self.rows, self.count), 1 << (self.bits - 1), np.uint8)
        return self._random(2, self.rows, self.count) if self.has_zeros else middle

    @property
    def floats(self) -> Array:
        """Return the numbers, each rounded once."""
        repeated = [np.repeat(each, self.size, 1)[:, : self.columns] for each in (self.zeros, self.scales)]
        return (self.codes.astype(np.int32) - repeated[0]).astype(np.float32) * repeated[1]

    def _random(self, seed: int, *shape: int) -> Array:
        return np.random.default_rng(seed).integers(0, 1 << self.bits, shape).astype(np.uint8)

    def _packed(self, codes: Array) -> Array:
        return pack(codes) if self.bits == 4 else codes

    def matmul_nbits(self, x: str, y: str, name: str, bias: str = "") -> tuple[NodeProto, list[TensorProto]]:
        """Return a MatMulNBits of the transposed matrix, and its initializers."""
        padded = np.pad(self.codes, ((0, 0), (0, self.count * self.size - self.columns)))
        given = {
            f"{name}_Q{self.bits}": self._packed(padded).reshape(self.rows, self.count, -1),
            f"{name}_scales": self.scales.reshape(-1),
        }
        if self.has_zeros:
            given[f"{name}_zero_points"] = self._packed(self.zeros).reshape(-1)
        inputs = [x, *given, *([] if self.has_zeros or not bias else [""]), *(["", bias] if bias else [])]
        node = helper.make_node(
            "MatMulNBits",
            inputs,
            [y],
            f"{name}_node_Q{self.bits}",
            domain=MS,
            K=self.columns,
            N=self.rows,
            bits=self.bits,
            block_size=self.size,
        )
        return node, [numpy_helper.from_array(array, key) for key, array in given.items()]

    def gather(self, ids: str, y: str, name: str, *, in_bytes: bool = True) -> tuple[NodeProto, list[TensorProto]]:
        """Return a GatherBlockQuantized of the table, and its initializers."""
        if in_bytes:
            given = {f"{name}_Q{self.bits}": self._packed(self.codes), f"{name}_scales": self.scales}
            if self.has_zeros:
                given[f"{name}_zero_points"] = self._packed(self.zeros)
        else:
            kind = ml_dtypes.uint4
            given = {f"{name}_Q4": self.codes.astype(kind), f"{name}_scales": self.scales}
            given[f"{name}_zero_points"] = self.zeros.astype(kind)
        names = list(given)
        node = helper.make_node(
            "GatherBlockQuantized",
            [names[0], ids, *names[1:]],
            [y],
            f"{name}_node_Q{self.bits}",
            domain=MS,
            block_size=self.size,
            bits=self.bits,
        )
        return node, [numpy_helper.from_array(array, key) for key, array in given.items()]

    def dequantized(self, y: str, name: str, *, turned: bool, signed: bool) -> tuple[NodeProto, list[TensorProto]]:
        """Return a DequantizeLinear of the matrix, or of the transposed one, and its initializers."""
        middle = 1 << (self.bits - 1) if signed else 0
        kinds: dict[tuple[int, bool], Any] = {
            (4, True): ml_dtypes.int4,
            (4, False): ml_dtypes.uint4,
            (8, True): np.int8,
            (8, False): np.uint8,
        }
        kind = kinds[self.bits, signed]
        arrays = [self.codes.astype(np.int16) - middle, self.scales, self.zeros.astype(np.int16) - middle]
        arrays = [np.ascontiguousarray(array.T) if turned else array for array in arrays]
        given = {f"{name}_DQ_Q{self.bits}": arrays[0].astype(kind), f"{name}_DQ_scales": arrays[1]}
        if self.has_zeros or not signed:
            given[f"{name}_DQ_zero_points"] = arrays[2].astype(kind)
        node = helper.make_node(
            "DequantizeLinear", list(given), [y], f"{name}_DQ", axis=0 if turned else 1, block_size=self.size
        )
        return node, [numpy_helper.from_array(array, key) for key, array in given.items()]


def model_of(
    nodes: Sequence[NodeProto],
    initializers: Sequence[TensorProto],
    x: tuple[str, int, Sequence[int]],
    y: tuple[str, Sequence[int]],
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model of nodes with one input and one output of floats."""
    graph = helper.make_graph(
        nodes,
        "quantized",
        [helper.make_tensor_value_info(*x)],
        [helper.make_tensor_value_info(y[0], TensorProto.FLOAT, y[1])],
        initializers,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 21 else 10)


def product_model(weight: Weight, *, bias: bool = False, samples: Sequence[int] = (2, 5)) -> onnx.ModelProto:
    """Return a MatMulNBits of a weight named w."""
    node, initializers = weight.matmul_nbits("x", "y", "w", "b" if bias else "")
    if bias:
        initializers.append(numpy_helper.from_array(bias_of(weight), "b"))
    sizes = (*samples, weight.columns), (*samples, weight.rows)
    return model_of([node], initializers, ("x", TensorProto.FLOAT, sizes[0]), ("y", sizes[1]))


def bias_of(weight: Weight) -> Array:
    """Return a bias for the products with a weight."""
    return np.random.default_rng(3).standard_normal(weight.rows).astype(np.float32)


BODY = Weight(64, 48, size=16, has_zeros=True)
TABLE = Weight(30, 64)
GAIN = np.linspace(0.5, 1.5, TABLE.columns, dtype=np.float32)
UP = np.random.default_rng(5).standard_normal((TABLE.columns, BODY.columns)).astype(np.float32) / 8


def decoder(table: Weight = TABLE, body: Weight = BODY, *, transposed: bool = False) -> onnx.ModelProto:
    """Return an embedding, a layer with a norm before it, and the embedding once more as the head.

    The layer comes as a quantizer writes it, as one operator or, transposed, as two.
    """
    shape = (2, 3, table.rows)
    up = UP if body is BODY else np.resize(UP, (table.columns, body.columns))
    gain = np.resize(GAIN, table.columns)
    nodes, initializers = [], []
    plain = body.dequantized("d", "body.weight", turned=True, signed=False) if transposed else None
    forward = [
        table.gather("ids", "e", "embed.weight"),
        (helper.make_node("LayerNormalization", ["e", "g"], ["n"], "norm"), [numpy_helper.from_array(gain, "g")]),
        (helper.make_node("MatMul", ["n", "up"], ["p"], "up"), [numpy_helper.from_array(up, "up")]),
        *([plain] if plain is not None else []),
        (
            (helper.make_node("MatMul", ["p", "d"], ["h"], "body"), [])
            if transposed
            else body.matmul_nbits("p", "h", "body.weight")
        ),
        table.matmul_nbits("h", "y", "head.weight"),
    ]
    for node, own in forward:
        nodes.append(node)
        initializers += own
    return model_of(nodes, initializers, ("ids", TensorProto.INT64, shape[:2]), ("y", shape), 21 if transposed else 17)


def floats_of(made: TrainGraph) -> dict[str, np.ndarray[Any, Any]]:
    """Return the numbers of each quantized weight, by the formula of DequantizeLinear."""
    found = {}
    constants = {value.name: value.const_value for value in made.training.graph.initializers.values()}
    for node in made.training.graph:
        if node.op_type == "DequantizeLinear":
            codes, scales, *zeros = (
                np.asarray(tensor.numpy()) for value in node.inputs if value and (tensor := constants[value.name])
            )
            size = node.attributes["block_size"].as_int()
            repeated = [np.repeat(each, size, 1)[:, : codes.shape[1]] for each in (scales, *zeros)]
            zero = repeated[1].astype(np.float64) if zeros else 0.0
            name = node.inputs[0] and node.inputs[0].name
            found[name or ""] = (codes.astype(np.float64) - zero) * repeated[0].astype(np.float64)
    return found
