"""Products on panels of weights of few bits, in place of floats of whole ones.

Rules:
    B1. Each product with what a DequantizeLinear makes of a constant matrix with blocks along its rows, or with that
        transposed, becomes a LinearQuantized, and a Gather of its rows a GatherQuantized. The loss of a language model
        takes codes, too, if there is a row for each word. Other readers read floats.
    B2. Panels keep the bits of whole products for shapes for which they do on the machine that rewrites; larger panels
        are tried before the product stays whole. A matrix that is large is compared in part.
    B3. The model has what repeats the comparison on the machine that trains.
    B4. Codes become bytes, in their order; so do zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.operators.linear import panel_rows
from poet_onnx.graph.operators.quantized import GATHER, LINEAR
from poet_onnx.graph.operators.vocabulary import FLOAT_BITS, LOSS, MATRIX, WITH_GRADIENT
from poet_onnx.passes.matrix_products import TIMES, product_of
from poet_onnx.passes.node_builder import tensor_initializer
from poet_onnx.passes.panel_comparison import ACROSS, AnyComparison, Comparison, note_comparisons
from poet_onnx.passes.quantized.blocks import BITS, bytes_of
from poet_onnx.passes.views import replace_node, takes_rows

_WHOLE_BYTES = 64 << 20
"""Floats of the largest matrix that is compared as a whole; the part that is compared of others has many panels."""

_BYTE, _FLOAT_BYTES = 8, 4


@dataclass(frozen=True)
class _Matrix:
    """A constant matrix of few bits.

    Attributes:
        node: the DequantizeLinear.
        shape: rows and columns.
        dtype: of the codes.
        block: codes with one scale.
    """

    node: ir.Node
    shape: tuple[int, int]
    dtype: ir.DataType
    block: int

    @classmethod
    def of(cls, node: ir.Node) -> _Matrix | None:
        """Return what a node makes floats of; None where that is no such matrix."""
        codes = node.inputs[0] if node.op_type == "DequantizeLinear" and node.domain in ONNX_DOMAINS else None
        block = node.attributes.get_int("block_size", 0)
        are_constant = all(value is not None and value.const_value is not None for value in node.inputs)
        if codes is None or not are_constant or codes.dtype not in BITS or codes.shape is None or block < 1:
            return None
        sizes, in_byte = tuple(codes.shape.numpy()), _BYTE // BITS[codes.dtype]
        if len(sizes) != 2 or node.attributes.get_int("axis", 1) not in (1, -1) or node.outputs[0].is_graph_output():
            return None
        block = min(block, sizes[1])
        return None if sizes[1] % in_byte or block % in_byte else cls(node, (sizes[0], sizes[1]), codes.dtype, block)

    @property
    def attributes(self) -> list[ir.Attr]:
        """Return what nodes that read it say of it."""
        is_signed = self.dtype in (ir.DataType.INT4, ir.DataType.INT8)
        numbers = {"bits": BITS[self.dtype], "block": self.block, "signed": is_signed, "zeroed": self.has_zeros}
        return [ir.AttrInt64s("matrix", self.shape), *(ir.AttrInt64(name, int(n)) for name, n in numbers.items())]

    @property
    def has_zeros(self) -> bool:
        """Whether its blocks have zeros of their own."""
        return len(self.node.inputs) > 2

    def readers(self) -> Iterator[tuple[ir.Node, int, bool]]:
        """Yield what reads it, through transpositions too, and whether it is transposed there."""
        pending = [(self.node.outputs[0], False)]
        while pending:
            value, is_transposed = pending.pop()
            for node, index in value.uses():
                if _turns(node) and not node.outputs[0].is_graph_output():
                    pending.append((node.outputs[0], not is_transposed))
                else:
                    yield node, index, is_transposed


def has_blocks(graph: ir.Graph) -> bool:
    """Return whether a graph has weights of few bits that a node makes floats of."""
    return any(_Matrix.of(node) is not None for node in graph)


class UseQuantizedPanels(InPlacePass):
    """Let products read weights of few bits panel by panel (B1 to B4). Requires a graph with static shapes."""

    def __init__(self, keeps_bits: Callable[[AnyComparison], bool]) -> None:
        """Set what says whether panels have the bits of a whole product."""
        super().__init__()
        self._keeps_bits = keeps_bits

    def call(self, model: ir.Model) -> PassResult:
        """Write the nodes, and what repeats their comparison."""
        graph = model.graph
        done: dict[AnyComparison, None] = {}
        modified = False
        for node in list(graph):
            matrix = _Matrix.of(node)
            for reader, index, is_transposed in list(matrix.readers()) if matrix is not None else ():
                assert matrix is not None
                if takes_rows(reader, index) and not is_transposed:
                    inputs = [reader.inputs[1], *self._inputs(graph, matrix)]
                    replace_node(reader, GATHER, inputs, matrix.attributes, [reader.outputs[0]])
                    modified = True
                elif _is_vocabulary(reader, index) and not is_transposed:
                    self._give_codes(graph, matrix, reader)
                    modified = True
                else:
                    found = self._write_product(graph, matrix, reader, index, is_transposed=is_transposed)
                    done |= dict.fromkeys(found)
                    modified = modified or bool(found)
        if modified:
            graph.opset_imports[POET_DOMAIN] = POET_VERSION
            _remove_unread(graph)
        note_comparisons(model, done)
        return PassResult(model, modified=modified)

    def _give_codes(self, graph: ir.Graph, matrix: _Matrix, reader: ir.Node) -> None:
        """Let a loss read codes; it takes the same panels of a matrix in any case."""
        inputs = [*reader.inputs[:MATRIX], *self._inputs(graph, matrix), *reader.inputs[MATRIX + 1 :]]
        own = [each for name, each in reader.attributes.items() if name not in ("matrix", "bits")]
        replace_node(reader, reader.op_type, inputs, [*matrix.attributes, *own], list(reader.outputs))

    def _write_product(
        self, graph: ir.Graph, matrix: _Matrix, reader: ir.Node, index: int, *, is_transposed: bool
    ) -> tuple[Comparison, ...]:
        """Write a product on panels; return the comparison that is to be repeated, and nothing where it stays whole."""
        product = product_of(reader, index, is_transposed=is_transposed)
        if product is None:
            return ()
        usual = panel_rows(matrix.shape[1])
        is_large = _FLOAT_BYTES * math.prod(matrix.shape) > _WHOLE_BYTES
        for panel in (times * usual for times in TIMES):
            comparison = product.comparison(matrix.shape, panel)
            repeated = comparison.where_it_trains
            if not all(map(self._keeps_bits, dict.fromkeys((repeated if is_large else comparison, repeated)))):
                continue
            biases = [] if product.bias is None else [product.bias]
            own = {"panel_rows": panel, "transposed": product.way == ACROSS, "biased": len(biases)}
            attributes = [*matrix.attributes, *(ir.AttrInt64(name, int(number)) for name, number in own.items())]
            inputs = [product.operand, *self._inputs(graph, matrix), *biases]
            replace_node(reader, LINEAR, inputs, attributes, [reader.outputs[0]])
            return (repeated,)
        return ()

    @staticmethod
    def _inputs(graph: ir.Graph, matrix: _Matrix) -> list[ir.Value]:
        """Return codes, scales and zeros as the nodes read them."""
        codes, scales, *zeros = (value for value in matrix.node.inputs if value is not None)
        return [_in_bytes(graph, codes), scales, *(_in_bytes(graph, value) for value in zeros)]


def _in_bytes(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Return an initializer with the bytes of another one."""
    assert value.const_value is not None
    tensor = bytes_of(value.name or "", value.const_value)
    known = graph.initializers.get(tensor.name or "")
    return tensor_initializer(graph, tensor) if known is None else known


def _turns(node: ir.Node) -> bool:
    is_transpose = node.op_type == "Transpose" and node.domain in ONNX_DOMAINS
    return is_transpose and tuple(node.attributes.get_ints("perm", (1, 0))) == (1, 0)


def _is_vocabulary(node: ir.Node, index: int) -> bool:
    """Return whether a node reads a matrix of floats that has a row for each word."""
    is_loss = node.domain == POET_DOMAIN and node.op_type in (LOSS, WITH_GRADIENT) and index == MATRIX
    has_rows = bool(node.attributes.get_int("transposed", 0))
    return is_loss and has_rows and node.attributes.get_int("bits", FLOAT_BITS) == FLOAT_BITS


def _remove_unread(graph: ir.Graph) -> None:
    """Remove floats of weights that nobody reads any more, and the weights as these were read."""
    for node in reversed(list(graph)):
        is_read = any(value.uses() or value.is_graph_output() for value in node.outputs)
        if is_read or not (node.op_type == "DequantizeLinear" or _turns(node)):
            continue
        given = [value for value in node.inputs if value is not None]
        graph.remove(node, safe=True)
        for value in given:
            if value.is_initializer() and not value.uses() and not value.is_graph_output():
                graph.initializers.pop(value.name or "", None)
