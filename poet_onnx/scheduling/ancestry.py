"""Cuts (7): a value that is read was retained, paged in or recomputed, and so were the inputs of that recompute.

Let the node of stage b read the value k, and let a <= b be a stage behind the node that makes k. When stage a began, k
was in RAM; or a page-in restored it since then; or a recompute did. That recompute read the inputs of k, so that the
same holds for any input j that all units which make k read:

    (7)   S[k,a] + sum I[k,i] + sum R_own[k,i] >= 1
          S[k,a] + sum I[k,i] + (the left side for j) >= 1

S[k,a] says whether k is retained into stage a; the sums are over the events of k from stage a to stage b.

Example: k is made from j, and stages 5 and 6 read k. The relaxation may retain half of j, recompute half of k from it
in stage 5, retain that half, and recompute the other half from the same half of j in stage 6. Rows (1) and (2) allow
it. The cut S[k,5] + S[j,5] >= 1 does not: half of j makes no more than half of k.

A model has too many cuts to hold them all. `Ancestry` looks for those that a solution of the relaxation violates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poet_onnx.scheduling.memory_rows import Row
from poet_onnx.scheduling.model import Formulation

MOST_ROWS = 60
"""Rows of one round, those first that are violated most."""

LEAST_VIOLATION = 0.02
"""By which a row must be violated to be worth its place."""

_Levels = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _History:
    """What may restore a value, and when.

    Attributes:
        producer: the stage whose node makes it, behind those that make what it is made from.
        retained: by stage, the variable that says whether the value is there when it begins, -1 for certainly not.
        page_ins, recomputes: (stage, variable) pairs.
        inputs: values that all units read that make it.
    """

    producer: int
    retained: npt.NDArray[np.int64]
    page_ins: tuple[tuple[int, int], ...]
    recomputes: tuple[tuple[int, int], ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class _Read:
    """A read that rows may bind: by the node of a stage, of a value that may be recomputed since its last read."""

    value: int
    stage: int
    last: int
    retained: int


@dataclass(frozen=True)
class _Sources:
    """What there is of a value within windows that end with some stage: the left side of (7), by their first stage.

    Attributes:
        level: the sum; of no meaning for windows that begin before the value is made, which no row is about.
        input: the value that is looked at instead of recomputes, -1 for none.
    """

    level: _Levels
    input: npt.NDArray[np.int64]


class Ancestry:
    """The rows (7) of a model."""

    def __init__(self, model: Formulation) -> None:
        """Note what may restore each value that is not in RAM all its life."""
        self._histories = {value: _history(model, value) for value in model.candidates.events}
        reads = sorted(_reads(model), key=lambda read: read.stage)
        self._reads = [read for read in reads if self._histories[read.value].recomputes]

    def violated(self, x: Sequence[float], *, most: int = MOST_ROWS) -> list[Row]:
        """Return the rows that a solution of the relaxation violates most, at most one for each read of a value.

        Args:
            x: levels of all variables of the model.
            most: rows to return.
        """
        relaxed = _Relaxed(self._histories, x)
        found: list[tuple[float, Row]] = []
        for read in self._reads:
            if x[read.retained] < 1.0 - LEAST_VIOLATION:
                found.extend(relaxed.violated(read))
        found.sort(key=lambda pair: -pair[0])
        return [row for _, row in found[:most]]


class _Relaxed:
    """A solution of the relaxation, and what it makes of each value's history."""

    def __init__(self, histories: dict[int, _History], x: Sequence[float]) -> None:
        self._histories = histories
        self._x = np.append(np.asarray(x, dtype=np.float64), 0.0)  # what -1 stands for
        self._stage = -1
        self._sources: dict[int, _Sources] = {}

    def violated(self, read: _Read) -> Iterator[tuple[float, Row]]:
        """Yield the row of a read that is violated most, and by how much, if any is violated enough."""
        if read.stage != self._stage:
            self._stage, self._sources = read.stage, {}
        for value in sorted(self._ancestors(read.value), key=lambda value: self._histories[value].producer):
            self._sources[value] = self._summed(value)
        levels = self._sources[read.value].level[read.last + 1 :]
        begin = int(np.argmin(levels))
        if levels[begin] < 1.0 - LEAST_VIOLATION:
            yield 1.0 - float(levels[begin]), Row(self._terms(read.value, read.last + 1 + begin), low=1.0)

    def _ancestors(self, value: int) -> set[int]:
        """Return the values, among them one that is read, of whose sources nothing is known up to the present stage."""
        found: set[int] = set()
        stack = [value]
        while stack:
            value = stack.pop()
            if value in found or value in self._sources or value not in self._histories:
                continue
            found.add(value)
            history = self._histories[value]
            if any(self._x[variable] > 0.0 for stage, variable in history.recomputes if stage <= self._stage):
                stack.extend(history.inputs)
        return found

    def _summed(self, value: int) -> _Sources:
        """Return what there is of a value within windows that end with the present stage, its inputs being known."""
        count = self._stage + 1
        history, chosen = self._histories[value], np.full(count, -1)
        made = self._since(history.recomputes)
        for source in history.inputs:
            if source in self._sources:  # the others are in RAM all their life, or make no difference
                level = self._sources[source].level
                is_less = level < made - 1e-9
                made, chosen = np.where(is_less, level, made), np.where(is_less, source, chosen)
        level = self._x[history.retained[:count]] + self._since(history.page_ins) + made
        return _Sources(level, chosen)

    def _since(self, restores: tuple[tuple[int, int], ...]) -> _Levels:
        """Return the sum of restores from each stage on, up to the present one."""
        levels = np.zeros(self._stage + 1)
        for stage, variable in restores:
            if stage <= self._stage:
                levels[stage] += self._x[variable]
        return np.cumsum(levels[::-1])[::-1]

    def _terms(self, value: int, begin: int) -> dict[int, float]:
        """Return the terms of the row for a value and the window from a stage to the present one."""
        variables: list[int] = []
        while True:
            history, source = self._histories[value], int(self._sources[value].input[begin])
            if history.retained[begin] >= 0:
                variables.append(int(history.retained[begin]))
            restores = history.page_ins if source >= 0 else (*history.page_ins, *history.recomputes)
            variables.extend(variable for stage, variable in restores if begin <= stage <= self._stage)
            if source < 0:
                break
            value = source
        terms: dict[int, float] = {}
        for variable in variables:
            terms[variable] = terms.get(variable, 0.0) + 1.0
        return terms


def _history(model: Formulation, value: int) -> _History:
    """Return what may restore a value."""
    candidates = model.candidates
    events = candidates.events[value]
    retained = np.full(len(candidates.instance.nodes), -1)
    begin = 0
    for index, event in enumerate(events):
        retained[begin : event.stage + 1] = model.retain[value, index]
        begin = event.stage + 1
    page_ins = tuple(
        (event.stage, model.page_in[value, index])
        for index, event in enumerate(events)
        if (value, index) in model.page_in
    )
    units = [event.rerun for event in events if event.rerun is not None]
    recomputes = tuple((stage, model.recompute[stage, unit]) for stage, unit in units)
    inputs = [set(candidates.units[unit].inputs) for _, unit in units]
    common = tuple(sorted(set.intersection(*inputs))) if inputs else ()
    return _History(candidates.instance.producer[value], retained, page_ins, recomputes, common)


def _reads(model: Formulation) -> Iterator[_Read]:
    """Yield the reads of managed values by the nodes of stages."""
    for value, events in model.candidates.events.items():
        last = model.candidates.instance.producer[value]
        for index, event in enumerate(events):
            if event.main:
                yield _Read(value, event.stage, last, model.retain[value, index])
                last = event.stage
