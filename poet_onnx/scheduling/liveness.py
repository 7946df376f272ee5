"""Liveness of values: from the node that makes a value to the last node that reads it.

An `Instance` is a problem in one order: it numbers nodes by their positions, and the solver's model is built from it.
`Liveness` numbers nodes once for all orders, so that a search can tell the memory of an order in microseconds.

Example: a makes k of 8 bytes, b runs, c reads k. In the order a b c the value k is alive at all three nodes. While b
runs, the step holds the 8 bytes of k, the outputs of b and its workspace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

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
        changers: for each node, the others that change a resident tensor which it reads.
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
    changers: tuple[tuple[int, ...], ...]

    @property
    def base_seconds(self) -> float:
        """Return the time of running every node once, and of the store's commit behind them."""
        costs = self.problem.costs
        return sum(self.seconds) + sum(costs.nodes[n.name].seconds for n in self.views) + costs.commit.seconds

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

    @property
    def largest_node_bytes(self) -> int:
        """Return what the node needs by itself that needs most."""
        return max(map(self.smallest_node_bytes, range(len(self.nodes))), default=0)


def most_values_alive(problem: ScheduleProblem, order: Sequence[str]) -> int:
    """Return how many values are alive at once in an order, at most, with nothing recomputed or paged."""
    instance = build_instance(problem, order)
    change = [0] * (len(order) + 1)
    for value in range(len(instance.values)):
        change[instance.producer[value]] += 1
        change[min(instance.last_use(value), len(order) - 1) + 1] -= 1
    return max(accumulate(change))


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
            reads.append(tuple(number[value] for value in graph.transient_reads(node)))
        except KeyError as error:
            raise CheckFailedError(f"The order runs node '{node.name}' before {error} is made.") from error
        for value in reads[-1]:
            uses[value].append(position)
        writes.append(tuple(range(len(number), len(number) + len(graph.transient_writes(node)))))
        for name in graph.transient_writes(node):
            number[name] = len(number)
            producer.append(position)
            uses.append([])
    values = tuple(number)
    outputs = [graph.tensors[name].buffer_owner for name in graph.outputs]
    return Instance(
        problem=problem,
        nodes=nodes,
        values=values,
        sizes=tuple(graph.tensors[name].size_bytes for name in values),
        producer=tuple(producer),
        uses=tuple(tuple(positions) for positions in uses),
        kept=frozenset(number[name] for name in outputs if not graph.tensors[name].resident),
        reads=tuple(reads),
        writes=tuple(writes),
        workspace=tuple(costs.nodes[node.name].workspace_bytes for node in nodes),
        seconds=tuple(costs.nodes[node.name].seconds for node in nodes),
        joules=tuple(costs.nodes[node.name].joules for node in nodes),
        inplace=tuple(_inplace(graph, node, number) for node in nodes),
        changers=_changers(graph, {name: position for position, name in enumerate(order)}),
    )


