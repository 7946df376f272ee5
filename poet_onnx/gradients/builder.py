"""The builder of a gradient: its rule reads a forward node, and writes the backward nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.graph.shapes import Inferred, TensorType
from poet_onnx.passes.node_builder import NodeBuilder


class NoGradientError(Exception):
    """A rule has no gradient for a node with these attributes or inputs; says why, as the end of a sentence."""


class GradientBuilder(NodeBuilder):
    """A forward node whose gradient is to be written.

    Rules read the node and the gradients of its outputs, write nodes with `op` and `ops`, and send what they compute to
    the inputs with `send`. Every shape is known.
    """

    refused = NoGradientError
    constants = "gradient"
    suffix = "_Grad"

    def __init__(
        self,
        graph: ir.Graph,
        node: ir.Node,
        inferred: Inferred,
        *,
        gradients: Mapping[ir.Value, ir.Value],
        wanted: AbstractSet[ir.Value],
    ) -> None:
        super().__init__(graph, node, inferred)
        self.sent: list[tuple[ir.Value, ir.Value]] = []
        """Inputs and their gradients in the order in which the rule sent them."""
        self._gradients = gradients
        self._wanted = wanted
        self._read = set[int]()

    def _place(self, node: ir.Node) -> None:
        self.graph.append(node)

    def output(self, index: int = 0) -> ir.Value:
        """Return an output of the node."""
        return self.node.outputs[index]

    def gradient(self, index: int = 0) -> ir.Value:
        """Return the gradient of the loss with regard to an output."""
        output = self.node.outputs[index]
        if output in self._gradients:
            self._read.add(index)
            return self._gradients[output]
        raise NoGradientError(f"output {index} does not lead to the loss")

    def has_gradient(self, index: int) -> bool:
        """Return whether an output leads to the loss."""
        return index < len(self.node.outputs) and self.node.outputs[index] in self._gradients

    def check_all_read(self) -> None:
        """Check that the rule has read the gradient of each output that leads to the loss.

        Raises:
            NoGradientError: if it has not, for it knows none of that output.
        """
        for index, output in enumerate(self.node.outputs):
            if self.has_gradient(index) and index not in self._read:
                raise NoGradientError(f"its output {index}, '{output.name}', leads to the loss and has none")

    def wants(self, index: int) -> bool:
        """Return whether the gradient of an input is needed."""
        return self.has(index) and self.node.inputs[index] in self._wanted

    def type(self, value: ir.Value) -> TensorType:
        """Return the type of a value of the forward graph."""
        return self._inferred.types[value.name or ""]

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """Return the shape of a value of the forward graph."""
        return self.type(value).shape

    def send(self, index: int, gradient: ir.Value) -> None:
        """Add a gradient to what an input has; one that nobody wants is dropped."""
        if self.wants(index):
            self.sent.append((self.input(index), gradient))

    def number(self, number: float, like: ir.Value) -> ir.Value:
        """Return a constant of no dimensions, of the element type of a value of the forward graph."""
        return self.constant(np.array(number, self.type(like).dtype.numpy()))

    def as_real(self, mask: ir.Value, like: ir.Value) -> ir.Value:
        """Return ones and zeros for a mask, of the element type of a value of the forward graph."""
        return self.op("Cast", mask, to=int(self.type(like).dtype))

    def own(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write a node of one output whose operator is ONNX Runtime's, and return that."""
        return self.op(op_type, *inputs, domain=MICROSOFT_DOMAIN, **attributes)

    def reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """View a tensor in another shape."""
        return self.op("Reshape", value, self.ints(*shape))

    def expand(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Repeat a tensor along its dimensions of size 1."""
        return self.op("Expand", value, self.ints(*shape))

    def unsqueeze(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Insert dimensions of size 1."""
        return self.op("Unsqueeze", value, self.ints(*axes))

    def reduced(self, gradient: ir.Value, index: int) -> ir.Value:
        """Sum a gradient, of the output's shape, over the axes along which an input was repeated.

        Axes are listed from the last to the first, and dimensions are kept or dropped, as ONNX Runtime's builder does.
        """
        shape, target = self.shape(self.output()), self.shape(self.input(index))
        axes = broadcast_axes(target, shape)
        if not axes:
            return gradient
        keep = len(shape) == len(target)
        kept = [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]
        if kept == list(target):
            return self.reduce_sum(gradient, axes, keep=keep)
        return self.reshape(self.reduce_sum(gradient, axes, keep=True), target)


def broadcast_axes(shape: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the axes of the common shape along which the first of two is repeated, from the last to the first."""
    rank = max(len(shape), len(other))
    axes = []
    for back in range(1, rank + 1):
        if back > len(shape) or (back <= len(other) and shape[-back] == 1 and other[-back] != 1):
            axes.append(rank - back)
    return axes
