"""What may be recomputed where: units, managed values, their events, and the class of plans that these make up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from poet_onnx.plan import PlanClass
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.liveness import Instance

if TYPE_CHECKING:
    from poet_onnx.scheduling.limit_rows import Timing

TINY_FRACTION = 0.005
"""The smallest values together may take this share of the budget; they stay in RAM and are counted."""

MOST_CANDIDATES = 12_000
"""Recompute candidates (stage, unit) above which chains of recompute are cut to fewer hops."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A chain of nodes that is recomputed as one, its inner values being read by nothing else.

    Attributes:
        nodes: positions, in order.
        inputs, outputs: values that it reads and leaves, neither small nor graph outputs.
        seconds: of all its nodes.
        joules: of all its nodes, with what the device takes meanwhile.
        extra_bytes: most bytes that its inner values and workspace need beside inputs and outputs.
    """

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    seconds: float
    joules: float
    extra_bytes: int


@dataclass(frozen=True, slots=True)
class Event:
    """A stage at which something can happen to a managed value.

    Attributes:
        stage: position of the stage's node.
        main: that node reads the value.
        readers: slots of the stage's recompute candidates that read it, ascending.
        own: slot of the candidate that makes it, or None.
        reruns: (stage, unit) of each of the readers.
        rerun: (stage, unit) of the candidate that makes it, or None.
    """

    stage: int
    main: bool
    readers: tuple[int, ...]
    own: int | None
    reruns: tuple[tuple[int, int], ...]
    rerun: tuple[int, int] | None


@dataclass(frozen=True)
class Candidates:
    """The choices of a schedule.

    Attributes:
        instance: the ordered problem.
        units: recompute units, by position of their last node.
        slots: for each stage, the units that may be recomputed just before its node, in topological order.
        events: for each managed value, its events in order; values without an entry stay in RAM all their life.
        last_alive: for each value that is not managed, the last position at which it may be needed.
        hops: length of the longest chain of units recomputed for one reader.
    """

    instance: Instance
    units: tuple[Unit, ...]
    slots: tuple[tuple[int, ...], ...]
    events: dict[int, tuple[Event, ...]]
    last_alive: dict[int, int]
    hops: int

    @cached_property
    def at(self) -> dict[tuple[int, int], int]:
        """Return the index of each value's event at each stage that has one."""
        return {
            (value, event.stage): index for value, events in self.events.items() for index, event in enumerate(events)
        }


