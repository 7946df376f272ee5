"""A region of memory, laid out: the addresses of all that the steps of a plan allocate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

OUTSIDE = -1
"""Offset of what is not in the region."""


class Address(NamedTuple):
    """Where a block lies that a step allocates.

    Attributes:
        offset: bytes from the start of the region, or `OUTSIDE` for what leaves with the caller.
        size_bytes: that the allocator is asked for.
        dies: index of the last step in which the block is there.
    """

    offset: int
    size_bytes: int
    dies: int


class StepAddresses(NamedTuple):
    """Where lies what one step allocates.

    Attributes:
        workspace_offset, workspace_bytes: a part of the region that is free during this step; both 0 where the step
            needs none.
        blocks: what its node makes, in the order in which the kernel asks for it.
    """

    workspace_offset: int
    workspace_bytes: int
    blocks: tuple[Address, ...]


@dataclass(frozen=True)
class Region:
    """The memory of a step, laid out.

    Attributes:
        region_bytes: of all that is in it; a multiple of 64.
        steps: one for each step of the plan.
    """

    region_bytes: int
    steps: tuple[StepAddresses, ...]
