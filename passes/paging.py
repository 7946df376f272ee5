"""Paging: what the transfers of a plan say of their slots in the page file, and how large that file is.

Rules:
    P1. Every page-out node says how many bytes its slot has (`bytes`), how many slots the plan has (`plan_slots`) and
        how large its page file is (`plan_bytes`): the runtime reserves the file when the session is made and refuses a
        model that asks for more.
    P2. Every page-in node says what it makes (`dtype`, `shape`). Tokens and tickets know their slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.layout_nodes import LayoutNode
from poet_onnx.plan import Action, Step

BLOCK_BYTES = 4096
"""Every slot of the page file has whole blocks of this size, as direct I/O needs them."""


def page_file_bytes(graph: TrainingGraph, steps: Sequence[Step]) -> int:
    """Return the room that the page file of a plan's steps takes: each value that is paged out has one slot."""
    return _file_bytes(graph, {step.subject for step in steps if step.action is Action.PAGE_OUT_START})


def transfer_attributes(graph: TrainingGraph, layout: Sequence[LayoutNode]) -> dict[str, tuple[ir.Attr, ...]]:
    """Return the attributes of the transfers of a layout, by the node's name."""
    values = {placed.value for placed in layout if placed.value}
    shared = (
        ir.AttrInt64("plan_slots", len(values)),
        ir.AttrInt64("plan_bytes", _file_bytes(graph, values)),
    )
    attributes: dict[str, tuple[ir.Attr, ...]] = {}
    for placed in layout:
        if placed.slot is None:
            continue
        slot, tensor = ir.AttrInt64("slot", placed.slot), graph.tensors[placed.value]
        if placed.op_type in ("PageOut", "PageOutStart"):
            attributes[placed.name] = (slot, ir.AttrInt64("bytes", tensor.size_bytes), *shared)
        elif placed.op_type in ("PageIn", "PageInStart"):
            dtype = ir.AttrInt64("dtype", ir.DataType[tensor.dtype].value)
            attributes[placed.name] = (slot, dtype, ir.AttrInt64s("shape", tensor.shape))
    return attributes


def _file_bytes(graph: TrainingGraph, values: Iterable[str]) -> int:
    return sum(-(-graph.tensors[value].size_bytes // BLOCK_BYTES) * BLOCK_BYTES for value in values)