def find_candidates(instance: Instance, limits: Limits, timing: Timing | None, *, lengthen: bool = True) -> Candidates:
    """Collect all choices that the schedule has within limits.

    Recomputes that take longer than the deadline leaves are none of them.

    Args:
        instance: the ordered problem.
        limits: what plans must keep to.
        timing: how the model sees the deadline.
        lengthen: small values may be kept longer than the graph needs them, for a recompute that might read them.
            Without that there are fewer candidates, and no room is set aside for it.
    """
    tiny = _tiny_values(instance, limits.transient_bytes)
    units = _units(instance, tiny) if instance.problem.recompute else ()
    gone = {} if lengthen else {value: instance.last_use(value) for value in tiny}
    spare_seconds = math.inf if timing is None else timing.spare_seconds
    never = {number for number, unit in enumerate(units) if unit.seconds > spare_seconds}
    if not any(limits.on_transfers()):
        never |= _dearer_than_paging(instance, units, timing is not None and timing.charges_transfers)
    hops = len(units)
    slots = _slots(instance, units, hops, gone, never)
    while hops > 2 and sum(map(len, slots)) > MOST_CANDIDATES:
        hops = min(hops // 2, 24) if hops > 24 else hops - 2
        slots = _slots(instance, units, hops, gone, never)
    events = _events(instance, units, slots, tiny)
    last_alive = {k: instance.last_use(k) for k in range(len(instance.values)) if k not in events}
    for stage, stage_slots in enumerate(slots):
        for unit in stage_slots:
            for position in units[unit].nodes:
                for value in instance.reads[position]:
                    if value in last_alive and instance.producer[value] not in units[unit].nodes:
                        last_alive[value] = max(last_alive[value], stage)
    return Candidates(instance, units, slots, events, last_alive, hops)


def _tiny_values(instance: Instance, budget_bytes: int) -> frozenset[int]:
    """Return the smallest values, as many as live together within their share of the budget."""
    levels = [0] * (len(instance.nodes) + 1)
    limit = TINY_FRACTION * min(budget_bytes, max(instance.step_bytes(), default=0))
    tiny = set()
    for value in sorted(range(len(instance.values)), key=lambda value: (instance.sizes[value], value)):
        life = range(instance.producer[value], min(instance.last_use(value), len(instance.nodes) - 1) + 1)
        if max(levels[position] for position in life) + instance.sizes[value] > limit:
            break
        for position in life:
            levels[position] += instance.sizes[value]
        tiny.add(value)
    return frozenset(tiny)


def _units(instance: Instance, tiny: frozenset[int]) -> tuple[Unit, ...]:
    """Fuse recomputable nodes along values that have one reader and are no smaller than what it makes of them.

    Storing such an inner value instead of the chain's result would take as much room and leave more to recompute.
    """
    large = [[value for value in values if value not in tiny] for values in instance.writes]
    joined: dict[int, int] = {}
    for position, outputs in enumerate(large):
        if not instance.nodes[position].recomputable or len(outputs) != 1 or outputs[0] in instance.kept:
            continue
        uses = instance.uses[outputs[0]]
        if len(uses) != 1 or not instance.nodes[uses[0]].recomputable or len(large[uses[0]]) != 1:
            continue
        result = large[uses[0]][0]
        if instance.sizes[result] <= instance.sizes[outputs[0]] and result not in instance.kept:
            joined[position] = uses[0]
    chains: dict[int, list[int]] = {}
    for position in range(len(instance.nodes)):
        last = position
        while last in joined:
            last = joined[last]
        if instance.nodes[position].recomputable and large[last] and not instance.kept & set(instance.writes[last]):
            chains.setdefault(last, []).append(position)
    return tuple(_unit(instance, tuple(chains[last]), tuple(large[last]), tiny) for last in sorted(chains))


def _unit(instance: Instance, nodes: tuple[int, ...], outputs: tuple[int, ...], tiny: frozenset[int]) -> Unit:
    members = set(nodes)
    inner = {value for position in nodes for value in instance.writes[position]} - set(outputs)
    outside = {value for position in nodes for value in instance.reads[position]} - inner
    last_use = [-1] * len(instance.values)
    for value in inner:
        last_use[value] = max((use for use in instance.uses[value] if use in members), default=instance.producer[value])
    alive: set[int] = set()
    most = 0
    for position in nodes:
        alive.update(instance.writes[position])
        level = sum(instance.sizes[value] for value in alive) + instance.workspace[position]
        level += instance.problem.graph.scratch_bytes(instance.nodes[position])
        most = max(most, level - instance.shared_bytes(position, last_use))
        alive = {value for value in alive if value in outputs or last_use[value] > position}
    seconds = sum(instance.seconds[position] for position in nodes)
    joules = sum(instance.joules[position] for position in nodes)
    return Unit(
        nodes=nodes,
        inputs=tuple(sorted(outside - tiny - instance.kept)),
        outputs=outputs,
        seconds=seconds,
        joules=joules + instance.problem.costs.idle_watts * seconds,
        extra_bytes=most - sum(instance.sizes[value] for value in outputs),
    )


def _dearer_than_paging(instance: Instance, units: Sequence[Unit], time_matters: bool) -> set[int]:
    """Return the units whose recompute costs at least as much energy as one page-out and page-in of all they make.

    Paging needs no more RAM, so that nothing is lost without them where the time of transfers does not matter. If it
    does, they take at least as long besides: then nothing is lost where transfers are synchronous.
    """
    costs = instance.problem.costs
    if not instance.problem.paging:
        return set()
    dear = set()
    for number, unit in enumerate(units):
        names = [instance.values[value] for value in unit.outputs]
        if not all(name in costs.page_out and name in costs.page_in for name in names):
            continue
        transfers = [costs.page_out[name] for name in names] + [costs.page_in[name] for name in names]
        paging = sum(map(costs.transfer_joules, transfers))
        takes_longer = sum(transfer.seconds for transfer in transfers) <= unit.seconds
        if paging <= unit.joules and (takes_longer or not time_matters):
            dear.add(number)
    return dear


def _slots(
    instance: Instance, units: Sequence[Unit], hops: int, gone: Mapping[int, int], never: set[int]
) -> tuple[tuple[int, ...], ...]:
    """Return, for each stage, the units that could serve its node, directly or through at most `hops` others.

    A unit that reads a value of `gone` is none behind the position given there; those of `never` are none at all.
    """
    end = len(instance.nodes)
    reads = [[value for position in unit.nodes for value in instance.reads[position]] for unit in units]
    until = [min((gone.get(value, end) for value in values), default=end) for values in reads]
    made_by = {value: number for number, unit in enumerate(units) for value in unit.outputs}
    slots: list[tuple[int, ...]] = []
    for stage in range(len(instance.nodes)):
        found: set[int] = set()
        wave = [made_by[value] for value in instance.reads[stage] if value in made_by]
        if not any(_idle(instance, value, stage) for unit in wave for value in units[unit].outputs):
            wave = []
        for _ in range(hops + 1):
            fresh = {unit for unit in wave if units[unit].nodes[-1] < stage <= until[unit]} - found - never
            fresh = {unit for unit in fresh if not _is_blocked(instance, units[unit], stage)}
            if not fresh:
                break
            found |= fresh
            wave = [made_by[value] for unit in sorted(fresh) for value in units[unit].inputs if value in made_by]
        slots.append(tuple(sorted(found, key=lambda unit: units[unit].nodes[-1])))
    return tuple(slots)


def _idle(instance: Instance, value: int, stage: int) -> bool:
    """Return whether a value is idle, unread, for at least one whole stage before this one."""
    earlier = [use for use in instance.uses[value] if use < stage]
    return max(earlier, default=instance.producer[value]) < stage - 1


def _is_blocked(instance: Instance, unit: Unit, stage: int) -> bool:
    """Return whether a resident tensor that a unit reads is changed between its first run and a stage."""
    return any(position < other < stage for position in unit.nodes for other in instance.changers[position])


def _events(
    instance: Instance, units: Sequence[Unit], slots: Sequence[Sequence[int]], tiny: frozenset[int]
) -> dict[int, tuple[Event, ...]]:
    readers: dict[int, dict[int, list[int]]] = {}
    own: dict[int, dict[int, int]] = {}
    for stage, stage_slots in enumerate(slots):
        for slot, unit in enumerate(stage_slots):
            for value in units[unit].inputs:
                readers.setdefault(value, {}).setdefault(stage, []).append(slot)
            for value in units[unit].outputs:
                own.setdefault(value, {})[stage] = slot
    events: dict[int, tuple[Event, ...]] = {}
    for value in range(len(instance.values)):
        if value in tiny or value in instance.kept:
            continue
        read_at = readers.get(value, {})
        uses = set(instance.uses[value])
        if not read_at and not any(_idle(instance, value, use) or slots[use] for use in uses):
            continue
        last = max(uses | read_at.keys())
        stages = sorted(stage for stage in uses | read_at.keys() | own.get(value, {}).keys() if stage <= last)
        events[value] = tuple(
            _event(stage, slots[stage], stage in uses, read_at.get(stage, ()), own.get(value, {}).get(stage))
            for stage in stages
        )
    return events


def _event(stage: int, slots: Sequence[int], main: bool, readers: Sequence[int], own: int | None) -> Event:
    reruns = tuple((stage, slots[slot]) for slot in readers)
    return Event(stage, main, tuple(readers), own, reruns, None if own is None else (stage, slots[own]))


def class_in_order(problem: ScheduleProblem) -> PlanClass:
    """Return the class of all that a problem allows in one order."""
    return PlanClass(problem.recompute, problem.paging and bool(problem.costs.page_out))


def solver_class(candidates: Candidates) -> PlanClass:
    """Return the class of what the solver's model expresses with some candidates."""
    wide = class_in_order(candidates.instance.problem)
    stays = sum(1 for value in candidates.last_alive if value not in candidates.instance.kept)
    return PlanClass(wide.recompute, wide.paging, hops=candidates.hops, stays=stays)
