"""What every node and every transfer costs on a device: seconds, joules, workspace bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poet_onnx.device import DeviceProfile
from poet_onnx.flops import count_work
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.workspace import workspace_bytes


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


def cost_table(graph: TrainingGraph, device: DeviceProfile) -> CostTable:
    """Return what every node and every transfer of a graph costs on a device."""
    nodes = {node.name: _modelled_cost(graph, node, device) for node in graph.nodes}
    page_out: dict[str, TransferCost] = {}
    page_in: dict[str, TransferCost] = {}
    storage = device.storage
    if storage is not None:
        for tensor in graph.tensors.values():
            if tensor.resident or tensor.storage != tensor.name:
                continue
            seconds = storage.page_out_latency_seconds + tensor.size_bytes / storage.page_out_bytes_per_second
            page_out[tensor.name] = TransferCost(seconds, seconds * storage.watts)
            seconds = storage.page_in_latency_seconds + tensor.size_bytes / storage.page_in_bytes_per_second
            page_in[tensor.name] = TransferCost(seconds, seconds * storage.watts)
    asynchronous = storage is not None and storage.asynchronous
    return CostTable(device.name, nodes, page_out, page_in, asynchronous, device.compute.idle_watts)


def _modelled_cost(graph: TrainingGraph, node: Node, device: DeviceProfile) -> NodeCost:
    if node.view:
        return NodeCost(0.0, 0.0, 0)
    compute = device.compute
    work = count_work(graph, node)
    busy = work.matmul_flops / compute.matmul_flops_per_second
    busy += work.elementwise_flops / compute.elementwise_flops_per_second
    moving = work.moved_bytes / compute.memory_bytes_per_second if compute.memory_bytes_per_second else 0.0
    seconds = max(busy, moving) + (compute.node_overhead_seconds or 0.0)
    if compute.joules_per_flop is None:
        joules = seconds * compute.active_watts
    else:
        joules = (work.matmul_flops + work.elementwise_flops) * compute.joules_per_flop
    return NodeCost(seconds, joules, workspace_bytes(graph, node))
