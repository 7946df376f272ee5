"""Annotate: write what every node costs into the model, for people who look at it in a viewer."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.costing.costs import CostTable
from poet_onnx.errors import CheckFailedError

SECONDS_KEY, JOULES_KEY, WORKSPACE_KEY = "poet.seconds", "poet.joules", "poet.workspace_bytes"


class AnnotateCosts(InPlacePass):
    """Write a cost table into the metadata of the nodes.

    Rules:
        A1. Every node of the table gets `poet.seconds`, `poet.joules` and `poet.workspace_bytes`.
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
            figures = {
                SECONDS_KEY: repr(float(cost.seconds)),
                JOULES_KEY: repr(float(cost.joules)),
                WORKSPACE_KEY: str(cost.workspace_bytes),
            }
            modified |= any(node.metadata_props.get(key) != text for key, text in figures.items())
            node.metadata_props.update(figures)
        return PassResult(model, modified)

    def ensures(self, model: ir.Model) -> None:
        """Check that every node carries them."""
        for node in model.graph:
            if WORKSPACE_KEY not in node.metadata_props:
                raise CheckFailedError(f"Node '{node.name}' carries no costs.")
