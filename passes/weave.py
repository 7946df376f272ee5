"""Weave a layout into an onnx_ir model: keep the nodes there are, make the missing ones, wire and order all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph import Tensor, TrainingGraph
from poet_onnx.passes.layout import ARENA, DOMAIN, TOKEN, Placed, lay_out
from poet_onnx.plan import Step

DOMAIN_VERSION = 1
"""Version of the operator domain `poet`."""


class CarryOut(InPlacePass):
    """Make a model carry out some steps of a plan; base of the passes that each do so for one more kind of step.

    Requires that the model has the graph's nodes under unique names; ensures that its nodes are those of the steps'
    layout, in its order, and that every tensor is made before it is read.

    Raises:
        CheckFailedError: if the steps cannot be carried out on the graph.
    """

    def __init__(self, graph: TrainingGraph, steps: Iterable[Step]) -> None:
        super().__init__()
        self._graph = graph
        self._layout = lay_out(graph, tuple(steps))

    def requires(self, model: ir.Model) -> None:
        """Check that the model is the one that the graph describes."""
        check_source(model, self._graph)

    def call(self, model: ir.Model) -> PassResult:
        """Carry the steps out."""
        return PassResult(model, weave(model, self._graph, self._layout))

    def ensures(self, model: ir.Model) -> None:
        """Check that the model is exactly what the steps say."""
        check_woven(model, self._layout)


def weave(model: ir.Model, graph: TrainingGraph, layout: Sequence[Placed]) -> bool:
    """Make a model's nodes exactly those of a layout; return whether that changed anything.

    Raises:
        InputError: if the model is not the one that the graph was extracted from.
    """
    before = _wiring(model.graph)
    nodes = {node.name or "": node for node in model.graph}
    values = _values(model.graph)
    kept: list[ir.Node] = []
    for placed in layout:
        node = nodes.get(placed.name)
        inputs = [_input(values, name, placed.name) for name in placed.inputs]
        if node is None or len(node.inputs) != len(inputs):  # a gate may have got a trigger, or lost one
            node = _make(graph, nodes, placed, inputs)
        else:
            for index, value in enumerate(inputs):
                if node.inputs[index] is not value:
                    node.replace_input_with(index, value)
        for name, value in zip(placed.outputs, node.outputs, strict=True):
            if name:
                value.name = name  # gates of one value are numbered anew when one of them goes
                values[name] = value
        kept.append(node)
    _replace_nodes(model.graph, kept)
    for placed, node in zip(layout, kept, strict=True):
        for like, value in zip(placed.like, node.outputs, strict=True):
            _describe(value, None if like == TOKEN else graph.tensors[like])
    if any(placed.domain == DOMAIN for placed in layout):
        model.opset_imports[DOMAIN] = DOMAIN_VERSION
    return _wiring(model.graph) != before


def check_woven(model: ir.Model, layout: Sequence[Placed]) -> None:
    """Check that a model's nodes are those of a layout, in its order, every input made before it is read.

    Before them there may be the node with the plan's addresses.

    Raises:
        CheckFailedError: naming the first node that is out of place.
    """
    known = {value.name for value in model.graph.inputs} | set(model.graph.initializers)
    nodes = list(model.graph)
    if nodes and (nodes[0].domain, nodes[0].op_type) == (DOMAIN, ARENA):
        del nodes[0]
    if len(nodes) != len(layout):
        raise CheckFailedError(f"The rewritten graph has {len(nodes)} nodes where the plan has {len(layout)}.")
    for placed, node in zip(layout, nodes, strict=True):
        inputs = tuple((value.name or "") if value is not None else "" for value in node.inputs)
        if node.name != placed.name or inputs != placed.inputs:
            raise CheckFailedError(
                f"Node '{node.name}' stands where the plan has '{placed.name}', or reads other values."
            )
        for name in inputs:
            if name and name not in known:
                raise CheckFailedError(f"Node '{node.name}' reads '{name}' before it is made.")
        known.update(value.name for value in node.outputs if value.name)
    for value in model.graph.outputs:
        if value.name not in known:
            raise CheckFailedError(f"Nothing makes the graph output '{value.name}'.")


def check_source(model: ir.Model, graph: TrainingGraph) -> None:
    """Check that a model has the nodes of a graph under unique names.

    Raises:
        CheckFailedError: naming the node that is missing or stands twice.
    """
    seen: set[str] = set()
    for node in model.graph:
        if not node.name or node.name in seen:
            raise CheckFailedError(f"Two nodes are named '{node.name or ''}'; names must be unique and not empty.")
        seen.add(node.name)
    for known in graph.nodes:
        if not known.view and known.name not in seen:
            raise CheckFailedError(f"The model lacks node '{known.name}' of the graph that the plan was made for.")


def _wiring(graph: ir.Graph) -> list[tuple[str | None, tuple[str | None, ...]]]:
    return [(node.name, tuple(None if value is None else value.name for value in node.inputs)) for node in graph]


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return what can be read before any node has run."""
    sources: Iterable[ir.Value] = (*graph.initializers.values(), *graph.inputs)
    return {value.name: value for value in sources if value.name}


