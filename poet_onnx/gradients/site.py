"""What a gradient's rule sees of a forward node, and the pen with which it writes the backward nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.graph.shapes import Array, Inferred, TensorType


class NoGradientError(Exception):
    """A rule has no gradient for a node with these attributes or inputs; says why, as the end of a sentence."""


class Site:
    """A forward node whose gradient is to be written.

    Rules read the node and the gradients of its outputs, write nodes with `op` and `ops`, and send what they compute to
    the inputs with `send`. Every shape is known.
    """

    def __init__(
        self,
        graph: ir.Graph,
        node: ir.Node,
        inferred: Inferred,
        *,
        gradients: Mapping[ir.Value, ir.Value],
        wanted: AbstractSet[ir.Value],
    ) -> None:
        self.node = node
        self.attributes: Mapping[str, Any] = plain_attributes(node)
        self.sent: list[tuple[ir.Value, ir.Value]] = []
        """Inputs and their gradients in the order in which the rule sent them."""
        self._graph = graph
        self._inferred = inferred
        self._gradients = gradients
        self._wanted = wanted
        self._written = 0

    @property
    def opset(self) -> int:
        """Return the version of ONNX's operators."""
        return self._graph.opset_imports.get("", 1)

    def has(self, index: int) -> bool:
        """Return whether an optional input is there."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def input(self, index: int) -> ir.Value:
        """Return an input that the operator needs."""
        value = self.node.inputs[index] if self.has(index) else None
        if value is None:
            raise NoGradientError(f"input {index} is missing")
        return value

    def output(self, index: int = 0) -> ir.Value:
        """Return an output of the node."""
        return self.node.outputs[index]

    def gradient(self, index: int = 0) -> ir.Value:
        """Return the gradient of the loss with regard to an output."""
        output = self.node.outputs[index]
        if output in self._gradients:
            return self._gradients[output]
        raise NoGradientError(f"output {index} does not lead to the loss")

    def has_gradient(self, index: int) -> bool:
        """Return whether an output leads to the loss."""
        return index < len(self.node.outputs) and self.node.outputs[index] in self._gradients

    def wants(self, index: int) -> bool:
        """Return whether the gradient of an input is needed."""
        return self.has(index) and self.node.inputs[index] in self._wanted

    def type(self, value: ir.Value) -> TensorType:
        """Return the type of a value of the forward graph."""
        return self._inferred.types[value.name or ""]

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """Return the shape of a value of the forward graph."""
        return self.type(value).shape

    def known(self, index: int) -> Array | None:
        """Return the value of an input if it is a small constant."""
        return self._inferred.values.get(self.input(index).name or "")

    def integers(self, index: int) -> tuple[int, ...]:
        """Return the numbers of an input that must be a constant."""
        value = self.known(index)
        if value is None:
            raise NoGradientError(f"input {index} is computed at run time, but must be a constant")
        return tuple(int(number) for number in np.atleast_1d(value).ravel())

    def send(self, index: int, gradient: ir.Value) -> None:
        """Add a gradient to what an input has; one that nobody wants is dropped."""
        if self.wants(index):
            self.sent.append((self.input(index), gradient))

    def ints(self, *numbers: int) -> ir.Value:
        """Return a constant list of integers."""
        return self.constant(np.array(numbers, np.int64))

    def number(self, number: float, like: ir.Value) -> ir.Value:
        """Return a constant of no dimensions, of the element type of a value of the forward graph."""
        return self.constant(np.array(number, self.type(like).dtype.numpy()))

    def constant(self, array: Array) -> ir.Value:
        """Return a constant; equal ones are shared by the whole graph."""
        digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]
        name = f"gradient/constant/{digest}"
        if name not in self._graph.initializers:
            tensor = ir.tensor(array, name=name)
            value = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
            )
            self._graph.register_initializer(value)
        return self._graph.initializers[name]

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """Write a node of one output and return that."""
        return self.ops(op_type, inputs, 1, domain=domain, **attributes)[0]

    def own(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write a node of one output whose operator is ONNX Runtime's, and return that."""
        return self.op(op_type, *inputs, domain=MICROSOFT_DOMAIN, **attributes)

    def ops(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: int | Sequence[bool],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> list[ir.Value]:
        """Write a node and return its outputs.

        Args:
            op_type: the operator.
            inputs: None for an absent optional one.
            outputs: how many, or for each whether it is there: the gaps have no name.
            domain: of the operator.
            attributes: of the node.
        """
        there = (True,) * outputs if isinstance(outputs, int) else tuple(outputs)
        while not there[-1]:
            there = there[:-1]
        name = f"{self.node.name}_Grad/{op_type}_{self._written}"
        self._written += 1
        node = ir.Node(
            domain,
            op_type,
            inputs,
            [ir.convenience.convert_attribute(key, value) for key, value in attributes.items()],
            num_outputs=len(there),
            name=name,
        )
        for number, (value, named) in enumerate(zip(node.outputs, there, strict=True)):
            value.name = (f"{name}_output" if len(there) == 1 else f"{name}_output_{number}") if named else ""
        self._graph.append(node)
        return list(node.outputs)

    def reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """View a tensor in another shape."""
        return self.op("Reshape", value, self.ints(*shape))

    def expand(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Repeat a tensor along its dimensions of size 1."""
        return self.op("Expand", value, self.ints(*shape))

    def sum(self, value: ir.Value, axes: Sequence[int], *, keep: bool) -> ir.Value:
        """Sum over axes, of which there is at least one."""
        if self.opset < 13:
            return self.op("ReduceSum", value, axes=list(axes), keepdims=int(keep))
        return self.op("ReduceSum", value, self.ints(*axes), keepdims=int(keep))

    def unsqueeze(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Insert dimensions of size 1."""
        if self.opset < 13:
            return self.op("Unsqueeze", value, axes=list(axes))
        return self.op("Unsqueeze", value, self.ints(*axes))

    def unbroadcast(self, gradient: ir.Value, shape: Sequence[int], target: Sequence[int]) -> ir.Value:
        """Sum a gradient over the axes along which an operand was repeated.

        Axes are listed from the last to the first, and dimensions are kept or dropped, as ONNX Runtime's builder does.

        Args:
            gradient: of the repeated operand.
            shape: of `gradient`.
            target: the operand's own shape.
        """
        axes = broadcast_axes(target, shape)
        if not axes:
            return gradient
        keep = len(shape) == len(target)
        kept = [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]
        if kept == list(target):
            return self.sum(gradient, axes, keep=keep)
        return self.reshape(self.sum(gradient, axes, keep=True), target)


def broadcast_axes(shape: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the axes of the common shape along which the first of two is repeated, from the last to the first."""
    rank = max(len(shape), len(other))
    axes = []
    for back in range(1, rank + 1):
        if back > len(shape) or (back <= len(other) and shape[-back] == 1 and other[-back] != 1):
            axes.append(rank - back)
    return axes
