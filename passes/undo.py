"""Undo: the graph that was planned, out of a rewritten model, for those who have no other file of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.metadata import Description
from poet_onnx.description.names import POET_DOMAIN, RECOMPUTED, RUNS, handle_name, slot_name
from poet_onnx.graph import Role
from poet_onnx.graph.extract.artifacts import unsaid_roles
from poet_onnx.graph.extract.roles import say_role
from poet_onnx.passes.layout_nodes import ARENA, MARK, NEXT_STEP

_COPY = re.compile(rf"(.+){RECOMPUTED}[0-9]+", re.DOTALL)
_VIEW = re.compile(r"(.+)/view_[0-9]+", re.DOTALL)
_VERSION = re.compile(r"(.+)/(?:recompute|page_in)_[0-9]+", re.DOTALL)
_PASSES_ON = frozenset(("Gate", "PageOut", "PageOutStart", "PageOutEnd", "PageIn", "PageInStart", "PageInEnd"))
"""Operators whose outputs all stand for what their first input stands for: a token stands for what was paged out."""


class UndoPlan(InPlacePass):
    """Remove from a rewritten model what carries the plan out: copies, gates, transfers, addresses.

    Rules:
        U1. Recomputed nodes and the scratch that they get, gates, marks, transfers and the arena are removed. No node
            says which step begins behind it.
        U2. Each node that stays reads what it read when it was planned. Example: what reads `x/page_in_1` reads `x`.
        U3. A view that stands there for another version alone is the planned one: it gets its names back.
        U4. Inputs say again what they are for, as far as the metadata or the format tell.

    Requires a rewritten model, whose nodes stay in its order; views that nobody read when it was planned are lost.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Remove it all."""
        graph = model.graph
        nodes = {node.name or "": node for node in graph}
        stands_for: dict[ir.Value, ir.Value] = {}
        added: list[ir.Node] = []
        for node in graph:
            source = _source(node, nodes)
            if source is node:
                continue
            added.append(node)
            if source is not None:
                stands_for |= zip(node.outputs, source.outputs, strict=False)
            elif node.op_type in _PASSES_ON and node.inputs and node.inputs[0] is not None:
                stands_for |= dict.fromkeys(node.outputs, node.inputs[0])
        said = [node for node in graph if node.attributes.pop(NEXT_STEP, None) is not None]
        for node in graph:
            for place, value in enumerate(node.inputs):
                if value is not None and value in stands_for:
                    node.replace_input_with(place, _end_of(stands_for, value))
        for node in added:
            for place in range(len(node.inputs)):
                node.replace_input_with(place, None)
        graph.remove(added)
        _say_roles(model)
        return PassResult(model, modified=bool(added or said))


def _source(node: ir.Node, nodes: dict[str, ir.Node]) -> ir.Node | None:
    """Return the planned node that a node is or repeats; None where it was added."""
    name = node.name or ""
    if node.domain == POET_DOMAIN and (node.op_type in (ARENA, MARK) or node.op_type in _PASSES_ON):
        return None
    if node.op_type == "Neg" and "/scratch_" in name and node.inputs and _is_gate(node.inputs[0]):
        return None
    copy = _COPY.fullmatch(name)
    if copy is not None and copy[1] in nodes:
        return nodes[copy[1]]
    view = _VIEW.fullmatch(name)
    if view is None:
        return node
    if view[1] not in nodes:
        nodes[view[1]] = node
        node.name = view[1]
        for value in node.outputs:
            version = _VERSION.fullmatch(value.name or "")
            value.name = value.name if version is None else version[1]
    return nodes[view[1]]


def _is_gate(value: ir.Value | None) -> bool:
    maker = None if value is None else value.producer()
    return maker is not None and (maker.domain, maker.op_type) == (POET_DOMAIN, "Gate")


def _end_of(stands_for: dict[ir.Value, ir.Value], value: ir.Value) -> ir.Value:
    while value in stands_for:
        value = stands_for[value]
    return value


def _say_roles(model: ir.Model) -> None:
    """Let inputs say what they are for, which a rewrite removes where the metadata describe the training."""
    described = Description.of_metadata(model.metadata_props)
    if described is None:
        return
    roles = unsaid_roles(model.graph) | dict(_described(described))
    for value in model.graph.inputs:
        say_role(value, roles[value.name or ""])


def _described(described: Description) -> Iterator[tuple[str, Role]]:
    """Yield the names that a description knows, with what they are for."""
    for name in described.parameters:
        yield name, Role.PARAMETER
        for slot in described.updates.settings.slots:
            yield slot_name(name, slot), Role.MOMENT
    for name in (*described.stored, *described.constants):
        yield handle_name(name), Role.HANDLE
    for name in described.state:
        yield name, Role.STATISTIC
    for name in described.buffers.values():
        yield name, Role.GRADIENT_BUFFER
    yield from ((name, Role.RATES) for name in described.rates)
    yield RUNS, Role.RUNS
    yield described.flag, Role.FLAG
