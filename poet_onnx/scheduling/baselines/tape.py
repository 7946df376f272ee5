"""Steps as a method writes them down, with what is in RAM meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from poet_onnx.plan import Action, Step
from poet_onnx.scheduling.baselines.outcome import CannotError
from poet_onnx.scheduling.liveness import Instance


class Tape:
    """The steps so far.

    Dropping a value writes nothing: the runtime frees it after its last read before it is made or fetched again.

    Attributes:
        ram, stored: values that are there.
        steps: that were written.
        place: position of the next node that has not run.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.ram: set[int] = set()
        self.stored: set[int] = set()
        self.steps: list[Step] = []
        self.place = 0
        self._runs: Counter[int] = Counter()

    def has_run(self, position: int) -> bool:
        """Return whether a node has run."""
        return self._runs[position] > 0

    def run(self, position: int) -> None:
        """Run a node, first bringing back what it reads."""
        self.restore(self.instance.reads[position])
        self._run(position)

    def restore(self, values: Iterable[int]) -> None:
        """Bring values back, by page-in where they are stored, otherwise by running what makes them."""
        stack = [value for value in values if value not in self.ram][::-1]
        while stack:
            value = stack[-1]
            if value in self.ram:
                stack.pop()
            elif value in self.stored:
                self.page_in(value)
            else:
                maker = self.instance.producer[value]
                missing = [read for read in self.instance.reads[maker] if read not in self.ram]
                if missing:
                    stack += reversed(missing)
                else:
                    self._run(maker)

    def drop(self, values: Iterable[int]) -> None:
        """Take note that values are no longer in RAM."""
        self.ram.difference_update(values)

    def page_out(self, value: int) -> None:
        """Write a value to storage; it stays in RAM until it is dropped."""
        name = self.instance.values[value]
        self.steps += [Step(Action.PAGE_OUT_START, name), Step(Action.PAGE_OUT_END, name)]
        self.stored.add(value)

    def page_in(self, value: int) -> None:
        """Read a value from storage."""
        name = self.instance.values[value]
        self.steps += [Step(Action.PAGE_IN_START, name), Step(Action.PAGE_IN_END, name)]
        self.ram.add(value)

    def _run(self, position: int) -> None:
        node = self.instance.nodes[position]
        if self._runs[position] and not (node.recomputable and self.instance.problem.recompute):
            raise CannotError(f"It would run node '{node.name}' again, which may run once only.")
        changed = [other for other in self.instance.changers[position] if position < other < self.place]
        if changed:
            by = self.instance.nodes[changed[0]].name
            raise CannotError(f"It would run node '{node.name}' again after '{by}' has changed what it reads.")
        self.steps.append(Step(Action.COMPUTE, node.name, self._runs[position]))
        self.place = max(self.place, position + 1)
        self._runs[position] += 1
        self.ram.update(self.instance.writes[position])
