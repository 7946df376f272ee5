"""Paging: insert the transfers of a plan."""

from __future__ import annotations

from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.weave import CarryOut
from poet_onnx.plan import Plan


class InsertPaging(CarryOut):
    """Insert the transfers of a plan and let every reader read the newest version, paged in or recomputed.

    Rules: all of `poet_onnx.passes.layout`, applied to the whole plan. Gates that became needless because their reader
    now reads a paged-in version are removed, and triggers are chosen anew.
    """

    def __init__(self, graph: TrainingGraph, plan: Plan) -> None:
        super().__init__(graph, plan.steps)
