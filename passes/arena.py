"""Arena: write into the model where in one region of memory its step's blocks lie."""

from __future__ import annotations

from itertools import chain

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.addresses.region import Address, Region, StepAddresses
from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.errors import CheckFailedError
from poet_onnx.passes.layout_nodes import ARENA


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
        node = ir.Node(POET_DOMAIN, ARENA, graph.inputs[:1], attributes, outputs=[armed], name=name)
        graph.insert_before(graph[0], node)
        model.opset_imports[POET_DOMAIN] = POET_VERSION
        return PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Check that the node is there, before all others."""
        if self._is_needed(model) and read_region(model) != self._region:
            raise CheckFailedError("The rewritten graph does not begin with a node that has the plan's addresses.")

    def _is_needed(self, model: ir.Model) -> bool:
        return self._region.region_bytes > 0 and len(model.graph.inputs) > 0


def layout_numbers(region: Region) -> tuple[int, ...]:
    """Return the addresses of a region as the operator's attribute `layout` has them."""
    return tuple(
        number
        for step in region.steps
        for number in (step.workspace_offset, step.workspace_bytes, len(step.blocks), *chain(*step.blocks))
    )


def read_region(model: ir.Model) -> Region | None:
    """Return the addresses that a rewritten model begins with, None where it has none.

    Raises:
        CheckFailedError: if they were changed to something that is no layout.
    """
    first = next(iter(model.graph), None)
    if first is None or (first.domain, first.op_type) != (POET_DOMAIN, ARENA):
        return None
    size, layout = first.attributes.get("region_bytes"), first.attributes.get("layout")
    if size is None or layout is None or (size.type, layout.type) != (ir.AttributeType.INT, ir.AttributeType.INTS):
        raise CheckFailedError(f"Node '{first.name}' has no addresses.")
    numbers = tuple(layout.as_ints())
    steps, at = list[StepAddresses](), 0
    while at < len(numbers):
        head = numbers[at : at + 3]
        blocks = numbers[at + 3 : at + 3 + 3 * head[-1]]
        if len(head) < 3 or head[2] < 0 or len(blocks) < 3 * head[2]:
            raise CheckFailedError(f"The addresses of node '{first.name}' end within step {len(steps)}.")
        addresses = zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True)
        steps.append(StepAddresses(head[0], head[1], tuple(Address(*address) for address in addresses)))
        at += 3 + len(blocks)
    return Region(size.as_int(), tuple(steps))
