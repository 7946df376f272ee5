"""What every node and every transfer costs on a device: seconds, joules, workspace bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeCost:
    """The cost of running a node once.

    Attributes:
        seconds: wall time.
        joules: energy of that time.
        workspace_bytes: bytes that the kernel allocates beside its outputs and frees before it returns.
        measured: True if a profile gave the figures, False if the analytic model did.
    """

    seconds: float
    joules: float
    workspace_bytes: int
    measured: bool = False


@dataclass(frozen=True, slots=True)
class TransferCost:
    """The cost of moving a tensor once between RAM and storage."""

    seconds: float
    joules: float


@dataclass(frozen=True)
class CostTable:
    """Costs of a graph on a device.

    Attributes:
        device: name of the device profile.
        nodes: by node name, views included.
        page_out, page_in: by name of a transient tensor that owns its storage; both empty if the device has no storage.
        asynchronous: transfers run beside compute; otherwise each one stops it.
        idle_watts: added for every second of the step; 0 where the nodes' joules already hold all of it.
    """

    device: str
    nodes: Mapping[str, NodeCost]
    page_out: Mapping[str, TransferCost]
    page_in: Mapping[str, TransferCost]
    asynchronous: bool
    idle_watts: float = 0.0
