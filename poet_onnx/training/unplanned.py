"""Take a plan out of a forward graph: what it computes again, and the operators that keep it in its order."""

from __future__ import annotations

from typing import NamedTuple

from poet_onnx.description.names import POET_DOMAIN, RECOMPUTED
from poet_onnx.training.forward_graph import ForwardGraph


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

    A plan's operators return what they read first. The names of a copy, and of what it makes, are those of the node
    with a number behind them.
    """
    own = [node for node in forward.nodes if POET_DOMAIN in node.domains]
    names = {node.outputs[0]: node.inputs[0] for node in own if node.inputs and node.outputs}
    gone = {node.begin for node in own}
    made = {name for node in forward.nodes for name in node.outputs} if own else set()
    for node in forward.nodes if own else ():
        originals = [name.rpartition(RECOMPUTED)[0] for name in node.outputs]
        if node.is_copy and made.issuperset(originals):
            gone.add(node.begin)
            names |= zip(node.outputs, originals, strict=True)
    names.pop("", None)
    for name in names:
        seen = {name}
        while names[name] in names and names[name] not in seen:
            seen.add(names[name])
            names[name] = names[names[name]]
    return Changes(names, gone)
