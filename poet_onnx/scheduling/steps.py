"""Decisions and the steps of a plan: from an eviction or an assignment to steps, and from steps to an assignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poet_onnx.plan import Action, Prediction, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.model import Formulation, Restores
from poet_onnx.simulate import simulate

if TYPE_CHECKING:
    from poet_onnx.scheduling.eviction import Eviction
    from poet_onnx.scheduling.liveness import Integers, Liveness


def ordered_steps(order: Sequence[str]) -> tuple[Step, ...]:
    """Return the steps that run every node once in an order."""
    return tuple(Step(Action.COMPUTE, name) for name in order)


def order_of(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the order in which the nodes run first."""
    return tuple(step.subject for step in steps if step.action is Action.COMPUTE and not step.copy)


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """Steps that keep to a budget, their transfers placed, and the simulator's figures; they may miss the deadline."""

    steps: tuple[Step, ...]
    prediction: Prediction

    @classmethod
    def in_order(cls, problem: ScheduleProblem, order: Sequence[str]) -> SimulatedPlan:
        """Return the steps that run every node of a problem once, in an order."""
        steps = ordered_steps(order)
        return cls(steps, simulate(problem, steps))

    @property
    def order(self) -> tuple[str, ...]:
        """Return the order in which the nodes run first."""
        return order_of(self.steps)

    @property
    def joules(self) -> float:
        """Return the energy of the step."""
        return self.prediction.energy_joules

    def rank(self, limits: Limits) -> tuple[bool, float]:
        """Return what is better when it is less: whether the plan is late, then its energy."""
        return self.prediction.seconds > limits.latest_seconds, self.joules


_Restores = dict[int, list[tuple[str, bool]]]
"""What comes back right before the node at a position, in turn: names, and whether it is a node that runs again."""


def _steps(names: Sequence[str], before: _Restores, behind: Mapping[int, Sequence[str]]) -> Iterator[Step]:
    """Yield the steps of an order, each transfer's halves side by side.

    Args:
        names: of the nodes, in the order.
        before: what is run again or paged in right before a node.
        behind: values that are paged out right behind a node.
    """
    copies: Counter[str] = Counter()
    for position, node in enumerate(names):
        for name, is_node in before.get(position, ()):
            if is_node:
                copies[name] += 1
                yield Step(Action.COMPUTE, name, copies[name])
            else:
                yield Step(Action.PAGE_IN_START, name)
                yield Step(Action.PAGE_IN_END, name)
        yield Step(Action.COMPUTE, node)
        for value in behind.get(position, ()):
            yield Step(Action.PAGE_OUT_START, value)
            yield Step(Action.PAGE_OUT_END, value)


def steps_of_eviction(eviction: Eviction) -> tuple[Step, ...]:
    """Return the steps of a quick plan."""
    liveness, profile = eviction.liveness, eviction.profile
    before: dict[int, list[tuple[int, bool]]] = {}
    arriving: dict[int, dict[int, bool]] = {}
    for value, _, last, is_stored in eviction.absences():
        arriving.setdefault(last, {})[value] = is_stored
    for place, pending in arriving.items():
        there: set[int] = set()
        before[place] = [
            restore for value in sorted(pending) for restore in _restored(eviction, value, place, pending, there)
        ]
    stored = _drop_unread(liveness, profile.order, before)
    behind: dict[int, list[str]] = {}
    for value in sorted(stored):
        behind.setdefault(int(profile.position[liveness.maker[value]]), []).append(liveness.values[value])
    names = {
        place: [(liveness.names[number] if is_node else liveness.values[number], is_node) for number, is_node in here]
        for place, here in before.items()
    }
    return tuple(_steps(liveness.names_of(profile.order), names, behind))


