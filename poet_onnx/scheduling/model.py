"""The MILP: variables and rows of the compact scheduling model, and what an assignment means; no solver is needed.

Stages are the nodes of the order. Just before a stage's node, candidate units may be recomputed, one slot each.
With binaries R[s,u] (recompute unit u in stage s), S[k,i] (value k stays in RAM between its events i-1 and i),
I[k,i] (page-in of k at event i), F[k] (page-out of k, once, right after it is made) and Y in [0,1] (k still needed by
a later slot of the same stage):

    min   sum e_u R + sum ein_k I + sum eout_k F
    (1)   S + I + R_own = 1                       at an event where the stage's node reads k
          S + I + R_own >= R[s,c]                 at any other event, for each candidate c that reads k
    (2)   S[k,i+1] <= S + I + R_own               at an event where the stage's node does not read k
    (3)   I[k,i] <= F[k]
    (4)   bytes in RAM <= budget                  at each slot and each node, see `memory_rows`
    (5)   seconds <= what the deadline leaves, see `limit_rows`
    (6)   R[s,u] <= sum R[s,readers of u]          unless the stage's node reads u
    (7)   what these rows imply for whole numbers, looked for where relaxations violate it, see `Ancestry`
    (8)   bytes moved <= what a step may move, see `limit_rows`

(4) counts a value while it is retained, from its slot or page-in to the last slot that needs it, and to the node that
reads it; Y >= R of every reader at or behind the slot, Y >= next Y, last Y >= S[k,i+1], first Y >= R_own. Where other
slots may come before a page-in, E in [0,1] says that it has come by a reader's slot: E >= I + R of the reader - 1,
E >= previous E, E >= I - next Y.

Two nodes: a makes k, b at stage 7 reads it. k has one event, and (1) is S[k,0] + I[k,0] + R[7,a] = 1: k stayed in RAM,
is paged in, or a runs again just before b.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling.choices import Candidates, Event, find_candidates
from poet_onnx.scheduling.limit_rows import Timing, add_limit_rows
from poet_onnx.scheduling.liveness import Instance
from poet_onnx.scheduling.memory_rows import Ceilings, MemoryRows, Row, memory_rows


@dataclass(frozen=True, slots=True)
class Restores:
    """What a schedule decides; all the rest follows.

    Attributes:
        recomputed: (stage, unit) pairs.
        paged_in: (value, index of its event) pairs.
    """

    recomputed: AbstractSet[tuple[int, int]] = frozenset()
    paged_in: AbstractSet[tuple[int, int]] = frozenset()


@dataclass
class Formulation:
    """Variables by number and rows over them.

    Attributes:
        candidates: the choices it was built from.
        limits: what the rows were made for.
        cost: objective coefficient of each variable, joules.
        binary: whether each variable is integral; all lie in [0, 1].
        rows: rows (1) to (3), (6) and those of Y.
        time: rows (5), all of the form terms <= high, in seconds.
        moved: rows (8), all of the form terms <= high.
        memory: rows (4).
        proves: every plan of the class that keeps the limits, and is worth it, satisfies the rows.
        paged: variable for the number of values that are paged, as a share of `most_paged`; None without paging.
    """

    candidates: Candidates
    limits: Limits
    cost: list[float] = field(default_factory=list)
    binary: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    time: list[Row] = field(default_factory=list)
    moved: list[Row] = field(default_factory=list)
    memory: MemoryRows = field(default_factory=MemoryRows)
    proves: bool = True
    recompute: dict[tuple[int, int], int] = field(default_factory=dict)
    retain: dict[tuple[int, int], int] = field(default_factory=dict)
    page_in: dict[tuple[int, int], int] = field(default_factory=dict)
    page_out: dict[int, int] = field(default_factory=dict)
    paged: int | None = None
    needed: dict[tuple[int, int, int], int] = field(default_factory=dict)
    fetched: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def variable(self, cost: float = 0.0, *, binary: bool = True) -> int:
        """Add a variable in [0, 1] and return its number."""
        self.cost.append(cost)
        self.binary.append(binary)
        return len(self.cost) - 1

    def require(self, required: int, by: int, *, unless: Iterable[int] = ()) -> None:
        """Add the row that one variable is at least another, less its excuses."""
        self.rows.append(Row({required: 1.0, by: -1.0, **dict.fromkeys(unless, 1.0)}, low=0.0))

    def complete(self, restores: Restores) -> list[float]:
        """Return values for all variables, given which units are recomputed where and which page-ins happen.

        What is retained follows: a value stays in RAM into an event unless it is restored anew there or not needed.
        """
        x = [0.0] * len(self.cost)
        for key in restores.recomputed:
            x[self.recompute[key]] = 1.0
        for key in restores.paged_in:
            x[self.page_in[key]] = 1.0
            x[self.page_out[key[0]]] = 1.0
        if self.paged is not None:
            x[self.paged] = sum(x[variable] for variable in self.page_out.values()) / self.most_paged
        for value in self.candidates.events:
            for _, levels in self.levels(value, restores):
                for variable, level in levels.items():
                    x[variable] = level
        return x

    @property
    def most_paged(self) -> int:
        """Return at least how many values could be paged, and a power of two: shares of it are exact numbers."""
        return 1 << (len(self.page_out) - 1).bit_length()

    def levels(
        self, value: int, restores: Restores, *, since: int | None = None, wanted: bool = False
    ) -> Iterator[tuple[int, dict[int, float]]]:
        """Yield the levels of what follows from restores at a value's events; see `walk_back`."""
        for index, retained, needed, _ in self.walk_back(value, restores, since=since, wanted=wanted):
            levels = {self.retain[value, index]: float(retained)}
            for place, flag in enumerate(needed):
                if (value, index, place) in self.needed:
                    levels[self.needed[value, index, place]] = float(flag)
            levels.update(self._fetches(value, index, restores))
            yield index, levels

    def exact(self, x: Sequence[float]) -> list[float]:
        """Return a solver's assignment with whole numbers: what it decides, and all that follows."""
        return self.complete(self.restores(x))

    def joules(self, x: Sequence[float]) -> float:
        """Return what an assignment of the variables costs."""
        return sum(cost * level for cost, level in zip(self.cost, x, strict=True))

    def ceilings(self) -> Ceilings:
        """Return the rows of memory, time and bytes written in a form that is quick to evaluate."""
        return Ceilings(self.memory, [*self.time, *self.moved], len(self.cost))

    def useful(self, restores: Restores) -> Restores:
        """Return the restores that something needs; a solver within its gap may leave others."""
        while True:
            paged_in: set[tuple[int, int]] = set()
            recomputed: set[tuple[int, int]] = set()
            for value, events in self.candidates.events.items():
                for index, _, _, used in self.walk_back(value, restores):
                    event = events[index]
                    if used and event.rerun is not None:
                        recomputed.add(event.rerun)
                    if used:
                        paged_in.add((value, index))
            kept = Restores(restores.recomputed & recomputed, restores.paged_in & paged_in)
            if kept == restores:
                return kept
            restores = kept

    def walk_back(
        self, value: int, restores: Restores, *, since: int | None = None, wanted: bool = False
    ) -> Iterator[tuple[int, bool, list[bool], bool]]:
        """Yield, from a value's last event to its first: index, retained into it, needed from each reader on, used.

        Args:
            value: its number.
            restores: what there is of it and others.
            since: the event to begin with, if not the last one.
            wanted: whether the value is retained into the event behind that.
        """
        events = self.candidates.events[value]
        for index in range(len(events) - 1 if since is None else since, -1, -1):
            event = events[index]
            needed: list[bool] = []
            later = wanted
            for rerun in reversed(event.reruns):
                later = later or rerun in restores.recomputed
                needed.insert(0, later)
            remade = event.rerun in restores.recomputed
            used = event.main or wanted or later
            if remade and needed:
                needed[0] = True
            wanted = used and not remade and (value, index) not in restores.paged_in
            yield index, wanted, needed, used

    def _fetches(self, value: int, index: int, restores: Restores) -> Iterator[tuple[int, float]]:
        """Yield the variables that say by which reader a value is paged in at one of its events, and their levels."""
        if (value, index, 0) not in self.fetched:
            return
        there = False
        for place, rerun in enumerate(self.candidates.events[value][index].reruns):
            there = there or rerun in restores.recomputed
            yield self.fetched[value, index, place], float(there and (value, index) in restores.paged_in)

    def restores(self, x: Sequence[float]) -> Restores:
        """Return the restores that an assignment of the variables describes."""
        return self.useful(
            Restores(
                frozenset(key for key, variable in self.recompute.items() if x[variable] > 0.5),
                frozenset(key for key, variable in self.page_in.items() if x[variable] > 0.5),
            )
        )


