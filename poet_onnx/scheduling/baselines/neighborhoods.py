"""What is away beside a value, by DTR's three heuristics (Kirisame et al. 2021, section 4.1); `dtr` has formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poet_onnx.scheduling.baselines.dtr import Machine


class Local:
    """What is away beside a value: nothing is looked at."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def left(self, value: int) -> None:
        """Take note that a value has left."""

    def came(self, value: int) -> None:
        """Take note that a value is about to be made again."""

    def seconds(self, value: int) -> float:
        """Return the seconds of making what is away beside a value."""
        return 0.0


class Directed(Local):
    """The neighborhood e*, found by walking, and kept until something in it changes."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._known: dict[int, float] = {}

    def left(self, value: int) -> None:
        """Forget what is beside a value that has left, or is about to be made again."""
        for next_to in (self.machine.parents, self.machine.children):
            for other in self._walk(value, next_to, also_present=True):
                self._known.pop(other, None)

    came = left

    def seconds(self, value: int) -> float:
        """Return the seconds of making what is away beside a value."""
        if value not in self._known:
            machine = self.machine
            makers = {
                machine.maker[other]
                for next_to in (machine.parents, machine.children)
                for other in self._walk(value, next_to)
            }
            self._known[value] = sum(machine.cost[maker] for maker in makers - {machine.maker[value]})
        return self._known[value]

    def _walk(
        self, value: int, next_to: Callable[[int], Iterator[int]], *, also_present: bool = False
    ) -> Iterator[int]:
        """Yield the values away that are reached through values away; those present at their border, too, if asked."""
        away, seen, stack = self.machine.away, {value}, [value]
        while stack:
            for other in next_to(stack.pop()):
                if other not in seen:
                    seen.add(other)
                    if other in away:
                        stack.append(other)
                        yield other
                    elif also_present:
                        yield other


class Components(Local):
    """The relaxed neighborhood: components of what is away, by union-find."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._parent: dict[int, int] = {}
        self._sum: dict[int, float] = {}

    def left(self, value: int) -> None:
        """Take note that a value has left."""
        machine = self.machine
        self._parent[value], self._sum[value] = value, machine.cost[machine.maker[value]]
        for other in self._beside(value):
            root, own = self._root(other), self._root(value)
            if root != own:
                self._parent[root] = own
                self._sum[own] += self._sum.pop(root)

    def came(self, value: int) -> None:
        """Take note that a value is about to be made again."""
        # The value stays where others look for their root, and only its cost is taken out.
        machine = self.machine
        self._sum[self._root(value)] -= machine.cost[machine.maker[value]]

    def seconds(self, value: int) -> float:
        """Return the seconds of making what is away beside a value."""
        return sum(self._sum[root] for root in {self._root(other) for other in self._beside(value)})

    def _beside(self, value: int) -> list[int]:
        machine = self.machine
        return [other for near in (machine.parents, machine.children) for other in near(value) if other in machine.away]

    def _root(self, value: int) -> int:
        while self._parent[value] != value:
            self._parent[value] = value = self._parent[self._parent[value]]
        return value
