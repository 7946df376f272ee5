"""Take a plan out of a forward graph: what it computes again, and the operators that keep it in its order."""

from __future__ import annotations

from typing import NamedTuple

from poet_onnx.training.forward_graph import ForwardGraph

DOMAIN, RECOMPUTED = "poet", "/recompute_"
"""As in poet_onnx/passes/layout.py, which needs onnx_ir: of a plan's operators, and in the names of copies of nodes."""


class Changes(NamedTuple):
    """What changes in a graph.

    Attributes:
        names: by which other name is to be read, or made, what has a name.
        gone: nodes that go, by where they begin.
    """

    names: dict[str, str]
    gone: set[int]


def remove_plan(forward: ForwardGraph) -> Changes:
    """Return what changes when a graph is to be without its plan; nothing where it has none.

    A plan's operators return what they read first, and a copy of a node makes what the node has made.
    """
    own = [node for node in forward.nodes if DOMAIN in node.domains]
    names = {node.outputs[0]: node.inputs[0] for node in own if node.inputs and node.outputs}
    gone = {node.begin for node in own}
    originals = {node.name: node for node in forward.nodes} if own else {}
    for node in forward.nodes if own else ():
        original = originals.get(node.name.rpartition(RECOMPUTED)[0]) if RECOMPUTED in node.name else None
        if original is not None:
            gone.add(node.begin)
            names |= zip(node.outputs, original.outputs, strict=False)
    names.pop("", None)
    for name in names:
        seen = {name}
        while names[name] in names and names[name] not in seen:
            seen.add(names[name])
            names[name] = names[names[name]]
    return Changes(names, gone)
