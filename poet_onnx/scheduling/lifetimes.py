"""Lives of values in any order of a graph's nodes: the memory of a whole step in microseconds, for order searches.

Nodes and values have numbers that do not depend on the order; an order is an array of node numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.instance import build_instance, file_order

Integers: TypeAlias = "NDArray[np.int64]"
Order: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True)
class Waits:
    """Times between two neighbouring uses of a value, its making being the first one.

    Attributes:
        value: number of each wait's value.
        first, last: positions of the two uses.
    """

    value: Integers
    first: Integers
    last: Integers


@dataclass(frozen=True)
class Profile:
    """What an order means for memory, with nothing recomputed or paged.

    Attributes:
        order: numbers of the nodes.
        position: place of each node.
        levels: transient bytes while the node at each place runs.
        last_use: last place at which each value is used; the end of the order for graph outputs.
        waits: all of them, those of one value side by side.
    """

    order: Order
    position: Integers
    levels: Integers
    last_use: Integers
    waits: Waits

    @property
    def peak_bytes(self) -> int:
        """Return the largest of the levels."""
        return int(self.levels.max(initial=0))


class Lifetimes:
    """A graph's nodes and values by number.

    Attributes:
        names: of the nodes that are not views, in file order; a node's number is its place here.
        values: names of the transient values.
        sizes: their bytes.
        maker: number of the node that makes each value.
        kept: whether each value lives to the end of the step.
        reads: values that each node reads.
        workspace: bytes that each node needs beside what it reads and makes.
        changers: the other nodes that change a resident tensor which each node reads.
    """

    def __init__(self, problem: ScheduleProblem) -> None:
        self.problem = problem
        self.names = file_order(problem.graph)
        self.number = {name: number for number, name in enumerate(self.names)}
        nodes = {node.name: node for node in problem.graph.nodes}
        instance = build_instance(problem, self.names)
        self.nodes = tuple(nodes[name] for name in self.names)
        self.values = instance.values
        self.sizes: Integers = np.array(instance.sizes, dtype=np.int64)
        self.maker: Integers = np.array(instance.producer, dtype=np.int64)
        self.kept: NDArray[np.bool_] = np.zeros(len(self.values), dtype=bool)
        self.kept[sorted(instance.kept)] = True
        self.reads = instance.reads
        self.writes = instance.writes
        self.workspace: Integers = np.array(instance.workspace, dtype=np.int64)
        self.changers = _changers(problem, self.number)
        uses = [
            (value, node)
            for value, (maker, readers) in enumerate(zip(instance.producer, instance.uses, strict=True))
            for node in (maker, *readers)
        ]
        self._use_value: Integers = np.array([value for value, _ in uses], dtype=np.int64)
        self._use_node: Integers = np.array([node for _, node in uses], dtype=np.int64)
        self._last: Integers = np.searchsorted(self._use_value, np.arange(len(self.values)), side="right") - 1
        self._same = self._use_value[1:] == self._use_value[:-1]
        self._pairs = [(node, *pair) for node, pairs in enumerate(instance.inplace) for pair in pairs]
        shares = np.array(self._pairs, dtype=np.int64).reshape(-1, 3)
        self._sharer, self._shared, self._heir = shares[:, 0], shares[:, 1], shares[:, 2]
        self._contested = np.bincount(self._sharer, minlength=len(self.names))[self._sharer] > 1

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

    def shares(self, node: int) -> list[tuple[int, int]]:
        """Return the pairs of values that may share a buffer in a node: one that it reads, one that it makes."""
        return [(read, written) for sharer, read, written in self._pairs if sharer == node]

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
        waits = Waits(self._use_value[1:][self._same], used_at[:-1][self._same], used_at[1:][self._same])
        return Profile(order, position, levels, last_use, waits)

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


def _changers(problem: ScheduleProblem, number: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Return, for each node, the others that change a resident tensor which it reads."""
    tensors = problem.graph.tensors
    changed: dict[str, list[int]] = {}
    for node in problem.graph.nodes:
        for resident in node.updates:
            changed.setdefault(resident, []).append(number[node.name])
    found: list[tuple[int, ...]] = [()] * len(number)
    for node in problem.graph.nodes:
        if node.name in number:
            own = number[node.name]
            read = {tensors[name].storage for name in node.inputs if name} & changed.keys()
            found[own] = tuple(sorted({other for name in read for other in changed[name]} - {own}))
    return found
