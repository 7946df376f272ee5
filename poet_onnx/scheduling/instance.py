"""A scheduling problem in a given order, as integers: what the order search, the heuristics and the MILP work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.plan.problem import ScheduleProblem


@dataclass(frozen=True)
class Instance:
    """Nodes by position in the order, values by number; views are gone.

    Attributes:
        problem: where it comes from.
        nodes: in the order.
        values: names of transient values; `sizes` their bytes.
        producer: position of each value's producer.
        uses: positions that read each value, ascending.
        kept: values that live to the end of the step (graph outputs).
        reads, writes: value numbers of each node.
        workspace, seconds, joules: costs of each node.
        inplace: for each node, (value read, value written) pairs that may share a buffer when the first one dies.
    """

    problem: ScheduleProblem
    nodes: tuple[Node, ...]
    values: tuple[str, ...]
    sizes: tuple[int, ...]
    producer: tuple[int, ...]
    uses: tuple[tuple[int, ...], ...]
    kept: frozenset[int]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    workspace: tuple[int, ...]
    seconds: tuple[float, ...]
    joules: tuple[float, ...]
    inplace: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def base_joules(self) -> float:
        """Return the energy of running every node once, transfers and idle power aside."""
        return sum(self.joules) + sum(self.problem.costs.nodes[n.name].joules for n in self.views)

    @property
    def base_seconds(self) -> float:
        """Return the time of running every node once."""
        return sum(self.seconds) + sum(self.problem.costs.nodes[n.name].seconds for n in self.views)

    @property
    def views(self) -> tuple[Node, ...]:
        """Return the nodes that are views."""
        return tuple(node for node in self.problem.graph.nodes if node.view)

    def last_use(self, value: int) -> int:
        """Return the position after which a value is not needed; the end of the order for a kept one."""
        if value in self.kept:
            return len(self.nodes)
        return self.uses[value][-1] if self.uses[value] else self.producer[value]

    def shared_bytes(self, position: int, last_use: Sequence[int]) -> int:
        """Return the bytes that outputs of a node save by taking over inputs that die there."""
        taken_reads: set[int] = set()
        taken_writes: set[int] = set()
        saved = 0
        for read, written in self.inplace[position]:
            if last_use[read] == position and read not in taken_reads and written not in taken_writes:
                taken_reads.add(read)
                taken_writes.add(written)
                saved += self.sizes[written]
        return saved

    def step_bytes(self) -> list[int]:
        """Return the transient bytes while each node runs, with nothing recomputed or paged."""
        count = len(self.nodes)
        last_use = [self.last_use(value) for value in range(len(self.values))]
        change = [0] * (count + 1)
        for value, size in enumerate(self.sizes):
            change[self.producer[value]] += size
            change[min(last_use[value] + 1, count)] -= size
        levels: list[int] = []
        level = 0
        for position in range(count):
            level += change[position]
            levels.append(level + self.workspace[position] - self.shared_bytes(position, last_use))
        return levels

    def smallest_node_bytes(self, position: int) -> int:
        """Return what a node needs by itself: inputs, outputs and workspace; no plan fits in less."""
        own = set(self.reads[position]) | set(self.writes[position])
        last_use = [position] * len(self.values)
        saved = self.shared_bytes(position, last_use)
        return sum(self.sizes[value] for value in own) + self.workspace[position] - saved


def file_order(graph: TrainingGraph) -> tuple[str, ...]:
    """Return the names of the nodes that are not views, as the file has them."""
    return tuple(node.name for node in graph.nodes if not node.view)


def build_instance(problem: ScheduleProblem, order: Sequence[str]) -> Instance:
    """Number nodes and values in the given order of node names.

    Raises:
        CheckFailedError: if the order is not one of the graph's nodes, each once, producers first.
    """
    graph, costs = problem.graph, problem.costs
    by_name = {node.name: node for node in graph.nodes if not node.view}
    if len(order) != len(by_name) or set(order) != set(by_name):
        raise CheckFailedError(f"The order has {len(order)} nodes, the graph {len(by_name)}; they must be the same.")
    nodes = tuple(by_name[name] for name in order)
    number: dict[str, int] = {}
    producer: list[int] = []
    uses: list[list[int]] = []
    reads: list[tuple[int, ...]] = []
    writes: list[tuple[int, ...]] = []
    for position, node in enumerate(nodes):
        try:
            reads.append(tuple(number[value] for value in graph.reads(node)))
        except KeyError as error:
            raise CheckFailedError(f"The order runs node '{node.name}' before {error} is made.") from error
        for value in reads[-1]:
            uses[value].append(position)
        writes.append(tuple(range(len(number), len(number) + len(graph.writes(node)))))
        for name in graph.writes(node):
            number[name] = len(number)
            producer.append(position)
            uses.append([])
    values = tuple(number)
    return Instance(
        problem=problem,
        nodes=nodes,
        values=values,
        sizes=tuple(graph.tensors[name].size_bytes for name in values),
        producer=tuple(producer),
        uses=tuple(tuple(positions) for positions in uses),
        kept=frozenset(number[graph.tensors[name].storage] for name in graph.outputs if _is_value(graph, name)),
        reads=tuple(reads),
        writes=tuple(writes),
        workspace=tuple(costs.nodes[node.name].workspace_bytes for node in nodes),
        seconds=tuple(costs.nodes[node.name].seconds for node in nodes),
        joules=tuple(costs.nodes[node.name].joules for node in nodes),
        inplace=tuple(_inplace(graph, node, number) for node in nodes),
    )


def _is_value(graph: TrainingGraph, name: str) -> bool:
    return not graph.tensors[graph.tensors[name].storage].resident


def _inplace(graph: TrainingGraph, node: Node, number: dict[str, int]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of values that ONNX Runtime lets share a buffer in this node."""
    pairs = []
    storages = [graph.tensors[name].storage if name else "" for name in node.inputs]
    for source, target in sorted(node.inplace, key=lambda pair: pair[1]):
        if source >= len(node.inputs) or target >= len(node.outputs):
            continue
        read, written = node.inputs[source], node.outputs[target]
        if not read or not written or storages.count(storages[source]) != 1:
            continue
        if graph.tensors[written].is_output:
            continue
        if storages[source] in number and written in number:
            pairs.append((number[storages[source]], number[written]))
    return tuple(pairs)
