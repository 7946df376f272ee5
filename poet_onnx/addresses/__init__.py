"""Addresses: where in one region of memory every block that a plan's step allocates lies.

They follow from the graph, the plan, the costs' workspace and the target alone, so that a plan that was saved gives the
same addresses on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poet_onnx.addresses.packing import pack
from poet_onnx.addresses.region import OUTSIDE, Address, Region, StepAddresses
from poet_onnx.addresses.slots import Slot
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate import replay
from poet_onnx.simulate.blocks import Block, BlockKind

SLOT_BYTES = 64
"""Slots are a multiple of this long and begin at one: a cache line, and what ONNX Runtime's kernels expect."""

BLOCK_EXTRA_BYTES = 30
"""What onnxruntime adds to every block on aarch64; measured with 1.31.1, and MLAS_SYMM_QGEMM_BUF_OVERRUN in mlas.h."""

PAGE_BYTES, LARGE_BYTES = 4096, 64 * 1024
"""Values of at least `LARGE_BYTES` that are paged begin at a multiple of `PAGE_BYTES`, as direct I/O needs it."""

WORKSPACE_EXTRA_BYTES = 256
"""Room that a workspace has beyond its bytes: kernels may take several blocks of it, each rounded up."""


def plan_region(problem: ScheduleProblem, steps: Sequence[Step], target: str) -> Region:
    """Give every block of a plan an address.

    Args:
        problem: the graph and its costs.
        steps: of the plan.
        target: runtime that will run it; the stock one asks for larger blocks on aarch64.

    Raises:
        CheckFailedError: if the steps are no valid plan of the graph.
    """
    blocks = plan_blocks(problem, steps)
    paged = frozenset(step.subject for step in steps if step.action is Action.PAGE_OUT_START)
    extra_bytes = BLOCK_EXTRA_BYTES if target == "stock" else 0
    slots = [_slot(block, paged, extra_bytes) for block in blocks if not block.leaves]
    packing = pack(slots)
    offsets = iter(packing.offsets)
    made: list[list[Address]] = [[] for _ in steps]
    workspace = [(0, 0)] * len(steps)
    for block in blocks:
        offset = OUTSIDE if block.leaves else next(offsets)
        if block.kind is BlockKind.WORKSPACE:
            workspace[block.born] = offset, _slot_bytes(block, extra_bytes)
        else:
            made[block.born].append(Address(offset, block.size_bytes, block.dies))
    laid_out = tuple(StepAddresses(*room, tuple(made[index])) for index, room in enumerate(workspace))
    return Region(packing.region_bytes, laid_out)


def plan_blocks(problem: ScheduleProblem, steps: Sequence[Step]) -> list[Block]:
    """Return the blocks of a plan that are not empty; limits are not looked at.

    Raises:
        CheckFailedError: if the steps are no valid plan of the graph.
    """
    return [block for block in replay(problem, steps).blocks if block.size_bytes]


def false_addresses(problem: ScheduleProblem, steps: Sequence[Step], region: Region) -> Iterator[str]:
    """Yield a sentence for each step in which a region has other blocks than a plan, or has two in one place.

    Workspace depends on costs that may not be at hand: of it only is asked that nothing else is there meanwhile.

    Raises:
        CheckFailedError: if the steps are no valid plan of the graph.
    """
    expected = plan_blocks(problem, steps)
    made: list[list[Block]] = [[] for _ in steps]
    for block in expected:
        if block.kind is not BlockKind.WORKSPACE:
            made[block.born].append(block)
    if len(region.steps) != len(steps):
        yield f"The file has addresses for {len(region.steps)} steps, but its plan has {len(steps)}."
        return
    busy: list[tuple[int, int, int]] = []
    for index, (step, blocks) in enumerate(zip(region.steps, made, strict=True)):
        found = [(block.size_bytes, block.dies, block.offset == OUTSIDE) for block in step.blocks]
        if found != [(block.size_bytes, block.dies, block.leaves) for block in blocks]:
            yield f"The file has addresses for other blocks in step {index} than its plan makes there."
        busy = [area for area in busy if area[2] >= index]
        new = [
            (block.offset, block.offset + block.size_bytes, block.dies) for block in step.blocks if block.offset >= 0
        ]
        new.append((step.workspace_offset, step.workspace_offset + step.workspace_bytes, index))
        for start, end, dies in new:
            if end > region.region_bytes or any(start < high and low < end for low, high, _ in busy):
                yield f"The file has two blocks at {start} bytes in step {index}, or one beyond the region."
            if end > start:
                busy.append((start, end, dies))


def _slot(block: Block, paged: frozenset[str], extra_bytes: int) -> Slot:
    is_page = block.kind is BlockKind.VALUE and block.name in paged and block.size_bytes >= LARGE_BYTES
    alignment_bytes = PAGE_BYTES if is_page else SLOT_BYTES
    return Slot(block.born, block.dies, _slot_bytes(block, extra_bytes), alignment_bytes)


def _slot_bytes(block: Block, extra_bytes: int) -> int:
    is_workspace = block.kind is BlockKind.WORKSPACE
    size_bytes = block.size_bytes + (WORKSPACE_EXTRA_BYTES if is_workspace else extra_bytes)
    return -(-size_bytes // SLOT_BYTES) * SLOT_BYTES
