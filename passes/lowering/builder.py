"""The builder of a lowering: its rule reads a node, and writes the nodes that take that one's place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from poet_onnx.errors import quoted
from poet_onnx.graph.shapes import Inferred
from poet_onnx.passes.node_builder import Replacement

FLOAT, DOUBLE, INT64, BOOL = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.BOOL
MICROSOFT = "com.microsoft"


class UnsupportedError(Exception):
    """A rule cannot express a node; says why, as the end of a sentence."""


class LoweringBuilder(Replacement):
    """A node to be lowered: its inputs and types, and methods that write new nodes before it.

    Rules read the node and write its substitute with `op`; what is to stand for an output goes to `give`.
    """

    refused = UnsupportedError

    def __init__(self, graph: ir.Graph, node: ir.Node, inferred: Inferred, *, kernels: bool) -> None:
        super().__init__(graph, node, inferred)
        self.kernels = kernels
        """Whether operators of poet-onnx may be used, which write in place or do in one pass what others cannot."""

    def output_shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an output."""
        return self._inferred.types[self.node.outputs[index].name or ""].shape

    def number(self, value: float, like: int = 0) -> ir.Value:
        """Return a constant of no dimensions, of the element type of an input."""
        return self.constant(np.array(value, self.type(like).dtype.numpy()))

    def zeros(self, shape: Sequence[int], dtype: ir.DataType) -> ir.Value:
        """Return a tensor of zeros that exists only from here on."""
        fill = ir.tensor(np.zeros(1, dtype.numpy()), name="value")
        return self.op("ConstantOfShape", self.ints(*shape), value=fill)

    def sum(self, value: ir.Value, *axes: int, keep: bool = True) -> ir.Value:
        """Sum over axes; over none, the value itself."""
        if not axes:
            return value
        return self.reduce_sum(value, axes, keep=keep)


Rule: TypeAlias = Callable[[LoweringBuilder], None]
Rules: TypeAlias = Mapping[str, Rule]


_SHOWN_NODES = 3


def list_nodes(found: Mapping[str, Sequence[str]]) -> str:
    """Return a list in words of operators, or what is to be said of them, each with the first of its nodes."""
    return "; ".join(f"{what} in {quoted(names, _SHOWN_NODES)}" for what, names in sorted(found.items()))
