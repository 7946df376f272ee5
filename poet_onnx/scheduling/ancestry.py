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
"""A row is added only where it is violated by at least this much."""

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


class Ancestry:
    """The rows (7) of a model."""

    def __init__(self, model: Formulation) -> None:
        """Note what may restore each value that is not in RAM all its life."""
        self._histories = {value: _history(model, value) for value in model.candidates.events}
        reads = (read for read in _reads(model) if self._histories[read[1]].recomputes)
        self._reads = sorted(reads, key=lambda read: read[0])

    def violated(self, x: Sequence[float]) -> list[Row]:
        """Return the rows that a solution of the relaxation violates most, at most one for each read of a value."""
        relaxed = _Relaxed(self._histories, x)
        found: list[tuple[float, Row]] = []
        for stage, value, last, retained in self._reads:
            if x[retained] < 1.0 - LEAST_VIOLATION:
                level, begin = relaxed.least(value, last + 1, stage)
                if level < 1.0 - LEAST_VIOLATION:
                    found.append((level, Row(relaxed.terms(value, begin), low=1.0)))
        found.sort(key=lambda pair: pair[0])
        return [row for _, row in found[:MOST_ROWS]]


class _Relaxed:
    """A solution of the relaxation, and what it makes of each value's history.

    Of a value, sources are the left side of (7) in windows that end with the present stage, by their first stage, and
    the input that is looked at instead of recomputes, -1 for none. No row is about windows that begin before the value
    is made.
    """

    def __init__(self, histories: dict[int, _History], x: Sequence[float]) -> None:
        self._histories = histories
        self._x = np.append(np.asarray(x, dtype=np.float64), 0.0)  # what -1 stands for
        self._stage = -1
        self._sources: dict[int, tuple[_Levels, npt.NDArray[np.int64]]] = {}

    def least(self, value: int, first: int, stage: int) -> tuple[float, int]:
        """Return the least left side for a value in windows up to a stage from another one on, and where it begins."""
        if stage != self._stage:
            self._stage, self._sources = stage, {}
        for ancestor in sorted(self._ancestors(value), key=lambda value: self._histories[value].producer):
            self._sources[ancestor] = self._summed(ancestor)
        levels, _ = self._sources[value]
        begin = first + int(np.argmin(levels[first:]))
        return float(levels[begin]), begin

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

    def _summed(self, value: int) -> tuple[_Levels, npt.NDArray[np.int64]]:
        """Return the sources of a value, those of its inputs being known."""
        count = self._stage + 1
        history, chosen = self._histories[value], np.full(count, -1)
        made = self._since(history.recomputes)
        for source in history.inputs:
            if source in self._sources:  # the others are in RAM all their life, or make no difference
                level, _ = self._sources[source]
                is_less = level < made - 1e-9
                made, chosen = np.where(is_less, level, made), np.where(is_less, source, chosen)
        return self._x[history.retained[:count]] + self._since(history.page_ins) + made, chosen

    def _since(self, restores: tuple[tuple[int, int], ...]) -> _Levels:
        """Return the sum of restores from each stage on, up to the present one."""
        levels = np.zeros(self._stage + 1)
        for stage, variable in restores:
            if stage <= self._stage:
                levels[stage] += self._x[variable]
        return np.cumsum(levels[::-1])[::-1]

    def terms(self, value: int, begin: int) -> dict[int, float]:
        """Return the terms of the row for a value and the window from a stage to the present one."""
        terms: dict[int, float] = {}
        while value >= 0:
            history, source = self._histories[value], int(self._sources[value][1][begin])
            restores = history.page_ins if source >= 0 else (*history.page_ins, *history.recomputes)
            variables = [variable for stage, variable in restores if begin <= stage <= self._stage]
            if history.retained[begin] >= 0:
                variables.insert(0, int(history.retained[begin]))
            for variable in variables:
                terms[variable] = terms.get(variable, 0.0) + 1.0
            value = source
        return terms


def _history(model: Formulation, value: int) -> _History:
    """Return what may restore a value."""
    candidates = model.candidates
    events = candidates.events[value]
    retained = np.full(len(candidates.instance.nodes), -1)
    page_ins = []
    begin = 0
    for index, event in enumerate(events):
        retained[begin : event.stage + 1] = model.retain[value, index]
        begin = event.stage + 1
        if (value, index) in model.page_in:
            page_ins.append((event.stage, model.page_in[value, index]))
    units = [event.rerun for event in events if event.rerun is not None]
    recomputes = tuple((stage, model.recompute[stage, unit]) for stage, unit in units)
    inputs = [set(candidates.units[unit].inputs) for _, unit in units]
    common = tuple(sorted(set.intersection(*inputs))) if inputs else ()
    return _History(candidates.instance.producer[value], retained, tuple(page_ins), recomputes, common)


def _reads(model: Formulation) -> Iterator[tuple[int, int, int, int]]:
    """Yield stage, value, stage of the last read and variable that retains it, of what nodes of stages read."""
    for value, events in model.candidates.events.items():
        last = model.candidates.instance.producer[value]
        for index, event in enumerate(events):
            if event.main:
                yield event.stage, value, last, model.retain[value, index]
                last = event.stage
