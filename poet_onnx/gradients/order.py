"""The order in which ONNX Runtime numbers a graph's nodes: it decides in which order partial gradients are added.

Its gradient builder walks nodes by number, and the numbers come from the order in which its optimizer wrote them to a
protobuf: depth first from the leaves, larger numbers first (`Graph::ReverseDFSFrom`, onnxruntime/core/graph/graph.cc).
Additions of three or more terms in another order would have other bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir


class Numbers:
    """ONNX Runtime's numbers of a graph's nodes: by place in the file; what its optimizer makes comes last."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._number = {node: number for number, node in enumerate(graph)}
        self._next = len(self._number)

    def __getitem__(self, node: ir.Node) -> int:
        """Return a node's number."""
        return self._number[node]

    def add(self, node: ir.Node) -> None:
        """Give a node that takes the place of others the next number."""
        self._number[node] = self._next
        self._next += 1

    def visit(self) -> list[ir.Node]:
        """Return the graph's nodes in the order in which ONNX Runtime walks and writes them."""
        return depth_first(list(self._graph), self._number)

    def write(self) -> None:
        """Put the nodes into that order and number them by it, as writing to a file and reading it does."""
        nodes = self.visit()
        self._graph.remove(nodes)
        self._graph.extend(nodes)
        self._number = {node: number for number, node in enumerate(nodes)}
        self._next = len(nodes)


def depth_first(nodes: Sequence[ir.Node], number: Mapping[ir.Node, int]) -> list[ir.Node]:
    """Return nodes after what they read: leaves from the last to the first, of a node's sources the last first."""
    inside = set(nodes)
    leaves = [node for node in sorted(nodes, key=number.__getitem__) if not _readers(node) & inside]
    stack: list[tuple[ir.Node, bool]] = [(node, False) for node in leaves]
    entered: set[ir.Node] = set()
    ordered: list[ir.Node] = []
    while stack:
        node, leave = stack.pop()
        if leave:
            ordered.append(node)
            continue
        if node in entered:
            continue
        entered.add(node)
        stack.append((node, True))
        sources = {value.producer() for value in node.inputs if value is not None}
        known = [source for source in sources if source is not None and source in inside and source not in entered]
        stack += [(source, False) for source in sorted(known, key=number.__getitem__)]
    return ordered


def _readers(node: ir.Node) -> set[ir.Node]:
    return {use.node for output in node.outputs for use in output.uses()}
