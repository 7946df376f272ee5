"""What a plan, wherever its transfers stand, decides in terms of the scheduler's model; whether the model admits it."""

from __future__ import annotations

from collections.abc import Sequence

from pyscipopt import Model, Variable

from poet_onnx.plan import Action, Step
from poet_onnx.scheduling.model import Formulation, Restores
from poet_onnx.scheduling.solver import _build


def restores_of(model: Formulation, steps: Sequence[Step]) -> Restores | None:
    """Return what a plan recomputes and pages in, None if the plan is outside the model's class.

    A transfer that the class has no variable for is left out where nothing is recomputed meanwhile: without it, the
    plan takes no longer and no more room.
    """
    reader = _Reader(model)
    for step in steps:
        if not reader.take(step):
            return None
    return Restores(frozenset(reader.recomputed), frozenset(reader.paged_in))


class _Reader:
    """Follows the steps of a plan.

    Attributes:
        stage: of the steps that follow.
        slot: the first slot of that stage whose unit may still run.
        copies: positions of recomputes that are no whole unit yet.
        arrived: values paged in in this stage and not read since.
        used: values read or made in this stage.
        unread: what the units of this stage made that nothing has read yet.
    """

    def __init__(self, model: Formulation) -> None:
        self.model = model
        instance = model.candidates.instance
        self.position = {node.name: position for position, node in enumerate(instance.nodes)}
        self.number = {name: value for value, name in enumerate(instance.values)}
        self.recomputed: set[tuple[int, int]] = set()
        self.paged_in: set[tuple[int, int]] = set()
        self.remade: set[int] = set()
        self.paged_out: set[int] = set()
        self.stage = self.slot = 0
        self.copies: list[int] = []
        self.arrived: set[int] = set()
        self.used: set[int] = set()
        self.unread: list[set[int]] = []

    def take(self, step: Step) -> bool:
        """Take the next step; return whether the plan is of the class so far."""
        if step.action is Action.COMPUTE:
            position = self.position[step.subject]
            return self._again(position) if step.copy else self._main(position)
        value = self.number[step.subject]
        if step.action is Action.PAGE_OUT_START:
            if value in self.remade or value in self.paged_out:
                return False
            self.paged_out.add(value)
        if step.action is Action.PAGE_IN_START:
            return value not in self.used
        if step.action is Action.PAGE_IN_END:
            if value in self.used or value in self.arrived:
                return False
            self.arrived.add(value)
        return True

    def _again(self, position: int) -> bool:
        candidates = self.model.candidates
        self.copies.append(position)
        self.remade.update(candidates.instance.writes[position])
        slots = candidates.slots[self.stage]
        while self.slot < len(slots) and candidates.units[slots[self.slot]].nodes[0] != self.copies[0]:
            self.slot += 1
        if self.slot == len(slots):
            return False
        unit = candidates.units[slots[self.slot]]
        if tuple(self.copies) == unit.nodes:
            if self.used.intersection(unit.outputs) or self.arrived.intersection(unit.outputs):
                return False
            self.recomputed.add((self.stage, slots[self.slot]))
            self._read(set(unit.inputs))
            self.used.update(unit.outputs)
            self.unread.append(set(unit.outputs))
            self.copies = []
            self.slot += 1
        return tuple(self.copies) == unit.nodes[: len(self.copies)]

    def _main(self, position: int) -> bool:
        candidates = self.model.candidates
        reads = set(candidates.instance.reads[position])
        self._read(reads)
        if position != self.stage or self.copies or self.arrived or self.unread:
            return False
        self.stage, self.slot = self.stage + 1, 0
        self.used = set()
        return True

    def _read(self, values: set[int]) -> None:
        """Note that something of this stage reads values, and what it had to be paged in for."""
        at = {
            value: index
            for value in values & self.arrived & self.model.candidates.events.keys()
            for index, event in enumerate(self.model.candidates.events[value])
            if event.stage == self.stage
        }
        for value, index in at.items():
            if (value, index) in self.model.page_in:
                self.paged_in.add((value, index))
                self.arrived.discard(value)
        if not self.model.candidates.slots[self.stage] or not self.used:
            self.arrived -= values
        self.arrived -= values & self.model.candidates.instance.kept
        self.used |= values
        self.unread = [made for made in self.unread if not made & values]


def admits(model: Formulation, restores: Restores) -> bool:
    """Return whether the rows of a model hold for restores, all else being chosen as well as can be."""
    scip, variables = _build(model, [0.0] * len(model.cost), seed=0)
    fix(model, restores, scip, variables)
    scip.optimize()
    return str(scip.getStatus()) == "optimal"


def fix(model: Formulation, restores: Restores, scip: Model, variables: Sequence[Variable]) -> None:
    """Give the solver's variables the levels that restores determine."""
    x = model.complete(restores)
    for variable, level, binary in zip(variables, x, model.binary, strict=True):
        if binary:
            scip.chgVarLb(variable, level)
            scip.chgVarUb(variable, level)
