"""Annotate: write what every node costs into the model, for people who look at it in a viewer."""

from __future__ import annotations

import json

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.costing.costs import CostTable
from poet_onnx.errors import CheckFailedError

COST_KEY = "poet.cost"
"""One entry for all of a node's figures: a session keeps every entry of a node in memory, some 0.2 KB each."""


class AnnotateCosts(InPlacePass):
    """Write a cost table into the metadata of the nodes.

    Rules:
        A1. Every node of the table gets `poet.cost`, a JSON object of `seconds`, `joules` and `workspace_bytes`.
        A2. Numbers are written so that reading them back gives the same number.
        A3. They stay in the rewritten model; a recomputed node has those of the node that it repeats.

    Requires that the table knows every node of the model; ensures that each carries its figures.
    """

    def __init__(self, costs: CostTable) -> None:
        super().__init__()
        self._costs = costs

    def requires(self, model: ir.Model) -> None:
        """Check that every node has its costs."""
        for node in model.graph:
            if node.name not in self._costs.nodes:
                raise CheckFailedError(f"The cost table of device '{self._costs.device}' lacks node '{node.name}'.")

    def call(self, model: ir.Model) -> PassResult:
        """Write them."""
        modified = False
        for node in model.graph:
            cost = self._costs.nodes[node.name or ""]
            figures = {"seconds": cost.seconds, "joules": cost.joules, "workspace_bytes": cost.workspace_bytes}
            if cost.storage_joules or cost.storage_seconds:
                figures |= {"storage_seconds": cost.storage_seconds, "storage_joules": cost.storage_joules}
            text = json.dumps(figures)
            modified |= node.metadata_props.get(COST_KEY) != text
            node.metadata_props[COST_KEY] = text
        return PassResult(model, modified)

    def ensures(self, model: ir.Model) -> None:
        """Check that every node carries them."""
        for node in model.graph:
            if COST_KEY not in node.metadata_props:
                raise CheckFailedError(f"Node '{node.name}' carries no costs.")
