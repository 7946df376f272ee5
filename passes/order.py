"""Order: put the nodes into the plan's order."""

from __future__ import annotations

from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.weave import CarryOut
from poet_onnx.plan import Action, Plan


class OrderNodes(CarryOut):
    """Put a model's nodes into the order in which a plan runs them for the first time.

    Rules: L1 and L2 of `poet_onnx.passes.layout`, applied to the plan's first runs only. Type and shape of every tensor
    of the graph are written into the model.
    """

    def __init__(self, graph: TrainingGraph, plan: Plan) -> None:
        super().__init__(graph, (step for step in plan.steps if step.action is Action.COMPUTE and not step.copy))
