"""Frozen floats of a forward graph become weights of few bits, which their readers read through a DequantizeLinear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.graph.extract import constant_array
from poet_onnx.passes.quantized.blocks import quantized


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
        array = np.asarray(constant_array(name, value.const_value), np.float32)
        blocks = quantized(array.T if weight.turns else array, self._bits, self._size, name)
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
