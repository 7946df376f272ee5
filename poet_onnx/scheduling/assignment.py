"""An assignment of the model's variables that can be changed a restore at a time, and back.

A restore ends a value's absence at one of its events, by page-in or by recompute. All other variables follow from the
restores; only those of the few values concerned are set anew.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from poet_onnx.scheduling.model import Formulation, Restores


class Assignment:
    """A schedule as the model sees it: restores, all variables, and how full every row is.

    Attributes:
        recomputed, paged_in: as in `Restores`; a change makes new sets.
        x: levels of all variables.
        activity: left-hand sides of `ceilings`.
    """

    def __init__(self, model: Formulation, x: list[float]) -> None:
        self.model = model
        self.x = list(x)
        restores = model.restores(x)
        self.recomputed = set(restores.recomputed)
        self.paged_in = set(restores.paged_in)
        self.at, self.events = model.candidates.at, model.candidates.events
        self.ceilings = model.ceilings()
        self.activity = self.ceilings.activity(self.x)
        self.costs = np.asarray(model.cost)

    def restored(self) -> list[tuple[int, int]]:
        """Return the values brought back, with their events."""
        made = [
            (value, self.at[value, stage])
            for stage, number in self.recomputed
            for value in self.model.candidates.units[number].outputs
            if (value, stage) in self.at
        ]
        return [*self.paged_in, *made]

    def is_restored(self, value: int, index: int) -> bool:
        """Return whether a value is brought back at one of its events."""
        return (value, index) in self.paged_in or self.events[value][index].rerun in self.recomputed

    def next_use(self, value: int, index: int) -> int:
        """Return the first event, at or behind one that a value is retained into, that needs the value itself."""
        while not self.read_at(value, index) and index + 1 < len(self.events[value]):
            index += 1
        return index

    def read_in(self, value: int, stage: int) -> bool:
        """Return whether a stage itself needs a value; what only later stages need is not restored there."""
        index = self.at.get((value, stage))
        return index is not None and self.read_at(value, index)

    def read_at(self, value: int, index: int) -> bool:
        """Return whether one of its events itself reads a value."""
        event = self.events[value][index]
        return event.main or any(rerun in self.recomputed for rerun in event.reruns)

    def touched(self, restores: Restores) -> set[int]:
        """Return the values that restores read or make."""
        units = self.model.candidates.units
        values = {value for value, _ in restores.paged_in}
        for _, number in restores.recomputed:
            values.update(units[number].inputs, units[number].outputs)
        return values

    def cost(self) -> float:
        """Return joules of all restores."""
        return float(self.costs @ np.asarray(self.x))

    def saved(self, before: Mapping[int, float]) -> float:
        """Return joules saved by a move, given the former levels of what it has changed."""
        return sum(self.model.cost[variable] * (level - self.x[variable]) for variable, level in before.items())

    def put(self, added: Restores, dropped: Restores, before: dict[int, float]) -> None:
        """Change restores and all variables that follow from them, whatever the rows say; note the former levels."""
        self.recomputed = (self.recomputed - dropped.recomputed) | added.recomputed
        self.paged_in = (self.paged_in - dropped.paged_in) | added.paged_in
        stage = self.stage(added if added.recomputed or added.paged_in else dropped)
        touched = self.touched(added) | self.touched(dropped)
        touched |= self._prune(stage)
        model = self.model
        levels: dict[int, float] = {
            model.recompute[stage, number]: float((stage, number) in self.recomputed)
            for number in model.candidates.slots[stage]
        }
        for value in touched:
            index = self.at.get((value, stage))
            if index is not None:
                self._follow(value, index, levels)
        levels = {variable: level for variable, level in levels.items() if level != self.x[variable]}
        outs = [levels[out] - self.x[out] for out in map(model.page_out.get, touched) if out in levels]
        if model.paged is not None and outs:
            levels[model.paged] = self.x[model.paged] + sum(outs) / model.most_paged
        for variable in levels:
            before.setdefault(variable, self.x[variable])
        self._set(levels)

    def take_back(
        self, recomputed: set[tuple[int, int]], paged_in: set[tuple[int, int]], before: Mapping[int, float]
    ) -> None:
        """Undo a move, given what was before."""
        self._set({variable: level for variable, level in before.items() if level != self.x[variable]})
        self.recomputed, self.paged_in = recomputed, paged_in

    def _set(self, levels: dict[int, float]) -> None:
        """Give variables other levels."""
        self.ceilings.shift(self.activity, {variable: level - self.x[variable] for variable, level in levels.items()})
        for variable, level in levels.items():
            self.x[variable] = level

    def stage(self, restores: Restores) -> int:
        """Return the stage that the restores of one move belong to."""
        for stage, _ in restores.recomputed:
            return stage
        value, index = next(iter(restores.paged_in))
        return self.events[value][index].stage

    def _prune(self, stage: int) -> set[int]:
        """Drop restores of a stage that nothing needs any more; return the values concerned."""
        candidates = self.model.candidates
        touched: set[int] = set()
        for number in reversed(candidates.slots[stage]):
            unit = candidates.units[number]
            if (stage, number) in self.recomputed and not any(self.read_in(value, stage) for value in unit.outputs):
                self.recomputed.discard((stage, number))
                touched.update(unit.inputs, unit.outputs)
        for value in list(touched):
            index = self.at.get((value, stage))
            if index is not None and (value, index) in self.paged_in and not self.read_in(value, stage):
                self.paged_in.discard((value, index))
        return touched

    def _follow(self, value: int, since: int, levels: dict[int, float]) -> None:
        """Add what the variables of a value are now where something changed at one of its events."""
        model = self.model
        following = model.retain.get((value, since + 1))
        wanted = following is not None and self.x[following] > 0.5
        restores = Restores(self.recomputed, self.paged_in)
        for index, here in model.levels(value, restores, since=since, wanted=wanted):
            levels.update(here)
            kept = model.retain[value, index]
            if index < since and levels[kept] == self.x[kept]:
                break  # as before, and so is all that comes before
        if (value, since) in model.page_in:
            levels[model.page_in[value, since]] = float((value, since) in self.paged_in)
        if value in model.page_out:
            paged = float(any((value, index) in self.paged_in for index in range(len(self.events[value]))))
            levels[model.page_out[value]] = paged