def _input(values: dict[str, ir.Value], name: str, reader: str) -> ir.Value | None:
    if not name:
        return None
    if name not in values:
        raise InputError(f"Node '{reader}' would read '{name}', which the model does not have at that place.")
    return values[name]


def _make(
    graph: TrainingGraph, nodes: dict[str, ir.Node], placed: Placed, inputs: Sequence[ir.Value | None]
) -> ir.Node:
    """Make a node: a copy of a source node, a gate, scratch or a transfer."""
    original = _pattern(nodes, placed.source) if placed.source else None
    if placed.source and original is None:
        raise InputError(f"The model lacks node '{placed.source}', which the plan repeats.")
    return ir.Node(
        placed.domain,
        placed.op_type,
        inputs,
        _transfer_attributes(graph, placed) if original is None else original.attributes.values(),
        overload="" if original is None else original.overload,
        outputs=[ir.Value(name=name) for name in placed.outputs],
        name=placed.name,
        doc_string=None if original is None else original.doc_string,
        metadata_props={} if original is None else dict(original.metadata_props),
    )


def _pattern(nodes: dict[str, ir.Node], source: str) -> ir.Node | None:
    """Return a node of the model to copy: the source, or a view of another version where nobody reads that one."""
    if source in nodes:
        return nodes[source]
    return next((node for name, node in nodes.items() if name.startswith(f"{source}/view_")), None)


def _transfer_attributes(graph: TrainingGraph, placed: Placed) -> tuple[ir.Attr, ...]:
    if placed.slot is None or placed.op_type in ("PageOutEnd", "PageInEnd"):  # tokens and tickets know their slot
        return ()
    attributes = [ir.AttrInt64("slot", placed.slot)]
    if placed.op_type in ("PageIn", "PageInStart"):
        tensor = graph.tensors[placed.like[0]]
        attributes += [ir.AttrInt64("dtype", ir.DataType[tensor.dtype].value), ir.AttrInt64s("shape", tensor.shape)]
    return tuple(attributes)


def _replace_nodes(graph: ir.Graph, kept: Sequence[ir.Node]) -> None:
    """Make the graph's node list the given one; nodes that are not in it are gone."""
    wanted = set(map(id, kept))
    dropped = [node for node in graph if id(node) not in wanted]
    graph.remove([node for node in graph if id(node) in wanted])
    graph.extend(kept)
    graph.remove(dropped, safe=True)


def _describe(value: ir.Value, tensor: Tensor | None) -> None:
    """Write type and shape; graph outputs keep what the model says of them."""
    if not value.name or (value.is_graph_output() and value.type is not None and value.shape is not None):
        return
    dtype = ir.DataType.INT64 if tensor is None else ir.DataType[tensor.dtype]
    value.type = ir.TensorType(dtype)
    value.shape = ir.Shape((1,) if tensor is None else tensor.shape)
