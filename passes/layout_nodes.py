"""Nodes of a rewritten graph, and the operators and attributes by which arena and storage are told of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poet_onnx.graph.operators import spec_of

ARENA = "Arena"
"""Operator that serves a step's allocations at the plan's addresses: it stands before the nodes of the layout."""

MARK = "Mark"
"""Operator that tells the arena which step begins."""

NEXT_STEP = "next_step"
"""Attribute of any other operator of ours: the step that begins when the node has ended."""

TOKEN = ""
"""Stands in `LayoutNode.like` for an int64 tensor of one element: a token or a ticket."""


@dataclass(frozen=True, slots=True)
class LayoutNode:
    """A node of the rewritten graph.

    Attributes:
        name: of the node.
        op_type, domain: the operator; of an original node or of a copy, those of `source`.
        inputs, outputs: names of values, "" where absent.
        like: for every output the graph's tensor that it has the type and shape of, or `TOKEN`.
        source: name of the graph's node that it is, or repeats; "" for gates, scratch and transfers.
        slot: of a transfer, which slot of the page file; None otherwise.
        value: of a transfer, the tensor that it moves; "" otherwise.
        begins: of a mark, or behind a node of ours, the step that begins; None otherwise.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    like: tuple[str, ...]
    source: str = ""
    slot: int | None = None
    value: str = ""
    begins: int | None = None


def loaded_nodes(layout: Sequence[LayoutNode]) -> tuple[LayoutNode, ...]:
    """Return the nodes of a layout that a training session loads, which does without some Gates and Marks.

    Source: rule S6 of ops/session_model/session_model.h.
    """
    found: list[LayoutNode] = []
    is_left_out = False
    for node in layout:
        if is_left_out and node.op_type == MARK:
            continue
        maker = found[-1] if found else node
        needed = spec_of(maker.domain, maker.op_type).optional_outputs
        is_left_out = node.op_type == "Gate" and needed is not None and node.inputs == maker.outputs[needed:]
        if is_left_out:
            found[-1] = replace(maker, outputs=maker.outputs[:needed], like=maker.like[:needed])
        else:
            found.append(node)
    return tuple(found)
