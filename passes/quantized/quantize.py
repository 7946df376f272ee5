"""Frozen floats of a forward graph become weights of few bits, which their readers read through a DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.files.embedded import Elsewhere
from poet_onnx.graph.extract import constant_array, constant_view
from poet_onnx.passes.quantized.blocks import Floats, quantized


@dataclass(frozen=True)
class Quantizable:
    """A matrix that is to have few bits.

    Attributes:
        value: the initializer.
        turns: whether what is summed up in products runs along its first dimension, and blocks with it.
    """

    value: ir.Value
    turns: bool


class QuantizeWeights(InPlacePass):
    """Quantize some matrices. Requires opset 21 or later, and matrices whose rows have whole bytes of codes."""

    def __init__(self, weights: tuple[Quantizable, ...], bits: int, size: int) -> None:
        """Set which, the bits of a code, and how many have one scale."""
        super().__init__()
        self._weights, self._bits, self._size = weights, bits, size

    def call(self, model: ir.Model) -> PassResult:
        """Write the nodes; the codes take over the weight's name."""
        for weight in self._weights:
            self._write(model.graph, weight)
        return PassResult(model, modified=bool(self._weights))

    def _write(self, graph: ir.Graph, weight: Quantizable) -> None:
        value, name = weight.value, weight.value.name or ""
        rows_of, shape = _rows(name, value.const_value, turns=weight.turns)
        blocks = quantized(rows_of, shape, self._bits, self._size, name)
        del rows_of  # and with it the last that holds the floats
        uses = tuple(value.uses())
        del graph.initializers[name]
        value.const_value = None  # whose name is that of the message that it was read from
        value.name = f"{name}/floats"
        inputs = blocks.write(graph, name)
        attributes = [ir.AttrInt64("axis", 1), ir.AttrInt64("block_size", self._size)]
        for number, (node, index) in enumerate(uses):
            made = ir.Node("", "DequantizeLinear", inputs, attributes, num_outputs=1, name=f"{name}/floats_{number}")
            nodes = [made]
            if weight.turns:
                perm = [ir.AttrInt64s("perm", [1, 0])]
                nodes.append(
                    ir.Node("", "Transpose", made.outputs, perm, num_outputs=1, name=f"{name}/turned_{number}")
                )
            for each in nodes:
                each.outputs[0].name = f"{each.name}_output"
            graph.insert_before(node, nodes)
            node.replace_input_with(index, nodes[-1].outputs[0])


def _rows(
    name: str, tensor: ir.TensorProtocol | None, *, turns: bool
) -> tuple[Callable[[int, int], Floats], tuple[int, int]]:
    """Return what returns rows of a matrix, or columns where it turns, and how many rows and columns that gives."""
    if isinstance(tensor, Elsewhere) and not turns:
        rows, columns = tensor.shape.numpy()
        # what was read of the file leaves the process's memory with each part
        return lambda start, end: _part(tensor, start, end, columns), (rows, columns)
    array = np.asarray(constant_view(name, tensor), np.float32)
    matrix = array.T if turns else array
    return lambda start, end: matrix[start:end], (matrix.shape[0], matrix.shape[1])


def _part(tensor: Elsewhere, start: int, end: int, columns: int) -> Floats:
    part = tensor.part(start * columns, (end - start, columns), tensor.name or "")
    return np.asarray(constant_array(tensor.name or "", part), np.float32)
