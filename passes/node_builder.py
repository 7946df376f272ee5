"""Builders write nodes for a node: a rule reads that one, and new ones are named after it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.shapes import Array, Inferred, TensorType


def initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Give a graph an initializer, whose name must be free."""
    return tensor_initializer(graph, ir.tensor(array, name=name))


def tensor_initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """Give a graph a tensor as an initializer of its name, which must be free."""
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    graph.register_initializer(value)
    return value


def let_stand_for(value: ir.Value, output: ir.Value) -> None:
    """Let a value stand for a node's output: for those that read it, under its name, of its type and shape."""
    name, output.name = output.name, None
    value.name, value.type, value.shape = name, output.type, output.shape
    output.replace_all_uses_with(value, replace_graph_outputs=True)


def replace_nodes(graph: ir.Graph, old: Sequence[ir.Node], new: Sequence[ir.Node], results: Sequence[ir.Value]) -> None:
    """Put nodes into the place of others, whose results the last one computes under their names.

    Args:
        graph: that holds the old nodes.
        old: with the last one last.
        new: in their order; first outputs of the last one stand for the results.
        results: outputs of old nodes that others may read.
    """
    graph.insert_before(old[-1], new)
    for result, output in zip(results, new[-1].outputs, strict=False):
        let_stand_for(output, result)
    graph.remove(old, safe=True)


def seen_as(graph: ir.Graph, value: ir.Value, name: str, sizes: Sequence[int]) -> ir.Value:
    """Return a value of the same numbers and other sizes, which is made once for all who ask for its name."""
    known = graph.initializers.get(f"{name}/shape")
    if known is not None:
        return next(iter(known.uses())).node.outputs[0]
    shape = initializer(graph, f"{name}/shape", np.array(sizes, np.int64))
    made = ir.Value(name=name, type=value.type, shape=ir.Shape(sizes))
    node = ir.Node("", "Reshape", [value, shape], outputs=[made], name=name)
    maker = value.producer()
    if maker is None:
        graph.insert_before(graph[0], node)
    else:
        graph.insert_after(maker, node)
    return made


class NodeBuilder(ABC):
    """A node with its attributes and constant inputs, and methods that write nodes for it. Every shape is known.

    Attributes:
        graph: of the node.
        node: that is written for.
        attributes: of the node.
    """

    refused: ClassVar[type[Exception]]
    """What is raised where a rule cannot go on, with the reason as the end of a sentence."""

    constants: ClassVar[str]
    """What the names of constants begin with."""

    suffix: ClassVar[str] = ""
    """What new nodes have behind the name of the node."""

    def __init__(self, graph: ir.Graph, node: ir.Node, inferred: Inferred) -> None:
        self.graph = graph
        self.node = node
        self.attributes: Mapping[str, Any] = plain_attributes(node)
        self._inferred = inferred
        self._name = node.name or next((value.name for value in node.outputs if value.name), "")
        self._written = 0

    @abstractmethod
    def _place(self, node: ir.Node) -> None:
        """Take a node that was written."""

    @property
    def opset(self) -> int:
        """Return the version of ONNX's operators."""
        return self.graph.opset_imports.get("", 1)

    def has(self, index: int) -> bool:
        """Return whether an optional input is there."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def input(self, index: int) -> ir.Value:
        """Return an input that the operator needs."""
        value = self.node.inputs[index] if self.has(index) else None
        if value is None:
            raise self.refused(f"input {index} is missing")
        return value

    def known(self, index: int) -> Array | None:
        """Return the value of an input if it is a small constant."""
        return self._inferred.values.get(self.input(index).name or "")

    def integers(self, index: int) -> tuple[int, ...]:
        """Return the numbers of an input that must be a constant."""
        value = self.known(index)
        if value is None:
            raise self.refused(f"input {index} is computed at run time, but must be a constant")
        return tuple(int(number) for number in np.atleast_1d(value).ravel())

    def ints(self, *numbers: int) -> ir.Value:
        """Return a constant list of integers."""
        return self.constant(np.array(numbers, np.int64))

    def constant(self, array: Array) -> ir.Value:
        """Return a constant; equal ones are shared by the whole graph."""
        digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]
        name = f"{self.constants}/constant/{digest}"
        known = self.graph.initializers.get(name)
        return initializer(self.graph, name, array) if known is None else known

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """Write a node of one output and return that."""
        return self.ops(op_type, inputs, 1, domain=domain, **attributes)[0]

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
        name = f"{self._name}{self.suffix}/{op_type}_{self._written}"
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
        self._place(node)
        return list(node.outputs)

    def reduce_sum(self, value: ir.Value, axes: Sequence[int], *, keep: bool) -> ir.Value:
        """Sum over axes, of which there is at least one."""
        if self.opset < 13:
            return self.op("ReduceSum", value, axes=list(axes), keepdims=int(keep))
        return self.op("ReduceSum", value, self.ints(*axes), keepdims=int(keep))


class Replacement(NodeBuilder):
    """A node and those that take its place; what is to stand for an output goes to `give`."""

    constants = "poet"

    def __init__(self, graph: ir.Graph, node: ir.Node, inferred: Inferred) -> None:
        super().__init__(graph, node, inferred)
        self._made: list[ir.Node] = []
        self._given: set[ir.Value] = set()

    def _place(self, node: ir.Node) -> None:
        self._made.append(node)

    def type(self, index: int) -> TensorType:
        """Return the type of an input."""
        return self._inferred.types[self.input(index).name or ""]

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self.type(index).shape

    def wants(self, index: int) -> bool:
        """Return whether somebody reads an output."""
        if index >= len(self.node.outputs):
            return False
        value = self.node.outputs[index]
        return bool(value.name) and (bool(value.uses()) or value.is_graph_output())

    def reshape(self, value: ir.Value, *shape: int) -> ir.Value:
        """View a tensor in another shape."""
        return self.op("Reshape", value, self.ints(*shape))

    def give(self, index: int, value: ir.Value) -> None:
        """Let a value stand for an output; one that nobody wants is dropped."""
        if not self.wants(index):
            return
        if value.producer() not in self._made or value in self._given:
            value = self.op("Identity", value)
        self._given.add(value)
        let_stand_for(value, self.node.outputs[index])

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
