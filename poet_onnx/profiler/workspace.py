"""Counts exactly what every kernel allocates beside its outputs, by running each distinct node alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.costing.workspace import has_workspace_rule, workspace_bytes
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.profiler.single import SingleNode, single_nodes


@dataclass(frozen=True, slots=True)
class CountedWorkspace:
    """The workspace of a node; estimated if it could not be counted and no rule gives it."""

    size_bytes: int
    estimated: bool = False


def count_workspace(
    model: ir.Model, graph: TrainingGraph, nodes: Iterable[Node], *, threads: int = 1
) -> dict[str, CountedWorkspace]:
    """Return the workspace of nodes of a normalized model by name; 0 for views.

    Nodes of the same operator, attributes, types and shapes are run once. A node that cannot run alone, because its
    inputs' values matter and are not constant, gets the rule of `workspace_bytes`.
    """
    nodes = list(nodes)
    found: dict[bytes, CountedWorkspace] = {}
    result = {node.name: CountedWorkspace(0) for node in nodes}
    for single in single_nodes(model, graph, nodes):
        key = single.key()
        if key not in found:
            found[key] = _counted_or_known(single, threads)
        result[single.node.name] = found[key]
    return result


def _counted_or_known(single: SingleNode, threads: int) -> CountedWorkspace:
    """Return what was counted, otherwise what a rule or an estimate says."""
    feeds = single.feeds()
    try:
        counted = single.count(single.session(threads), feeds)
    except Exception:  # noqa: BLE001 -- whatever ONNX Runtime did not like, the rule remains
        counted = None
    if counted is not None:
        return CountedWorkspace(counted)
    known_bytes = workspace_bytes(single.graph, single.node, threads=threads)
    return CountedWorkspace(known_bytes, estimated=not has_workspace_rule(single.node))