def _drop_unread(liveness: Liveness, order: Integers, before: dict[int, list[tuple[int, bool]]]) -> set[int]:
    """Drop what comes back before a place and is not read before it comes back again; return what is paged in.

    An interval may have been cut for a recompute which is no longer wanted: nobody reads the value where it ends.

    Args:
        liveness: that numbers nodes and values.
        order: of the nodes.
        before: numbers of what comes back right before a node, and whether it is a node that runs again; is changed.
    """
    read_later, stored = set[int](), set[int]()
    for place in range(len(order) - 1, -1, -1):
        node = int(order[place])
        read_later.difference_update(liveness.writes[node])
        read_later.update(liveness.reads[node])
        kept: list[tuple[int, bool]] = []
        for number, is_node in reversed(before.get(place, ())):
            made = liveness.writes[number] if is_node else (number,)
            if read_later.isdisjoint(made):
                continue
            kept.append((number, is_node))
            read_later.difference_update(made)
            read_later.update(liveness.reads[number] if is_node else ())
            stored.update(() if is_node else made)
        before[place] = kept[::-1]
    return stored


def _restored(
    eviction: Eviction, value: int, place: int, pending: Mapping[int, bool], there: set[int]
) -> Iterator[tuple[int, bool]]:
    """Yield what brings a value back before a place, behind all that its node reads if it is made again."""
    liveness = eviction.liveness
    if value in there:
        return
    there.add(value)
    if pending.get(value):
        yield value, False
        return
    maker = int(liveness.maker[value])
    for read in liveness.reads[maker]:
        if read in pending or eviction.profile.last_use[read] < place:
            yield from _restored(eviction, read, place, pending, there)
    there.update(liveness.writes[maker])
    yield maker, True


def steps_of_assignment(model: Formulation, x: Sequence[float]) -> tuple[Step, ...]:
    """Return the steps that an assignment of the model's variables describes.

    A value is paged out right after it is made, and paged in right before its first reader of the stage.
    """
    instance, candidates = model.candidates.instance, model.candidates
    before: _Restores = {}
    behind: dict[int, list[str]] = {}
    for value, variable in model.page_out.items():
        if x[variable] > 0.5:
            behind.setdefault(instance.producer[value], []).append(instance.values[value])
    arriving: dict[int, list[int]] = {}
    for (value, index), variable in model.page_in.items():
        if x[variable] > 0.5:
            arriving.setdefault(candidates.events[value][index].stage, []).append(value)
    for stage, slots in enumerate(candidates.slots):
        here = before.setdefault(stage, [])
        pending = sorted(arriving.get(stage, []))
        for number in slots:
            if x[model.recompute[stage, number]] < 0.5:
                continue
            unit = candidates.units[number]
            here += [(instance.values[value], False) for value in pending if value in unit.inputs]
            pending = [value for value in pending if value not in unit.inputs]
            here += [(instance.nodes[position].name, True) for position in unit.nodes]
        here += [(instance.values[value], False) for value in pending]
    return tuple(_steps([node.name for node in instance.nodes], before, behind))


def restores_of(model: Formulation, steps: Sequence[Step]) -> Restores:
    """Return what a plan in the model's order recomputes and pages in, as far as the model has variables for that."""
    candidates = model.candidates
    position = {node.name: number for number, node in enumerate(candidates.instance.nodes)}
    number = {name: value for value, name in enumerate(candidates.instance.values)}
    recomputed: set[tuple[int, int]] = set()
    paged_in: set[tuple[int, int]] = set()
    stage = 0
    for step in steps:
        values: Sequence[int] = ()
        if step.action is Action.PAGE_IN_END:
            values = (number[step.subject],)
        elif step.action is Action.COMPUTE and step.copy:
            values = candidates.instance.writes[position[step.subject]]
        elif step.action is Action.COMPUTE:
            stage += 1
        for value in values:
            index = candidates.at.get((value, stage))
            rerun = None if index is None else candidates.events[value][index].rerun
            if step.copy and rerun is not None:
                recomputed.add(rerun)
            elif index is not None and (value, index) in model.page_in:
                paged_in.add((value, index))
    for stage, unit in recomputed:  # what is made again there is not paged in besides
        paged_in -= {(value, candidates.at.get((value, stage), -1)) for value in candidates.units[unit].outputs}
    return model.useful(Restores(recomputed, paged_in))
