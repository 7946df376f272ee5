"""Writes the nodes and inputs of a loss behind a forward graph; names of losses that more than one place asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.graph import Role
from poet_onnx.graph.extract.roles import say_role
from poet_onnx.passes.node_builder import initializer

SECOND, LAST = "cross-entropy", "cross-entropy-last"
"""Cross-entropy of scores [N, C, ...], as ONNX and torch have it, and of [N, ..., C], as language models have them."""

CAUSAL = "causal-lm"
"""Cross-entropy of scores [N, tokens, C] with the tokens that follow: labels are the tokens themselves."""


class LossBuilder:
    """Writes nodes behind a graph, under names that are free."""

    def __init__(self, graph: ir.Graph, dtype: ir.DataType, *, named: bool) -> None:
        self.graph = graph
        self.dtype = dtype
        self._named = named
        self._taken = {value.name for node in graph for value in node.outputs}
        self._taken |= {value.name for value in graph.inputs} | set(graph.initializers)

    def free(self, name: str) -> str:
        """Return a name that nothing has, with a number behind it if need be."""
        number, found = 1, name
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found)
        return found

    def input(self, name: str, of: ir.Value, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        """Add an input for what an output is held against."""
        name = f"{of.name}_{name}" if self._named else name
        value = ir.Value(name=self.free(name), type=ir.TensorType(dtype), shape=ir.Shape(shape))
        say_role(value, Role.LABEL)
        self.graph.inputs.append(value)
        return value

    def constant(self, name: str, array: np.ndarray[Any, np.dtype[Any]]) -> ir.Value:
        """Return a constant."""
        return initializer(self.graph, self.free(f"loss/{name}"), array)

    def number(self, number: float) -> ir.Value:
        """Return a number of the outputs' element type."""
        return self.constant("number", np.array(number, self.dtype.numpy()))

    def op(self, op_type: str, *inputs: ir.Value, name: str = "", outputs: int = 1, **attributes: Any) -> ir.Value:
        """Write a node and return its first output."""
        node = ir.Node(
            "",
            op_type,
            inputs,
            [ir.convenience.convert_attribute(key, value) for key, value in attributes.items()],
            num_outputs=outputs,
            name=self.free(f"loss/{op_type}"),
        )
        node.outputs[0].name = self.free(name or f"{node.name}_output")
        for value, ending in zip(node.outputs[1:], ("log_prob",), strict=False):
            value.name = self.free(ending)
        self.graph.append(node)
        return node.outputs[0]

    def mean(self, value: ir.Value) -> ir.Value:
        """Return the mean of all elements, which is the loss."""
        return self.op("ReduceMean", value, name="loss", keepdims=0)


def dims_of(value: ir.Value) -> list[int]:
    """Return the sizes of a value that are known."""
    return [int(size) for size in value.shape or () if isinstance(size, int)]
