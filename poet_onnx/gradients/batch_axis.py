"""Let a forward graph take any number of samples, where each output of a sample is of that sample alone.

The graph was exported for batches of one size, which stands in its shapes and in constants: `Reshape(x, [8, -1])`. The
rules of `sample_rules` follow the samples from the inputs to the outputs. If every node keeps them apart, sizes that
hold their number are replaced, and the graph's metadata say along which axis they lie in each input and output. A
sample's outputs are then those of the graph as it was. Otherwise the metadata say which node stands in the way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from poet_onnx.description.names import BATCH_KEY
from poet_onnx.errors import InputError
from poet_onnx.gradients.evidence import RECURRENT
from poet_onnx.gradients.paths import OF_SHAPE
from poet_onnx.gradients.sample_rules import RULES, Call, MixesError, Samples
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes import Inferred, infer
from poet_onnx.passes.node_builder import initializer

_SIZES = "poet/sizes/"
_SIZED = ("Reshape", "Expand")
"""Operators whose second input is the shape of what they make."""

_STATES = (5, 6)
"""Which inputs of an operator of sequences are the states that it begins with."""


def free_batch(model: ir.Model, outputs: Sequence[str], own: Collection[str] = ()) -> None:
    """Replace sizes that hold the number of samples, and note in the metadata where the samples are.

    Args:
        model: a forward graph; changed in place.
        outputs: names of what it computes for inference.
        own: names of inputs that are parameters and running statistics.
    """
    model.metadata_props.pop(BATCH_KEY, None)
    made = {value.name or "": value for node in model.graph for value in node.outputs}
    wanted = [made[name] for name in outputs if name in made]
    inputs = [value for value in model.graph.inputs if value.name not in own]
    if any(value.shape is not None and not value.shape.is_static() for value in inputs):
        return  # it takes any number already
    try:
        axes = _Walk(model, wanted, inputs).run()
    except (MixesError, InputError) as problem:
        model.metadata_props[BATCH_KEY] = json.dumps({"fixed": str(problem)})
        return
    model.metadata_props[BATCH_KEY] = json.dumps({"axes": axes})


class _Walk:
    def __init__(self, model: ir.Model, outputs: Sequence[ir.Value], inputs: Iterable[ir.Value]) -> None:
        self._graph, self._outputs = model.graph, outputs
        self._found: Inferred = infer(model)
        self._nodes = _needed(model.graph, outputs)
        read = {value for node in self._nodes for value in node.inputs}
        self._inputs = [value for value in inputs if value in read and self._shape(value)]
        self._places: dict[ir.Value, Samples | None] = dict.fromkeys(self._inputs, Samples(0))
        self._of_sizes: set[ir.Value] = set()
        self._constant: dict[ir.Node, int] = {}
        self._zeros: list[tuple[ir.Node, int]] = []
        sizes = {self._shape(value)[0] for value in self._inputs}
        if len(sizes) != 1:
            raise MixesError("its inputs do not have one size in common along their first axes")
        (self._batch,) = sizes

    def run(self) -> dict[str, int]:
        """Return along which axes the samples lie in inputs and outputs; the graph takes any number of them then."""
        for node in self._nodes:
            try:
                self._node(node)
            except MixesError as problem:
                raise MixesError(f"{node.op_type} '{node.name}' {problem}") from None
        axes = {}
        for value in (*self._inputs, *self._outputs):
            place = self._places.get(value)
            if place is None or place != Samples(place.axis):
                raise MixesError(f"the output '{value.name}' has no axis of the samples alone")
            axes[value.name or ""] = place.axis
        for node in self._nodes:
            if node.op_type in _SIZED:
                self._resize(node)
        for node, index in self._zeros:  # where no state is given, it is zero
            node.replace_input_with(index, None)
        return axes

    def _shape(self, value: ir.Value | None) -> tuple[int, ...]:
        return self._found.types[value.name or ""].shape if value is not None and value.name else ()

    def _node(self, node: ir.Node) -> None:
        places = [None if value is None else self._places.get(value) for value in node.inputs]
        sized = any(value in self._of_sizes for value in node.inputs)
        if (node.op_type in OF_SHAPE and any(places)) or (sized and not (any(places) or node.op_type in _SIZED)):
            self._of_sizes.update(node.outputs)
        elif node.op_type == "Expand" and not any(places):
            self._expand_constant(node)
        elif any(places):
            made = [value for value in node.outputs if value.name]
            if any(value in self._of_sizes for value in node.inputs[: 1 if node.op_type in _SIZED else None]):
                raise MixesError("reads a number that is computed of the batch's size")
            for value, place in zip(made, self._after(node, places), strict=True):
                self._places[value] = place

    def _after(self, node: ir.Node, places: Sequence[Samples | None]) -> Sequence[Samples | None]:
        rule = RULES.get(node.op_type)
        if rule is None or node.domain not in (*ONNX_DOMAINS, "com.microsoft"):
            raise MixesError("may mix samples")
        shapes = [self._shape(value) for value in node.inputs]
        for index in _STATES if node.op_type in RECURRENT else ():
            if index < len(shapes) and self._is_zero(node.inputs[index]):
                self._zeros.append((node, index))
                shapes[index] = ()
        made = tuple(self._shape(value) for value in node.outputs if value.name)
        opset = self._graph.opset_imports.get("", 1)
        found = rule(Call(node, self._batch, tuple(places), tuple(shapes), made, opset, self._found))
        for place, shape in zip(found, made, strict=True):
            if place is not None and shape[place.axis] != place.outer * self._batch * place.inner:
                raise MixesError("changes the number of samples")
        return found

    def _is_zero(self, value: ir.Value | None) -> bool:
        if value is None or value.is_graph_input():
            return False
        known = self._found.values.get(value.name or "")
        if known is None and value.const_value is not None:
            known = value.const_value.numpy()
        return known is not None and not known.any()

    def _expand_constant(self, node: ir.Node) -> None:
        """Take what is repeated as often as there are samples for a constant of each sample."""
        (shape, made) = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        before = (1,) * (len(made) - len(shape)) + shape
        axes = [axis for axis, size in enumerate(made) if size == self._batch != before[axis]]
        if len(axes) == 1:
            self._places[node.outputs[0]] = Samples(axes[0])
            self._constant[node] = axes[0]

    def _resize(self, node: ir.Node) -> None:
        """Let the shape that a node makes hold no number of samples."""
        place = self._places.get(node.outputs[0])
        if place is None:
            return
        sizes = list(self._shape(node.outputs[0]))
        old, known = node.inputs[1], None
        if node in self._constant:
            new = self._counted(node, sizes, place.axis)
        else:
            sizes[place.axis] = -1 if node.op_type == "Reshape" else 1
            known = np.array(sizes, np.int64)
            name = _SIZES + ",".join(map(str, sizes))
            new = self._graph.initializers.get(name) or initializer(self._graph, name, known)
        node.replace_input_with(1, new)
        if old is not None and old is not new and not old.uses() and old.name in self._graph.initializers:
            del self._graph.initializers[old.name or ""]

    def _counted(self, node: ir.Node, sizes: Sequence[int], axis: int) -> ir.Value:
        """Write nodes that make a shape with the number of samples of the first input."""
        name = f"{_SIZES}{node.outputs[0].name}"
        parts: list[ir.Value] = []
        for part, numbers in (("before", sizes[:axis]), ("behind", sizes[axis + 1 :])):
            if numbers:
                parts.append(initializer(self._graph, f"{name}/{part}", np.array(numbers, np.int64)))
        zero = initializer(self._graph, f"{name}/zero", np.zeros(1, np.int64))
        shape = ir.Node("", "Shape", [self._inputs[0]], name=f"{name}/Shape")
        count = ir.Node("", "Gather", [shape.outputs[0], zero], name=f"{name}/Gather")
        parts.insert(1 if axis else 0, count.outputs[0])
        whole = ir.Node("", "Concat", parts, [ir.AttrInt64("axis", 0)], name=f"{name}/Concat")
        for made in (shape, count, whole):
            made.outputs[0].name = f"{made.name}_output"
            self._graph.insert_before(node, made)
        return whole.outputs[0]


def _needed(graph: ir.Graph, outputs: Iterable[ir.Value]) -> list[ir.Node]:
    """Return the nodes that outputs depend on, in their order."""
    read, nodes = set(outputs), list[ir.Node]()
    for node in reversed(graph):
        if not read.isdisjoint(node.outputs):
            nodes.append(node)
            read.update(value for value in node.inputs if value is not None)
    return nodes[::-1]