def _inplace(graph: TrainingGraph, node: Node, number: dict[str, int]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of values that ONNX Runtime lets share a buffer in this node."""
    pairs = []
    owners = [graph.tensors[name].buffer_owner if name else "" for name in node.inputs]
    for source, target in sorted(node.inplace, key=lambda pair: pair[1]):
        if source >= len(node.inputs) or target >= len(node.outputs):
            continue
        read, written = node.inputs[source], node.outputs[target]
        if not read or not written or owners.count(owners[source]) != 1:
            continue
        if graph.tensors[written].is_output:
            continue
        if owners[source] in number and written in number:
            pairs.append((number[owners[source]], number[written]))
    return tuple(pairs)


def _changers(graph: TrainingGraph, position: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """Return, by position, the other nodes that change a resident tensor which a node reads."""
    changed: dict[str, set[int]] = {}
    for node in graph.nodes:
        for resident in node.updates:
            changed.setdefault(resident, set()).add(position[node.name])
    found: list[tuple[int, ...]] = [()] * len(position)
    for node in graph.nodes:
        if node.name in position:
            own = position[node.name]
            read = {graph.tensors[name].buffer_owner for name in node.inputs if name} & changed.keys()
            found[own] = tuple(sorted({other for name in read for other in changed[name]} - {own}))
    return tuple(found)


Integers: TypeAlias = "NDArray[np.int64]"
Numbers: TypeAlias = "NDArray[np.float64]"
Order: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True)
class Intervals:
    """Times between two neighbouring uses of a value, its making being the first one.

    Attributes:
        value: number of each interval's value.
        first, last: positions of the two uses.
    """

    value: Integers
    first: Integers
    last: Integers


@dataclass(frozen=True)
class Profile:
    """What an order means for memory, with nothing recomputed or paged.

    Attributes:
        liveness: of the graph.
        order: numbers of the nodes.
        position: place of each node.
        levels: transient bytes while the node at each place runs.
        last_use: last place at which each value is used; the end of the order for graph outputs.
        intervals: all of them, those of one value side by side.
    """

    liveness: Liveness
    order: Order
    position: Integers
    levels: Integers
    last_use: Integers
    intervals: Intervals

    @property
    def peak_bytes(self) -> int:
        """Return the largest of the levels."""
        return int(self.levels.max(initial=0))


class Liveness:
    """A graph's nodes and values by number, and the joules of what brings values back, infinite where that cannot be.

    Attributes:
        names: of the nodes that are not views, in file order; a node's number is its place here.
        values: names of the transient values.
        sizes: their bytes.
        maker: number of the node that makes each value.
        kept: whether each value lives to the end of the step.
        reads, writes: values that each node reads and makes.
        readers: nodes that read each value.
        inplace: for each node, the pairs of values that may share a buffer: one that it reads, one that it makes.
        workspace: bytes that each node needs beside what it reads and makes.
        changers: for each node, the others that change a resident tensor which it reads.
        page_out, page_in: joules of each value's transfers; one that stops the step pays for the time.
        rerun: joules of each node.
    """

    def __init__(self, problem: ScheduleProblem) -> None:
        self.problem = problem
        self.names = file_order(problem.graph)
        self.number = {name: number for number, name in enumerate(self.names)}
        instance = build_instance(problem, self.names)
        self.nodes, self.values = instance.nodes, instance.values
        self.sizes: Integers = np.array(instance.sizes, dtype=np.int64)
        self.maker: Integers = np.array(instance.producer, dtype=np.int64)
        self.kept: NDArray[np.bool_] = np.zeros(len(self.values), dtype=bool)
        self.kept[sorted(instance.kept)] = True
        self.reads, self.writes, self.readers = instance.reads, instance.writes, instance.uses
        self.workspace: Integers = np.array(instance.workspace, dtype=np.int64)
        self.inplace, self.changers = instance.inplace, instance.changers
        uses = [
            (value, node)
            for value, (maker, readers) in enumerate(zip(instance.producer, instance.uses, strict=True))
            for node in (maker, *readers)
        ]
        self._use_value, self._use_node = np.array(uses, dtype=np.int64).reshape(-1, 2).T.copy()
        self._last: Integers = np.searchsorted(self._use_value, np.arange(len(self.values)), side="right") - 1
        self._same = self._use_value[1:] == self._use_value[:-1]
        self._pairs = [(node, *pair) for node, pairs in enumerate(self.inplace) for pair in pairs]
        shares = np.array(self._pairs, dtype=np.int64).reshape(-1, 3)
        self._sharer, self._shared, self._heir = shares[:, 0], shares[:, 1], shares[:, 2]
        self._contested = np.bincount(self._sharer, minlength=len(self.names))[self._sharer] > 1
        costs = problem.costs
        movable = costs.page_out.keys() & costs.page_in.keys() if problem.paging else frozenset()
        self.page_out, self.page_in = (
            np.array([costs.transfer_joules(costs_of[v]) if v in movable else math.inf for v in self.values])
            for costs_of in (costs.page_out, costs.page_in)
        )
        again = [problem.recompute and node.recomputable for node in self.nodes]
        joules = np.array(instance.joules) + costs.idle_watts * np.array(instance.seconds)
        self.rerun: Numbers = np.where(again, joules, math.inf)

    def in_order(self, names: Sequence[str]) -> Profile:
        """Return the memory and the lives of an order of names."""
        return self.profile(self.order_of(names))

    def order_of(self, names: Sequence[str]) -> Order:
        """Return an order of names as numbers."""
        return np.array([self.number[name] for name in names], dtype=np.int64)

    def names_of(self, order: Order) -> tuple[str, ...]:
        """Return an order of numbers as names."""
        return tuple(self.names[number] for number in order)

    def position(self, order: Order) -> Integers:
        """Return the place of each node in an order."""
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        return position

    def profile(self, order: Order) -> Profile:
        """Return the memory and the lives of an order, exactly as `Instance.step_bytes` counts them."""
        count = len(order)
        position = self.position(order)
        base = self._use_value * (count + 1)
        used_at = np.sort(base + position[self._use_node]) - base
        last_use = np.where(self.kept, count, used_at[self._last])
        change = np.zeros(count + 2, dtype=np.int64)
        np.add.at(change, position[self.maker], self.sizes)
        np.subtract.at(change, last_use + 1, self.sizes)
        levels = np.cumsum(change)[:count] + self.workspace[order]
        self._share(levels, position, last_use)
        intervals = Intervals(self._use_value[1:][self._same], used_at[:-1][self._same], used_at[1:][self._same])
        return Profile(self, order, position, levels, last_use, intervals)

    def _share(self, levels: Integers, position: Integers, last_use: Integers) -> None:
        """Take off what outputs save by taking over the buffers of inputs that die."""
        dying = last_use[self._shared] == position[self._sharer]
        alone = dying & ~self._contested
        np.subtract.at(levels, position[self._sharer[alone]], self.sizes[self._heir[alone]])
        taken: set[tuple[int, int]] = set()
        for index in np.nonzero(dying & self._contested)[0]:
            node, read, written = self._pairs[index]
            if (node, read) not in taken and (node, -1 - written) not in taken:
                taken.update(((node, read), (node, -1 - written)))
                levels[position[node]] -= self.sizes[written]
