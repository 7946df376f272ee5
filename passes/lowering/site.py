"""What a lowering rule sees of a node, and the pen with which it writes the nodes that take its place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.shapes import Array, Inferred, TensorType

FLOAT, DOUBLE, INT64, BOOL = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.BOOL
MICROSOFT = "com.microsoft"
POET = "poet"


class UnsupportedError(Exception):
    """A rule cannot express a node; says why, as the end of a sentence."""


class Site:
    """A node to be lowered: its inputs and types, and methods that write new nodes before it.

    Rules read the node and write its substitute with `op`; what is to stand for an output goes to `give`.
    """

    def __init__(
        self, graph: ir.Graph, node: ir.Node, inferred: Inferred, *, kernels: bool, expansion: str | None = None
    ) -> None:
        self.graph = graph
        self.node = node
        self.kernels = kernels
        """Whether operators of poet-onnx may be used, which write in place or do in one pass what others cannot."""
        self.expansion = expansion
        """Which of several forms to write, if that is decided."""
        self.attributes: Mapping[str, Any] = plain_attributes(node)
        self._inferred = inferred
        self._made: list[ir.Node] = []
        self._given: set[ir.Value] = set()

    def has(self, index: int) -> bool:
        """Return whether an optional input is there."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def input(self, index: int) -> ir.Value:
        """Return an input that the operator needs."""
        value = self.node.inputs[index] if self.has(index) else None
        if value is None:
            raise UnsupportedError(f"input {index} is missing")
        return value

    def type(self, index: int) -> TensorType:
        """Return the type of an input."""
        return self._inferred.types[self.input(index).name or ""]

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self.type(index).shape

    def output_shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an output."""
        return self._inferred.types[self.node.outputs[index].name or ""].shape

    def constant_input(self, index: int) -> Array | None:
        """Return the value of an input if it is a small constant."""
        return self._inferred.values.get(self.input(index).name or "")

    def integers(self, index: int) -> tuple[int, ...]:
        """Return the numbers of an input that must be a constant."""
        value = self.constant_input(index)
        if value is None:
            raise UnsupportedError(f"input {index} is computed at run time, but must be a constant")
        return tuple(int(number) for number in np.atleast_1d(value).ravel())

    def wants(self, index: int) -> bool:
        """Return whether somebody reads an output."""
        if index >= len(self.node.outputs):
            return False
        value = self.node.outputs[index]
        return bool(value.name) and (bool(value.uses()) or value.is_graph_output())

    def ints(self, *numbers: int) -> ir.Value:
        """Return a constant list of integers."""
        return self.constant(np.array(numbers, np.int64))

    def number(self, value: float, like: int = 0) -> ir.Value:
        """Return a constant of no dimensions, of the element type of an input."""
        return self.constant(np.array(value, self.type(like).dtype.numpy()))

    def zeros(self, shape: Sequence[int], dtype: ir.DataType) -> ir.Value:
        """Return a tensor of zeros that exists only from here on."""
        fill = ir.tensor(np.zeros(1, dtype.numpy()), name="value")
        return self.op("ConstantOfShape", self.ints(*shape), value=fill)

    def constant(self, array: Array) -> ir.Value:
        """Return a constant; equal ones are shared by the whole graph."""
        digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]
        name = f"poet/constant/{digest}"
        if name not in self.graph.initializers:
            tensor = ir.tensor(array, name=name)
            value = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
            )
            self.graph.register_initializer(value)
        return self.graph.initializers[name]

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """Write a node of one output and return that."""
        return self.ops(op_type, inputs, 1, domain=domain, **attributes)[0]

    def ops(
        self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int, *, domain: str = "", **attributes: Any
    ) -> list[ir.Value]:
        """Write a node and return its outputs."""
        name = f"{self.node.name}/{op_type}_{len(self._made)}"
        node = ir.Node(
            domain,
            op_type,
            inputs,
            [ir.convenience.convert_attribute(key, value) for key, value in attributes.items()],
            num_outputs=outputs,
            name=name,
        )
        for number, value in enumerate(node.outputs):
            value.name = f"{name}_output" if outputs == 1 else f"{name}_output_{number}"
        self._made.append(node)
        return list(node.outputs)

    def reshape(self, value: ir.Value, *shape: int) -> ir.Value:
        """View a tensor in another shape."""
        return self.op("Reshape", value, self.ints(*shape))

    def sum(self, value: ir.Value, *axes: int, keep: bool = True) -> ir.Value:
        """Sum over axes; over none, the value itself."""
        if not axes:
            return value
        return self.op("ReduceSum", value, self.ints(*axes), keepdims=int(keep))

    def give(self, index: int, value: ir.Value) -> None:
        """Let a value stand for an output; one that nobody wants is dropped."""
        if not self.wants(index):
            return
        if value.producer() not in self._made or value in self._given:
            value = self.op("Identity", value)
        self._given.add(value)
        output = self.node.outputs[index]
        name = output.name
        value.type, value.shape = output.type, output.shape
        output.replace_all_uses_with(value, replace_graph_outputs=True)
        output.name = None
        value.name = name

    def finish(self) -> None:
        """Put the new nodes into the node's place, and drop constants that it alone read."""
        self.graph.insert_before(self.node, self._made)
        sources = [value for value in self.node.inputs if value is not None]
        self.graph.remove(self.node, safe=True)
        for value in sources:
            if (
                value.is_initializer()
                and not value.is_graph_input()
                and not value.uses()
                and not value.is_graph_output()
            ):
                self.graph.initializers.pop(value.name or "", None)


Rule: TypeAlias = Callable[[Site], None]
Rules: TypeAlias = Mapping[str, Rule]


_SHOWN_NODES = 3


def list_nodes(found: Mapping[str, Sequence[str]]) -> str:
    """Return a list in words of operators, or what is to be said of them, each with the first of its nodes."""
    parts = []
    for what, names in sorted(found.items()):
        more = f" and {len(names) - _SHOWN_NODES} more" if len(names) > _SHOWN_NODES else ""
        parts.append(f"{what} in {', '.join(repr(name) for name in names[:_SHOWN_NODES])}{more}")
    return "; ".join(parts)
