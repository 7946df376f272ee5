"""Materialize a plan in an onnx_ir model: keep the nodes there are, make the missing ones, wire and order them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph import Tensor, TrainingGraph
from poet_onnx.passes.layout_nodes import ARENA, NEXT_STEP, TOKEN, LayoutNode
from poet_onnx.passes.paging import transfer_attributes


class MaterializePlan(InPlacePass):
    """Make a model's nodes exactly those of a layout: ordered, recomputed behind gates, with transfers between them.

    Rules: those of `poet_onnx.passes.layout` and of `poet_onnx.passes.paging`. Type and shape of every tensor of the
    graph are written into the model.

    Requires that the model's nodes are the graph's, under unique names; ensures that they are those of the layout, in
    its order, and that every tensor is made before it is read.
    """

    def __init__(self, graph: TrainingGraph, layout: Sequence[LayoutNode]) -> None:
        super().__init__()
        self._graph = graph
        self._layout = layout

    def requires(self, model: ir.Model) -> None:
        """Check that the model is the one that the graph describes.

        Raises:
            CheckFailedError: naming the node that is missing, stands twice or is not the graph's.
        """
        seen: set[str] = set()
        for node in model.graph:
            if not node.name or node.name in seen:
                raise CheckFailedError(f"Two nodes are named '{node.name or ''}'; names must be unique and not empty.")
            seen.add(node.name)
        for name in sorted(seen.symmetric_difference(node.name for node in self._graph.nodes)):
            raise CheckFailedError(
                f"The model {'has' if name in seen else 'lacks'} node '{name}', other than the graph that the plan was "
                "made for."
            )

    def call(self, model: ir.Model) -> PassResult:
        """Make the nodes.

        Raises:
            InputError: if a node would read what the model does not have at that place.
        """
        graph, before = model.graph, _wiring(model.graph)
        sources = {node.name or "": node for node in graph}
        own = transfer_attributes(self._graph, self._layout)
        marks = {each.name: each.begins for each in self._layout if each.begins is not None and not each.source}
        own |= {name: (ir.AttrInt64("step", begins),) for name, begins in marks.items()}
        values = {value.name: value for value in (*graph.initializers.values(), *graph.inputs) if value.name}
        made: list[ir.Node] = []
        for placed in self._layout:
            inputs = [_input(values, name, placed.name) for name in placed.inputs]
            node = sources.get(placed.name)
            if node is None:
                node = _make(placed, sources.get(placed.source), inputs, own.get(placed.name, ()))
            else:
                for index, value in enumerate(inputs):
                    node.replace_input_with(index, value)
            if placed.source and placed.begins is not None:
                node.attributes[NEXT_STEP] = ir.AttrInt64(NEXT_STEP, placed.begins)
            values.update((value.name, value) for value in node.outputs if value.name)
            made.append(node)
        _replace_nodes(graph, made)
        for placed, node in zip(self._layout, made, strict=True):
            for like, value in zip(placed.like, node.outputs, strict=True):
                _describe(value, None if like == TOKEN else self._graph.tensors[like])
        if any(placed.domain == POET_DOMAIN for placed in self._layout):
            model.opset_imports[POET_DOMAIN] = POET_VERSION
        says = any(each.begins is not None for each in self._layout)
        return PassResult(model, modified=says or _wiring(graph) != before)

    def ensures(self, model: ir.Model) -> None:
        """Check that the model is exactly what the layout says."""
        check_materialized(model, self._layout)


def check_materialized(model: ir.Model, layout: Sequence[LayoutNode]) -> None:
    """Check that a model's nodes are those of a layout, in its order, every input made before it is read.

    Before them there may be the node with the plan's addresses.

    Raises:
        CheckFailedError: naming the first node that is out of place.
    """
    known = {value.name for value in model.graph.inputs} | set(model.graph.initializers)
    nodes = list(model.graph)
    if nodes and (nodes[0].domain, nodes[0].op_type) == (POET_DOMAIN, ARENA):
        del nodes[0]
    if len(nodes) != len(layout):
        raise CheckFailedError(f"The rewritten graph has {len(nodes)} nodes where the plan has {len(layout)}.")
    for placed, node in zip(layout, nodes, strict=True):
        inputs = tuple((value.name or "") if value is not None else "" for value in node.inputs)
        if node.name != placed.name or inputs != placed.inputs:
            raise CheckFailedError(
                f"Node '{node.name}' stands where the plan has '{placed.name}', or reads other values."
            )
        if placed.source and node.attributes.get_int(NEXT_STEP, None) != placed.begins:
            raise CheckFailedError(f"Node '{node.name}' does not say which step begins behind it, as the plan does.")
        for name in inputs:
            if name and name not in known:
                raise CheckFailedError(f"Node '{node.name}' reads '{name}' before it is made.")
        known.update(value.name for value in node.outputs if value.name)
    for value in model.graph.outputs:
        if value.name not in known:
            raise CheckFailedError(f"Nothing makes the graph output '{value.name}'.")


def _wiring(graph: ir.Graph) -> list[tuple[str | None, tuple[str | None, ...]]]:
    return [(node.name, tuple(None if value is None else value.name for value in node.inputs)) for node in graph]


def _input(values: dict[str, ir.Value], name: str, reader: str) -> ir.Value | None:
    if not name:
        return None
    if name not in values:
        raise InputError(f"Node '{reader}' would read '{name}', which the model does not have at that place.")
    return values[name]


def _make(
    placed: LayoutNode, source: ir.Node | None, inputs: Sequence[ir.Value | None], attributes: Iterable[ir.Attr]
) -> ir.Node:
    """Make a node: a copy of a source node, a gate, scratch, a transfer or a mark."""
    copied = () if source is None else (each for each in source.attributes.values() if each.name != NEXT_STEP)
    return ir.Node(
        placed.domain,
        placed.op_type,
        inputs,
        attributes if source is None else copied,
        overload="" if source is None else source.overload,
        outputs=[ir.Value(name=name) for name in placed.outputs],
        name=placed.name,
        doc_string=None if source is None else source.doc_string,
        metadata_props={} if source is None else dict(source.metadata_props),
    )


def _replace_nodes(graph: ir.Graph, made: Sequence[ir.Node]) -> None:
    """Make the graph's node list the given one; nodes that are not in it are gone."""
    wanted = set(map(id, made))
    dropped = [node for node in graph if id(node) not in wanted]
    graph.remove([node for node in graph if id(node) in wanted])
    graph.extend(made)
    graph.remove(dropped, safe=True)


def _describe(value: ir.Value, tensor: Tensor | None) -> None:
    """Write type and shape; graph outputs keep what the model says of them."""
    if not value.name or (value.is_graph_output() and value.type is not None and value.shape is not None):
        return
    dtype = ir.DataType.INT64 if tensor is None else ir.DataType[tensor.dtype]
    value.type = ir.TensorType(dtype)
    value.shape = ir.Shape((1,) if tensor is None else tensor.shape)