def formulate(
    instance: Instance, limits: Limits, timing: Timing | None = None, *, worth_joules: float = math.inf
) -> Formulation:
    """Build the model for a budget and a deadline, of plans that spend at most so many joules above the base.

    Room is set aside for small values, which stay in RAM. A value whose page-out and page-in alone cost more than
    `worth_joules` is never paged. Where what must always be in RAM exceeds the budget, small values are kept no longer
    than the graph needs them; then nothing is recomputed, for whatever may be recomputed later cannot give its buffer
    away before. Without timing, a deadline is left out.
    """
    model = _formulate(instance, limits, timing, worth_joules)
    paging = replace(instance, problem=replace(instance.problem, recompute=False))
    for source in (instance, paging) if instance.problem.paging else (instance,):
        if model.memory.fixed_bytes <= limits.transient_bytes:
            return model
        model = _formulate(source, limits, timing, worth_joules, lengthen=False)
    return model


def _formulate(
    instance: Instance, limits: Limits, timing: Timing | None, worth_joules: float, *, lengthen: bool = True
) -> Formulation:
    model = Formulation(find_candidates(instance, limits, timing, lengthen=lengthen), limits)
    model.proves = timing is None or timing.leaves_none_out
    _add_variables(model, worth_joules)
    _add_restore_rows(model)
    _add_just_in_time_rows(model)
    add_limit_rows(model, timing)
    _add_fetch_rows(model)
    model.memory = memory_rows(model)
    return model


