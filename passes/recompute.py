"""Recompute: insert the nodes that a plan runs again."""

from __future__ import annotations

from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.weave import CarryOut
from poet_onnx.plan import Action, Plan


class InsertRecompute(CarryOut):
    """Insert the recomputed nodes of a plan, behind gates, and let every reader read the newest version.

    Rules: L1 to L6 of `poet_onnx.passes.layout`, applied to all of the plan's runs, first and repeated. The model that
    this makes is complete: it computes what the original computes, with the plan's recomputation, without its paging.
    """

    def __init__(self, graph: TrainingGraph, plan: Plan) -> None:
        super().__init__(graph, (step for step in plan.steps if step.action is Action.COMPUTE))
