"""Arena: write into the model where in one region of memory its step's blocks lie."""

from __future__ import annotations

from itertools import chain

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.addresses.region import Region
from poet_onnx.errors import CheckFailedError
from poet_onnx.passes.layout import DOMAIN
from poet_onnx.passes.weave import DOMAIN_VERSION

OP_TYPE = "Arena"
"""Operator that serves the allocations of a step from the region."""


class InsertArena(InPlacePass):
    """Put a node that carries a plan's addresses before all others.

    Rules:
        A1. The node reads the model's first input, for a node must read something, and makes a flag that nobody reads.
        A2. `region_bytes` is the size of the region, `layout` has for every step of the plan its workspace's offset and
            bytes, the number of its blocks, and of each of these offset, bytes and the last step in which it lives.
        A3. Where nothing is in the region, or the model has no inputs, there is no such node.

    Requires that the model carries the whole plan out; ensures that the node is the first.
    """

    def __init__(self, region: Region) -> None:
        super().__init__()
        self._region = region

    def call(self, model: ir.Model) -> PassResult:
        """Insert the node."""
        graph = model.graph
        if not self._is_needed(model):
            return PassResult(model, modified=False)
        taken = {node.name for node in graph} | {value.name for node in graph for value in node.outputs}
        taken |= {value.name for value in graph.inputs} | set(graph.initializers)
        name = "arena"
        while not taken.isdisjoint((name, f"{name}/armed")):
            name += "_"
        armed = ir.Value(name=f"{name}/armed", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape((1,)))
        attributes = (
            ir.AttrInt64("region_bytes", self._region.region_bytes),
            ir.AttrInt64s("layout", layout_numbers(self._region)),
        )
        node = ir.Node(DOMAIN, OP_TYPE, graph.inputs[:1], attributes, outputs=[armed], name=name)
        graph.insert_before(graph[0], node)
        model.opset_imports[DOMAIN] = DOMAIN_VERSION
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Check that the node is there, before all others."""
        if self._is_needed(model) and (model.graph[0].domain, model.graph[0].op_type) != (DOMAIN, OP_TYPE):
            raise CheckFailedError("The node with the plan's addresses is not the first of the rewritten graph.")

    def _is_needed(self, model: ir.Model) -> bool:
        return self._region.region_bytes > 0 and len(model.graph.inputs) > 0


def layout_numbers(region: Region) -> tuple[int, ...]:
    """Return the addresses of a region as the operator's attribute `layout` has them."""
    return tuple(
        number
        for step in region.steps
        for number in (step.workspace_offset, step.workspace_bytes, len(step.blocks), *chain(*step.blocks))
    )
