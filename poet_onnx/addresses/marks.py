"""Marks: before which steps the runtime must be told where it is, as what they ask for would not tell.

The arena (ops/arena) follows a run by what is asked for and released. It knows the blocks of every step, in the order
of its kernel. It does not know how often a kernel asks for workspace, nor whether the caller has bound an output, which
then nobody asks for. So it may take the first request of the next step for one of these. A block that dies in a step
tells by its release that the step has ended. Where none does, a mark is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from poet_onnx.addresses.region import OUTSIDE, StepAddresses


def marks(steps: Sequence[StepAddresses]) -> dict[int, int]:
    """Return the steps whose beginning must be marked, by the first step before which the mark can stand.

    The number of the steps stands for the end of them all.
    """
    asking = [index for index, step in enumerate(steps) if step.workspace_bytes or step.blocks]
    told = {
        block.dies
        for index, step in enumerate(steps)
        for block in step.blocks
        if block.offset != OUTSIDE and block.dies > index
    }
    return {
        step + 1: following
        for step, following in pairwise((*asking, len(steps)))
        if step not in told and not _is_told_apart(steps, step, following)
    }


def _is_told_apart(steps: Sequence[StepAddresses], index: int, following: int) -> bool:
    """Return whether what the following step asks for first can be nothing of the step before it."""
    step = steps[index]
    if any(block.offset == OUTSIDE for block in step.blocks):
        return False
    if step.workspace_bytes == 0:
        return True
    if following == len(steps) or any(index < block.dies < following for block in step.blocks):
        return False
    next_step = steps[following]
    is_sure_to_ask = any(block.offset != OUTSIDE for block in next_step.blocks)
    smallest_bytes = min((block.size_bytes for block in next_step.blocks), default=0)
    return is_sure_to_ask and next_step.workspace_bytes == 0 and smallest_bytes > step.workspace_bytes
