"""Which recomputed nodes are still alive in the graph that ONNX Runtime's optimizations made of a rewritten model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class OptimizedNode:
    """A node of the optimized graph, as the runtime wrote it out."""

    name: str
    op_type: str
    inputs: tuple[str, ...]


def fused_copies(
    rewritten: ir.Model, optimized: Sequence[OptimizedNode], copies: Iterable[str], values: Set[str]
) -> set[str]:
    """Return the names of the copies that run as part of another node.

    A copy reads at least one value that only the rewrite made: a Gate's output, another copy's or a page-in's. If an
    optimization merged the copy into its original, nothing new would read that value; if it fused the copy with a
    neighbour, the fused node reads it, or makes it, or another copy of the same fused chain does.

    Args:
        rewritten: the model as the file has it.
        optimized: the graph that ran.
        copies: names of recomputed nodes that did not run under their own names.
        values: names of the values that the graph had before the rewrite.
    """
    nodes = {node.name or "": node for node in rewritten.graph}
    known: Mapping[str, str] = {name: node.op_type for name, node in nodes.items()}
    changed = [node for node in optimized if known.get(node.name) != node.op_type]
    read = {value for node in changed for value in node.inputs}
    missing = set(copies)
    fused = {node.name for node in changed}
    for name, node in nodes.items():  # in the file's order, so that a chain is walked from its start
        if name not in missing:
            continue
        fresh = [value for value in node.inputs if value is not None and value.name not in values]
        makers = [value.producer() for value in fresh]
        if any(value.name in read for value in fresh) or any(maker and maker.name in fused for maker in makers):
            fused.add(name)
    return fused & missing
