"""What every node and every transfer costs on a device: seconds, joules, workspace bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile

from poet_onnx.costing.device import DeviceProfile, StorageProfile
from poet_onnx.costing.flops import count_work, storage_work
from poet_onnx.costing.measured import MeasuredCosts, NodeMeasurement, StorageMeasurement
from poet_onnx.costing.store_traffic import AHEAD_BYTES, commit_work, reads_ahead, store_written_bytes
from poet_onnx.costing.workspace import has_workspace_rule, workspace_bytes
from poet_onnx.errors import InputError
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.graph.operators import StorageWork


@dataclass(frozen=True, slots=True)
class NodeCost:
    """The cost of running a node once.

    Attributes:
        seconds: wall time.
        joules: energy of that time.
        workspace_bytes: bytes that the kernel allocates beside its outputs and frees before it returns.
        measured: True if a profile gave time and workspace, False if the analytic model did.
        storage_seconds: of `seconds`, what it first waits for the storage, which does one transfer after the other.
        storage_joules: of `joules`, what the storage takes, whether the node waits for it or not.
    """

    seconds: float
    joules: float
    workspace_bytes: int
    measured: bool = False
    storage_seconds: float = 0.0
    storage_joules: float = 0.0


@dataclass(frozen=True, slots=True)
class TransferCost:
    """The cost of moving a tensor once between RAM and storage."""

    seconds: float
    joules: float


@dataclass(frozen=True, slots=True)
class Channel:
    """What moves between RAM and storage, one transfer after the other: latencies and rates of both directions.

    Attributes:
        page_out_latency_seconds, page_out_bytes_per_second, page_in_latency_seconds, page_in_bytes_per_second: of
            pages.
        watts: while it moves something.
        store_latency_seconds: of each tensor that a store's node reads or writes.
        store_read_bytes_per_second, store_write_bytes_per_second: of a store.
        commit_seconds, commit_seconds_per_byte: of a store's commit, besides what the commit itself writes, and until
            the storage has each byte that was written since the one before.
        ahead_bytes: of a store that are read ahead while a step computes; 0 where each node waits for all that it
            reads and writes.
    """

    page_out_latency_seconds: float
    page_out_bytes_per_second: float
    page_in_latency_seconds: float
    page_in_bytes_per_second: float
    watts: float
    store_latency_seconds: float
    store_read_bytes_per_second: float
    store_write_bytes_per_second: float
    commit_seconds: float = 0.0
    commit_seconds_per_byte: float = 0.0
    ahead_bytes: float = 0.0

    @classmethod
    def of(cls, figures: StorageProfile | StorageMeasurement, storage: StorageProfile) -> Channel:
        """Return the channel with the figures of a profile or a measurement.

        Where nothing is known of a store, its tensors move as pages do. Where no power was, the profile's watts count.
        """
        watts = figures.watts if figures.watts is not None else storage.watts
        channel = cls(
            figures.page_out_latency_seconds,
            figures.page_out_bytes_per_second,
            figures.page_in_latency_seconds,
            figures.page_in_bytes_per_second,
            watts,
            figures.page_in_latency_seconds,
            figures.page_in_bytes_per_second,
            figures.page_out_bytes_per_second,
        )
        store = figures.store
        if store is None:
            return channel
        return replace(
            channel,
            store_latency_seconds=store.latency_seconds,
            store_read_bytes_per_second=store.read_bytes_per_second,
            store_write_bytes_per_second=store.write_bytes_per_second,
            commit_seconds=store.commit_seconds,
            commit_seconds_per_byte=1 / store.commit_bytes_per_second if store.commit_bytes_per_second else 0.0,
            ahead_bytes=AHEAD_BYTES if store.reads_ahead else 0.0,
        )

    def page_out(self, size_bytes: int) -> TransferCost:
        """Return what it costs to write so many bytes."""
        seconds = self.page_out_latency_seconds + size_bytes / self.page_out_bytes_per_second
        return TransferCost(seconds, seconds * self.watts)

    def page_in(self, size_bytes: int) -> TransferCost:
        """Return what it costs to read so many bytes."""
        seconds = self.page_in_latency_seconds + size_bytes / self.page_in_bytes_per_second
        return TransferCost(seconds, seconds * self.watts)

    def exposed_seconds(self, transfer_seconds: float, computing_seconds: float) -> float:
        """Return how long a node waits for transfers of a store besides its computing.

        Where pages are read ahead and written behind, it computes on one while the next ones are on their way. Some are
        there when it begins, for the nodes before it computed as well.
        """
        if not self.ahead_bytes:
            return transfer_seconds
        ahead_seconds = self.ahead_bytes / self.store_read_bytes_per_second
        return max(0.0, transfer_seconds - computing_seconds - ahead_seconds)

    def transfer_seconds(self, work: StorageWork) -> float:
        """Return how long the storage takes for what a node reads and writes of a store, or a commit."""
        seconds = work.transfers * self.store_latency_seconds
        seconds += work.read_bytes / self.store_read_bytes_per_second
        seconds += work.written_bytes / self.store_write_bytes_per_second
        return seconds

    def commit(self, graph: TrainingGraph, nodes: Mapping[str, NodeCost]) -> TransferCost:
        """Return what it costs to commit a store behind a step of a graph; nothing where there is none.

        What an update leaves in the page cache alone is on its way to the storage at once, beside the nodes behind it.

        Args:
            graph: of the step.
            nodes: what they cost, by name.
        """
        work = commit_work(graph)
        if work is None:
            return TransferCost(0.0, 0.0)
        seconds = self.transfer_seconds(work) + self.commit_seconds
        written_seconds = store_written_bytes(graph) * self.commit_seconds_per_byte
        beside_seconds = sum(
            nodes[node.name].seconds for node in dropwhile(partial(_writes_no_store, graph), graph.nodes)
        )
        return TransferCost(
            seconds + max(0.0, written_seconds - beside_seconds), (seconds + written_seconds) * self.watts
        )


def _writes_no_store(graph: TrainingGraph, node: Node) -> bool:
    work = storage_work(graph, node)
    return work is None or not work.written_bytes


@dataclass(frozen=True)
class CostTable:
    """Costs of a graph on a device.

    Attributes:
        device: name of the device profile.
        nodes: by node name, views included.
        page_out, page_in: by name of a transient tensor that owns its buffer; both empty if the device has no storage.
        asynchronous: transfers run beside compute; otherwise each one stops it.
        wake_seconds: until a channel at rest begins with a transfer that is handed over to it.
        hand_over_seconds: of the computing thread, for each transfer that it hands over; one that it carries out
            itself, because the step waits for it at once, takes neither.
        idle_watts: added for every second of the step; 0 where the nodes' joules already hold all of it.
        energy_measured: the nodes' joules come from a power meter, not from the device profile's watts.
        storage: the device profile's; None if the device has no storage.
        channel: whose transfers these are; None likewise.
        commit: of the store behind each step, which waits for it; nothing where there is no store.
    """

    device: str
    nodes: Mapping[str, NodeCost]
    page_out: Mapping[str, TransferCost]
    page_in: Mapping[str, TransferCost]
    asynchronous: bool
    idle_watts: float = 0.0
    energy_measured: bool = False
    storage: StorageProfile | None = None
    channel: Channel | None = None
    wake_seconds: float = 0.0
    hand_over_seconds: float = 0.0
    commit: TransferCost = TransferCost(0.0, 0.0)

    def transfer_joules(self, transfer: TransferCost) -> float:
        """Return the energy of a transfer, with what the device takes meanwhile if it stops the step."""
        return transfer.joules + (0.0 if self.asynchronous else self.idle_watts * transfer.seconds)


def cost_table(
    graph: TrainingGraph,
    device: DeviceProfile,
    measured: MeasuredCosts | None = None,
    *,
    first_graph: TrainingGraph | None = None,
    threads: int = 1,
) -> CostTable:
    """Return what every node and every transfer of a graph costs on a device.

    A node takes the larger of its arithmetic at the device's rate and its bytes at memory bandwidth, plus the runtime's
    overhead; joules are active watts x seconds, unless the profile gives joules per flop. A transfer takes latency plus
    bytes at the storage's rate; its joules are storage watts x seconds.

    Args:
        graph: the training graph.
        device: the profile whose numbers are used.
        measured: replaces times, workspace, storage rates and, where it was metered, power by what was measured.
        first_graph: the first graph variant, where `graph` is another one: what was measured covers the first
            with all nodes, others with the nodes that the first does not have. In a variant that was not measured
            these are modelled, in proportion to what the first variant took.
        threads: threads inside an operator: each may need workspace, and the profile may say how rates and power grow.

    Raises:
        InputError: `measured` is of another graph.
    """
    if measured is None:
        nodes = {node.name: _modelled_cost(graph, node, device, threads) for node in graph.nodes}
    else:
        measured.check_graph(first_graph or graph)
        nodes = _measured_costs(graph, device, measured, first_graph or graph)
    idle_watts = device.compute.idle_watts
    energy_measured = measured is not None and measured.active_watts is not None
    storage = device.storage
    found = measured.storage if measured is not None else None
    figures = found or storage
    channel = None if storage is None or figures is None else Channel.of(figures, storage)
    if channel is not None and not reads_ahead(graph):
        channel = replace(channel, ahead_bytes=0.0)
    nodes |= _with_storage(graph, nodes, channel, device)
    if storage is None or channel is None or figures is None:
        return CostTable(device.name, nodes, {}, {}, False, idle_watts, energy_measured)
    pageable = [t for t in graph.tensors.values() if t.may_move]
    return CostTable(
        device.name,
        nodes,
        {t.name: channel.page_out(t.size_bytes) for t in pageable},
        {t.name: channel.page_in(t.size_bytes) for t in pageable},
        storage.asynchronous,
        idle_watts,
        energy_measured,
        storage,
        channel,
        wake_seconds=figures.wake_seconds or 0.0,
        hand_over_seconds=figures.hand_over_seconds or 0.0,
        commit=channel.commit(graph, nodes),
    )


def _with_storage(
    graph: TrainingGraph, nodes: Mapping[str, NodeCost], channel: Channel | None, device: DeviceProfile
) -> dict[str, NodeCost]:
    """Return the costs of nodes that read or write a store on disk, which the computing thread waits for.

    Raises:
        InputError: there is such a node, and the device has no storage.
    """
    costs = {}
    for node in graph.nodes:
        work = storage_work(graph, node)
        if work is None:
            continue
        if channel is None:
            raise InputError(f"Parameters in a store need storage, which device '{device.name}' does not have.")
        seconds, cost = channel.transfer_seconds(work), nodes[node.name]
        waits, joules = channel.exposed_seconds(seconds, cost.seconds), seconds * channel.watts
        costs[node.name] = replace(
            cost,
            seconds=cost.seconds + waits,
            joules=cost.joules + joules,
            storage_seconds=waits,
            storage_joules=joules,
        )
    return costs


def _modelled_cost(graph: TrainingGraph, node: Node, device: DeviceProfile, threads: int) -> NodeCost:
    if node.view:
        return NodeCost(0.0, 0.0, 0)
    compute = device.compute.with_threads(threads)
    work = count_work(graph, node)
    arithmetic = work.matmul_flops / compute.matmul_flops_per_second
    arithmetic += work.elementwise_flops / compute.elementwise_flops_per_second
    movement = 0.0
    if compute.memory_bytes_per_second is not None:
        movement = work.moved_bytes / compute.memory_bytes_per_second
    seconds = max(arithmetic, movement) + (compute.node_overhead_seconds or 0.0)
    joules = seconds * compute.active_watts
    if compute.joules_per_flop is not None:
        joules = (work.matmul_flops + work.elementwise_flops) * compute.joules_per_flop
    return NodeCost(seconds, joules, workspace_bytes(graph, node, threads=threads, whole_columns=device.whole_columns))


def _measured_costs(
    graph: TrainingGraph, device: DeviceProfile, measured: MeasuredCosts, first_graph: TrainingGraph
) -> dict[str, NodeCost]:
    new = graph.nodes_beyond(first_graph)
    found = measured.nodes_of_form(graph, new)
    known = measured.nodes if found is None else {**measured.nodes, **found}
    costs = {node.name: _measured_cost(graph, node, known.get(node.name), device, measured) for node in graph.nodes}
    if found is None:
        costs |= _costs_in_proportion(graph, new, device, measured, first_graph)
    return costs


def _measured_cost(
    graph: TrainingGraph, node: Node, found: NodeMeasurement | None, device: DeviceProfile, measured: MeasuredCosts
) -> NodeCost:
    if found is None:  # a view, or a new node whose cost comes next: the others were checked
        return NodeCost(0.0, 0.0, 0, measured=True)
    seconds = found.seconds + measured.node_overhead_seconds
    step_watts = measured.active_watts or device.compute.with_threads(measured.threads).active_watts
    watts = step_watts if found.active_watts is None else found.active_watts
    joules = found.seconds * watts + measured.node_overhead_seconds * step_watts
    return NodeCost(
        seconds,
        joules,
        _measured_workspace_bytes(graph, node, found, measured, device),
        measured=not (found.workspace_estimated or found.fitted),
    )


def _measured_workspace_bytes(
    graph: TrainingGraph, node: Node, found: NodeMeasurement, measured: MeasuredCosts, device: DeviceProfile
) -> int:
    """Return what was measured, but no less than the rule says: a budget must hold whatever a file says."""
    if node.view:
        return 0
    if not has_workspace_rule(node):
        return found.workspace_bytes
    exact_bytes = workspace_bytes(graph, node, threads=measured.threads, whole_columns=device.whole_columns)
    return max(found.workspace_bytes, exact_bytes)


def _costs_in_proportion(
    graph: TrainingGraph,
    new: Sequence[Node],
    device: DeviceProfile,
    measured: MeasuredCosts,
    first_graph: TrainingGraph,
) -> dict[str, NodeCost]:
    """Return costs of the nodes that were not measured: modelled, and scaled to what the measured graph took."""
    modelled = {
        node.name: _modelled_cost(first_graph, node, device, measured.threads).seconds for node in first_graph.nodes
    }
    took = {
        node.name: _measured_cost(first_graph, node, measured.nodes.get(node.name), device, measured).seconds
        for node in first_graph.nodes
    }
    whole = sum(took.values()) / sum(modelled.values())
    watts = measured.active_watts or device.compute.with_threads(measured.threads).active_watts
    costs = {}
    for node in new:
        # What is left of a node that lost an output keeps that node's pace; parts of it are new and have none yet.
        share = took[node.name] / modelled[node.name] if modelled.get(node.name) else whole
        cost = _modelled_cost(graph, node, device, measured.threads)
        costs[node.name] = NodeCost(cost.seconds * share, cost.seconds * share * watts, cost.workspace_bytes)
    return costs


def estimated_workspace_nodes(graph: TrainingGraph, costs: CostTable) -> tuple[str, ...]:
    """Return the nodes whose workspace neither a rule nor a profile gives: budgets rest on an estimate there."""
    return tuple(
        node.name for node in graph.nodes if not costs.nodes[node.name].measured and not has_workspace_rule(node)
    )
