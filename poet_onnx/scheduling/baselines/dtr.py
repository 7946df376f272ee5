"""Online eviction: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021).

Nodes run in order. Where the next one has no room, the value of least h leaves RAM until there is room; where it reads
a value that has left, the nodes that make it run again, those of their inputs first. What the rest of the step does not
read leaves at once (the paper's eager eviction). With c for seconds, m for bytes and s for the time since the last use,

    h_DTR(t)       = (c(t) + c of the values of e*(t)) / (m(t) s(t))
    h_DTR^eq(t)    = the same with the undirected components that neighbour t, kept by union-find, for e*(t)
    h_DTR^local(t) = c(t) / (m(t) s(t))

(section 4.1), where e*(t) are the values that are away and that t would need, or that would need t, to be made again.
A component loses the cost of what is made again, but never falls apart (section 4.1, "relaxed" neighborhood).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from poet_onnx.scheduling.baselines.horizon import find_horizon
from poet_onnx.scheduling.baselines.neighborhoods import Directed, Local
from poet_onnx.scheduling.baselines.outcome import CannotError, Task
from poet_onnx.scheduling.baselines.tape import Tape

MOST_REPEATS = 50
"""Times the compute seconds of a step at which it is said to thrash."""

_TINY = 1e-12


def offer(task: Task, neighbors: Callable[[Machine], Local] = Directed) -> str:
    """Offer what h_DTR makes of the budget, or with other neighbors its kin."""
    for budget_bytes in task.budgets():
        machine = Machine(task, budget_bytes, neighbors)
        machine.run_all()
        task.offer(tuple(machine.tape.steps))
    return "What it evicts keeps the budget, but not the other limits."


class Machine:
    """A runtime that runs nodes within a budget.

    Attributes:
        tape: what it has run, and what is in RAM.
        away: values that have left, and may be made again.
        maker, cost: by value the node that makes it; by node its seconds.
    """

    def __init__(self, task: Task, budget_bytes: int, neighbors: Callable[[Machine], Local]) -> None:
        self.task, self.instance, self.budget_bytes = task, task.instance, budget_bytes
        instance = self.instance
        self.tape, self.maker, self.cost = Tape(instance), instance.producer, instance.seconds
        self.horizon = find_horizon(instance)
        self.may_leave = [self.horizon.may_leave(instance, value) for value in range(len(instance.values))]
        self.last_use = [instance.last_use(value) for value in range(len(instance.values))]
        self.away: set[int] = set()
        self.used_bytes = 0
        self.position = 0
        self.clock = 0.0
        self.touched = [0.0] * len(instance.values)
        self.locks: Counter[int] = Counter()
        self.neighbors = neighbors(self)

    def parents(self, value: int) -> Iterator[int]:
        """Yield what a value is made from."""
        return iter(self.instance.reads[self.maker[value]])

    def children(self, value: int) -> Iterator[int]:
        """Yield what is made from a value."""
        return (made for use in self.instance.uses[value] for made in self.instance.writes[use])

    def run_all(self) -> None:
        """Run every node.

        Raises:
            CannotError: if there is no room, or no end to what is made again.
        """
        for position in range(len(self.instance.nodes)):
            self.position, stack = position, [position]
            self.locks.update(self.instance.reads[position])
            while stack:
                reads = self.instance.reads[stack[-1]]
                missing = next((value for value in reads if value not in self.tape.ram), None)
                if missing is None:
                    self._perform(stack.pop(), again=bool(stack))
                else:
                    stack.append(self.maker[missing])
                    self.locks.update(self.instance.reads[stack[-1]])

    def _perform(self, node: int, *, again: bool) -> None:
        """Run a node whose inputs are there, and let go of what nothing waits for."""
        instance = self.instance
        reads, made = instance.reads[node], [v for v in instance.writes[node] if v not in self.tape.ram]
        self.locks.subtract(reads)
        done = self.position if again else self.position + 1
        dying = {value for value in reads if not self._is_wanted(value, done)}
        self.locks.update(reads)
        need = sum(instance.sizes[value] for value in made) + instance.workspace[node]
        need += instance.problem.graph.scratch_bytes(instance.nodes[node]) if again else 0
        self._make_room(
            need - instance.shared_bytes(node, [node if v in dying else -1 for v in range(len(self.maker))])
        )
        for value in self.away.intersection(made):
            self.neighbors.came(value)
        self.away.difference_update(made)
        self.tape.run(node)
        self.used_bytes += sum(instance.sizes[value] for value in made)
        self.clock += self.cost[node]
        if self.clock > MOST_REPEATS * instance.base_seconds + _TINY or self.task.is_late:
            raise CannotError(
                f"It thrashes: at node '{instance.nodes[node].name}' it makes the same values without end."
            )
        for value in (*reads, *instance.writes[node]):
            self.touched[value] = self.clock
        self.locks.subtract(reads)
        for value in (*dying, *(value for value in made if not self._is_wanted(value, done))):
            self._evict(value)

    def _is_wanted(self, value: int, done: int) -> bool:
        """Return whether nodes from a position on, or those that are about to run again, need a value in RAM."""
        if self.locks[value] > 0 or self.last_use[value] >= done:
            return True
        return not self.may_leave[value] and self.horizon.last_need[value] >= done

    def _make_room(self, need_bytes: int) -> None:
        while self.used_bytes + need_bytes > self.budget_bytes:
            free = [value for value in self.tape.ram if self.may_leave[value] and self.locks[value] <= 0]
            if not free:
                node = self.instance.nodes[self.position].name
                raise CannotError(
                    f"At node '{node}' nothing more may leave, and {self.used_bytes + need_bytes:,} bytes are needed."
                )
            self._evict(min(free, key=self._h))

    def _h(self, value: int) -> tuple[float, int]:
        seconds = self.cost[self.maker[value]] + self.neighbors.seconds(value)
        stale = max(self.clock - self.touched[value], _TINY)
        return seconds / (max(1, self.instance.sizes[value]) * stale), value

    def _evict(self, value: int) -> None:
        self.tape.drop((value,))
        self.used_bytes -= self.instance.sizes[value]
        if self.may_leave[value] and self.horizon.last_need[value] >= self.position:
            self.away.add(value)
            self.neighbors.left(value)
