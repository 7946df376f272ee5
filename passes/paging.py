"""Paging: insert the transfers of a plan, and tell them how large the page file is."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
from onnx_ir.passes import PassResult

from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.layout import DOMAIN
from poet_onnx.passes.weave import CarryOut
from poet_onnx.plan import Action, Plan

BLOCK_BYTES = 4096
"""Every slot of the page file has whole blocks of this size, as direct I/O needs them."""

_PAGE_OUTS = ("PageOut", "PageOutStart")


class InsertPaging(CarryOut):
    """Insert the transfers of a plan and let every reader read the newest version, paged in or recomputed.

    Rules: all of `poet_onnx.passes.layout`, applied to the whole plan. Gates that became needless because their reader
    now reads a paged-in version are removed, and triggers are chosen anew. And:
        P1. Every page-out node says how many bytes its slot has (`bytes`), how many slots the plan has (`plan_slots`)
            and how large its page file is (`plan_bytes`): the runtime reserves the file when the session is made and
            refuses a model that asks for more.
    """

    def __init__(self, graph: TrainingGraph, plan: Plan) -> None:
        super().__init__(graph, plan.steps)
        self._sizes = slot_sizes(graph, plan)

    def call(self, model: ir.Model) -> PassResult:
        """Insert the transfers and size their slots."""
        modified = super().call(model).modified
        plan_bytes = _in_blocks(self._sizes)
        for node in _page_outs(model):
            sizes = {"bytes": self._sizes[_slot(node)], "plan_slots": len(self._sizes), "plan_bytes": plan_bytes}
            for name, value in sizes.items():
                known = node.attributes.get(name)
                if known is None or known.as_int() != value:
                    node.attributes[name] = ir.AttrInt64(name, value)
                    modified = True
        return PassResult(model, modified)

    def ensures(self, model: ir.Model) -> None:
        """Check that the model is exactly what the steps say, and that every slot has its size."""
        super().ensures(model)
        for node in _page_outs(model):
            if "bytes" not in node.attributes:
                raise CheckFailedError(f"Page-out node '{node.name}' does not say how large its slot is.")


def slot_sizes(graph: TrainingGraph, plan: Plan) -> tuple[int, ...]:
    """Return the bytes of every slot of the page file: each paged-out value has one, numbered by first use (L7)."""
    values = dict.fromkeys(step.subject for step in plan.steps if step.action is Action.PAGE_OUT_START)
    return tuple(graph.tensors[value].size_bytes for value in values)


def page_file_bytes(graph: TrainingGraph, plan: Plan) -> int:
    """Return the room that a plan's page file takes."""
    return _in_blocks(slot_sizes(graph, plan))


def _in_blocks(sizes: Iterable[int]) -> int:
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes)


def _page_outs(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain == DOMAIN and node.op_type in _PAGE_OUTS]


def _slot(node: ir.Node) -> int:
    return node.attributes["slot"].as_int()