def _add_variables(model: Formulation, worth_joules: float) -> None:
    candidates = model.candidates
    instance, costs = candidates.instance, candidates.instance.problem.costs
    for stage, slots in enumerate(candidates.slots):
        for number in slots:
            model.recompute[stage, number] = model.variable(candidates.units[number].joules)
    for value, events in candidates.events.items():
        name = instance.values[value]
        pageable = instance.problem.paging and name in costs.page_out and name in costs.page_in
        if pageable:
            out_joules, in_joules = (costs.transfer_joules(way[name]) for way in (costs.page_out, costs.page_in))
            pageable = out_joules + in_joules <= worth_joules
        present_at = instance.producer[value]
        for index, event in enumerate(events):
            model.retain[value, index] = model.variable()
            used = event.main or bool(event.readers)
            if pageable and used and (event.stage > present_at + 1 or candidates.slots[event.stage]):
                model.page_in[value, index] = model.variable(in_joules)
            if event.main:
                present_at = event.stage
            elif event.readers:
                for place in range(len(event.readers)):
                    model.needed[value, index, place] = model.variable(binary=False)
        if any((value, index) in model.page_in for index in range(len(events))):
            model.page_out[value] = model.variable(out_joules)
    if model.page_out:
        model.paged = model.variable(binary=False)
        terms = dict.fromkeys(model.page_out.values(), 1.0)
        model.rows.append(Row({**terms, model.paged: -float(model.most_paged)}, high=0.0))


def _add_restore_rows(model: Formulation) -> None:
    candidates = model.candidates
    for value, events in candidates.events.items():
        for index, event in enumerate(events):
            restore = {model.retain[value, index]: 1.0}
            if (value, index) in model.page_in:
                restore[model.page_in[value, index]] = 1.0
                model.rows.append(Row({model.page_in[value, index]: 1.0, model.page_out[value]: -1.0}, high=0.0))
            own = None if event.rerun is None else model.recompute[event.rerun]
            if own is not None:
                restore[own] = 1.0
            if event.main:
                model.rows.append(Row(restore, low=1.0, high=1.0))
                continue
            readers = [model.recompute[rerun] for rerun in event.reruns]
            for reader in readers:
                model.rows.append(Row({**restore, reader: -1.0}, low=0.0))
            following = model.retain.get((value, index + 1))
            if following is not None:
                model.rows.append(Row({**restore, following: -1.0}, low=0.0))
            needed = [model.needed[value, index, place] for place in range(len(readers))]
            behind = [*needed[1:], following][: len(needed)]
            for flag, reader, later in zip(needed, readers, behind, strict=True):
                model.require(flag, reader)
                if later is not None:
                    model.require(flag, later)
            if needed and own is not None:
                model.require(needed[0], own)


def _add_fetch_rows(model: Formulation) -> None:
    """Say, for page-ins that need not come before all other slots of their stage, by which reader they have come."""
    candidates = model.candidates
    for (value, index), page_in in model.page_in.items():
        event = candidates.events[value][index]
        if not _comes_late(event):
            continue
        needed = [model.needed.get((value, index, place)) for place in range(len(event.readers))]
        behind = [*needed[1:], model.retain.get((value, index + 1))]
        before: int | None = None
        for place, (rerun, later) in enumerate(zip(event.reruns, behind, strict=True)):
            here = model.fetched[value, index, place] = model.variable(binary=False)
            model.rows.append(Row({here: 1.0, page_in: -1.0, model.recompute[rerun]: -1.0}, low=-1.0))
            if before is not None:
                model.require(here, before)
            if not event.main:
                # What no later slot or stage needs has come by now: where it is counted, it is not counted off.
                model.require(here, page_in, unless=() if later is None else (later,))
            before = here
        if not event.main and needed[0] is not None:
            model.require(needed[0], page_in)


def _comes_late(event: Event) -> bool:
    """Return whether a slot in which a value's page-in cannot be missing may come before that page-in."""
    if event.main or not event.readers:
        return bool(event.readers)
    return len(event.readers) > 1 or (event.own is not None and event.readers[0] > event.own + 1)


def _add_just_in_time_rows(model: Formulation) -> None:
    candidates = model.candidates
    reading: list[dict[int, list[int]]] = [{} for _ in candidates.slots]  # by stage and value, the slots
    for readers_of, slots in zip(reading, candidates.slots, strict=True):
        for place, number in enumerate(slots):
            for value in candidates.units[number].inputs:
                readers_of.setdefault(value, []).append(place)
    for (stage, number), variable in model.recompute.items():
        outputs = candidates.units[number].outputs
        if any(value in candidates.instance.reads[stage] for value in outputs):
            continue
        places = sorted({place for value in outputs for place in reading[stage].get(value, ())})
        readers = {model.recompute[stage, candidates.slots[stage][place]] for place in places}
        model.rows.append(Row({variable: -1.0, **dict.fromkeys(readers, 1.0)}, low=0.0))
