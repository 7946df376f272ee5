"""The MILP: variables and rows of the compact scheduling model, without a solver.

Stages are the nodes of the order. Just before a stage's node, candidate units may be recomputed, one slot each.
With binaries R[s,u] (recompute unit u in stage s), S[k,i] (value k stays in RAM between its events i-1 and i),
I[k,i] (page-in of k at event i), F[k] (page-out of k, once, right after it is made) and Y in [0,1] (k still needed by
a later slot of the same stage):

    min   sum e_u R + sum ein_k I + sum eout_k F
    (1)   S + I + R_own = 1                       at an event where the stage's node reads k
          S + I + R_own >= R[s,c]                 at any other event, for each candidate c that reads k
    (2)   S[k,i+1] <= S + I + R_own               at an event where the stage's node does not read k
    (3)   I[k,i] <= F[k]
    (4)   bytes in RAM <= budget                  at each slot and each node
    (5)   sum t_u R + share * transfers <= spare seconds, transfers <= deadline
    (6)   R[s,u] <= sum R[s,readers of u]         unless the stage's node reads u

(4) counts a value while it is retained, from its slot or page-in to the last slot that needs it, and to the node that
reads it; Y >= R of every reader at or behind the slot, Y >= next Y, last Y >= S[k,i+1], first Y >= R_own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from poet_onnx.scheduling.candidates import Candidates, Event, find_candidates
from poet_onnx.scheduling.instance import Instance

TOKEN_BYTES_EACH = 16
"""Bytes set aside for the tokens of each value that is large enough to be paged."""


@dataclass
class Row:
    """low <= sum coefficient * variable <= high; a missing side is None."""

    terms: dict[int, float]
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Supplies:
    """What a schedule decides; all the rest follows.

    Attributes:
        recomputed: (stage, unit) pairs.
        paged_in: (value, index of its event) pairs.
    """

    recomputed: frozenset[tuple[int, int]]
    paged_in: frozenset[tuple[int, int]]


@dataclass
class Formulation:
    """Variables by number and rows over them.

    Attributes:
        candidates: the choices it was built from.
        budget_bytes: right-hand side of the memory rows; None for none.
        cost: objective coefficient of each variable, joules.
        binary: whether each variable is integral; all lie in [0, 1].
        rows: rows (1) to (3), (5), (6) and those of Y.
        memory: (4), as terms <= high in bytes, high being the budget less what is always there.
        fixed_bytes: the largest number of bytes that no choice can avoid.
    """

    candidates: Candidates
    budget_bytes: int
    cost: list[float] = field(default_factory=list)
    binary: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    memory: list[Row] = field(default_factory=list)
    fixed_bytes: int = 0
    recompute: dict[tuple[int, int], int] = field(default_factory=dict)
    retain: dict[tuple[int, int], int] = field(default_factory=dict)
    page_in: dict[tuple[int, int], int] = field(default_factory=dict)
    page_out: dict[int, int] = field(default_factory=dict)
    needed: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def variable(self, cost: float = 0.0, *, binary: bool = True) -> int:
        """Add a variable in [0, 1] and return its number."""
        self.cost.append(cost)
        self.binary.append(binary)
        return len(self.cost) - 1

    def own(self, stage: int, event: Event) -> int | None:
        """Return the variable that recomputes a value at one of its events, if any."""
        return None if event.own is None else self.recompute[stage, self.candidates.slots[stage][event.own]]

    def complete(self, supplies: Supplies) -> list[float]:
        """Return values for all variables, given which units are recomputed where and which page-ins happen.

        What is retained follows: a value stays in RAM into an event unless it is supplied anew there or not needed.
        """
        x = [0.0] * len(self.cost)
        for key in supplies.recomputed:
            x[self.recompute[key]] = 1.0
        for key in supplies.paged_in:
            x[self.page_in[key]] = 1.0
            x[self.page_out[key[0]]] = 1.0
        for value in self.candidates.events:
            for index, retained, needed, _ in self.walk_back(value, supplies):
                x[self.retain[value, index]] = float(retained)
                for place, flag in enumerate(needed):
                    if (value, index, place) in self.needed:
                        x[self.needed[value, index, place]] = float(flag)
        return x

    def useful(self, supplies: Supplies) -> Supplies:
        """Return the supplies that something needs; a solver within its gap may leave others."""
        while True:
            paged_in: set[tuple[int, int]] = set()
            recomputed: set[tuple[int, int]] = set()
            for value, events in self.candidates.events.items():
                for index, _, _, used in self.walk_back(value, supplies):
                    event = events[index]
                    if used and event.own is not None:
                        recomputed.add((event.stage, self.candidates.slots[event.stage][event.own]))
                    if used:
                        paged_in.add((value, index))
            kept = Supplies(supplies.recomputed & recomputed, supplies.paged_in & paged_in)
            if kept == supplies:
                return kept
            supplies = kept

    def walk_back(self, value: int, supplies: Supplies) -> Iterator[tuple[int, bool, list[bool], bool]]:
        """Yield, from a value's last event to its first: index, retained into it, needed from each reader on, used."""
        events = self.candidates.events[value]
        wanted = False
        for index in range(len(events) - 1, -1, -1):
            event = events[index]
            slots = self.candidates.slots[event.stage]
            needed: list[bool] = []
            later = wanted
            for slot in reversed(event.readers):
                later = later or (event.stage, slots[slot]) in supplies.recomputed
                needed.insert(0, later)
            remade = event.own is not None and (event.stage, slots[event.own]) in supplies.recomputed
            used = event.main or wanted or later
            if remade and needed:
                needed[0] = True
            wanted = used and not remade and (value, index) not in supplies.paged_in
            yield index, wanted, needed, used

    def supplies(self, x: Sequence[float]) -> Supplies:
        """Return the supplies that an assignment of the variables describes."""
        return self.useful(
            Supplies(
                frozenset(key for key, variable in self.recompute.items() if x[variable] > 0.5),
                frozenset(key for key, variable in self.page_in.items() if x[variable] > 0.5),
            )
        )


def formulate(instance: Instance, budget_bytes: int, *, transfer_share: float) -> Formulation:
    """Build the model for a budget and the problem's deadline.

    Args:
        instance: the ordered problem; its own budget is not looked at.
        budget_bytes: bound on the transient peak.
        transfer_share: share of the transfers' time that row (5) charges to the step: 1 where they are synchronous,
            0 for the relaxation that hides them all.
    """
    model = _formulate(find_candidates(instance, budget_bytes), budget_bytes, transfer_share)
    if model.fixed_bytes > budget_bytes:
        model = _formulate(find_candidates(instance, budget_bytes, lengthen=False), budget_bytes, transfer_share)
    if model.fixed_bytes > budget_bytes and instance.problem.paging:
        # Whatever may be recomputed later cannot give its buffer away before; paging alone needs the least.
        paging = replace(instance, problem=replace(instance.problem, recompute=False))
        model = _formulate(find_candidates(paging, budget_bytes), budget_bytes, transfer_share)
    return model


def _formulate(candidates: Candidates, budget_bytes: int, transfer_share: float) -> Formulation:
    model = Formulation(candidates, budget_bytes)
    _add_variables(model)
    _add_supply_rows(model)
    _add_just_in_time_rows(model)
    _add_memory_rows(model)
    deadline_seconds = candidates.instance.problem.deadline_seconds
    if deadline_seconds is not None:
        _add_time_rows(model, deadline_seconds, transfer_share)
    return model


def _add_variables(model: Formulation) -> None:
    candidates = model.candidates
    instance, costs = candidates.instance, candidates.instance.problem.costs
    idle = costs.idle_watts
    for stage, slots in enumerate(candidates.slots):
        for number in slots:
            unit = candidates.units[number]
            model.recompute[stage, number] = model.variable(unit.joules + idle * unit.seconds)
    waits = 0.0 if costs.asynchronous else idle
    for value, events in candidates.events.items():
        name = instance.values[value]
        pageable = instance.problem.paging and name in costs.page_out and name in costs.page_in
        present_at = instance.producer[value]
        for index, event in enumerate(events):
            model.retain[value, index] = model.variable()
            used = event.main or bool(event.readers)
            if pageable and used and event.stage > present_at + 1:
                cost = costs.page_in[name]
                model.page_in[value, index] = model.variable(cost.joules + waits * cost.seconds)
            if event.main:
                present_at = event.stage
            elif event.readers:
                for place in range(len(event.readers)):
                    model.needed[value, index, place] = model.variable(binary=False)
        if any((value, index) in model.page_in for index in range(len(events))):
            cost = costs.page_out[name]
            model.page_out[value] = model.variable(cost.joules + waits * cost.seconds)


def _add_supply_rows(model: Formulation) -> None:
    candidates = model.candidates
    for value, events in candidates.events.items():
        for index, event in enumerate(events):
            supply = {model.retain[value, index]: 1.0}
            if (value, index) in model.page_in:
                supply[model.page_in[value, index]] = 1.0
                model.rows.append(Row({model.page_in[value, index]: 1.0, model.page_out[value]: -1.0}, high=0.0))
            own = model.own(event.stage, event)
            if own is not None:
                supply[own] = 1.0
            if event.main:
                model.rows.append(Row(supply, low=1.0, high=1.0))
                continue
            slots = candidates.slots[event.stage]
            readers = [model.recompute[event.stage, slots[slot]] for slot in event.readers]
            for reader in readers:
                model.rows.append(Row({**supply, reader: -1.0}, low=0.0))
            following = model.retain.get((value, index + 1))
            if following is not None:
                model.rows.append(Row({**supply, following: -1.0}, low=0.0))
            needed = [model.needed[value, index, place] for place in range(len(readers))]
            behind = [*needed[1:], following][: len(needed)]
            for flag, reader, later in zip(needed, readers, behind, strict=True):
                model.rows.append(Row({flag: 1.0, reader: -1.0}, low=0.0))
                if later is not None:
                    model.rows.append(Row({flag: 1.0, later: -1.0}, low=0.0))
            if needed and own is not None:
                model.rows.append(Row({needed[0]: 1.0, own: -1.0}, low=0.0))


def _add_just_in_time_rows(model: Formulation) -> None:
    candidates = model.candidates
    for (stage, number), variable in model.recompute.items():
        outputs = candidates.units[number].outputs
        if any(value in candidates.instance.reads[stage] for value in outputs):
            continue
        readers = {
            model.recompute[stage, other]
            for other in candidates.slots[stage]
            if any(value in candidates.units[other].inputs for value in outputs)
        }
        model.rows.append(Row({variable: -1.0, **dict.fromkeys(readers, 1.0)}, low=0.0))


def _add_time_rows(model: Formulation, deadline_seconds: float, transfer_share: float) -> None:
    candidates = model.candidates
    instance, costs = candidates.instance, candidates.instance.problem.costs
    work = {variable: candidates.units[number].seconds for (_, number), variable in model.recompute.items()}
    transfers = {
        variable: costs.page_in[instance.values[value]].seconds for (value, _), variable in model.page_in.items()
    }
    for value, variable in model.page_out.items():
        transfers[variable] = costs.page_out[instance.values[value]].seconds
    charged = {variable: transfer_share * seconds for variable, seconds in transfers.items() if transfer_share}
    model.rows.append(Row({**work, **charged}, high=deadline_seconds - instance.base_seconds))
    if transfers:
        model.rows.append(Row(transfers, high=deadline_seconds))


def _add_memory_rows(model: Formulation) -> None:
    """Add (4) for each slot and node, skipping rows that can never bind or that a kept one implies."""
    candidates = model.candidates
    instance = candidates.instance
    always = _always_bytes(model)
    at: list[list[tuple[int, int]]] = [[] for _ in instance.nodes]
    for value, events in candidates.events.items():
        for index, event in enumerate(events):
            at[event.stage].append((value, index))
    waiting: dict[int, float] = {}
    kept = _Kept(model)
    for stage, here in enumerate(at):
        for value, index in here:
            del waiting[model.retain[value, index]]
        for slot in range(len(candidates.slots[stage])):
            kept.add(_slot_terms(model, stage, slot, here, waiting), always[stage][0])
        terms, own = _node_terms(model, stage, here, waiting)
        kept.add(terms, always[stage][1] + own)
        made = [(value, 0) for value in instance.writes[stage] if value in candidates.events]
        for value, index in [(value, index + 1) for value, index in here] + made:
            if (value, index) in model.retain:
                waiting[model.retain[value, index]] = instance.sizes[value]


def _slot_terms(
    model: Formulation, stage: int, slot: int, here: list[tuple[int, int]], waiting: dict[int, float]
) -> dict[int, float]:
    """Return what may be in RAM while a unit is recomputed in a slot."""
    instance = model.candidates.instance
    number = model.candidates.slots[stage][slot]
    terms = dict(waiting)
    if model.candidates.units[number].extra_bytes:
        terms[model.recompute[stage, number]] = model.candidates.units[number].extra_bytes
    for value, index in here:
        for variable in _present(model, value, index, slot):
            terms[variable] = terms.get(variable, 0.0) + instance.sizes[value]
    return terms


def _node_terms(
    model: Formulation, stage: int, here: list[tuple[int, int]], waiting: dict[int, float]
) -> tuple[dict[int, float], int]:
    """Return what may be in RAM while a stage's node runs, and the bytes of managed values that must be."""
    candidates = model.candidates
    instance = candidates.instance
    terms = dict(waiting)
    own = instance.workspace[stage] - _shared_bytes(candidates, stage)
    own += sum(instance.sizes[value] for value in instance.writes[stage] if value in candidates.events)
    for value, index in here:
        if candidates.events[value][index].main:
            own += instance.sizes[value]
        elif (value, index + 1) in model.retain:
            terms[model.retain[value, index + 1]] = instance.sizes[value]
    return terms, own


def _present(model: Formulation, value: int, index: int, slot: int) -> list[int]:
    """Return the variables whose sum is 1 while a value is in RAM at a slot of one of its events."""
    event = model.candidates.events[value][index]
    retained = model.retain[value, index]
    own = model.own(event.stage, event)
    following = model.retain.get((value, index + 1))
    first_reader = event.readers[0] if event.readers else None
    if event.main:
        present = [retained]
        if own is not None and event.own is not None and slot >= event.own:
            present.append(own)
        if first_reader is not None and slot >= first_reader and (value, index) in model.page_in:
            present.append(model.page_in[value, index])
        return present
    start = event.own if event.own is not None else first_reader
    if start is not None and slot < start:
        return [retained]
    for place, reader in enumerate(event.readers):
        if reader >= slot:
            return [model.needed[value, index, place]]
    if not event.readers and slot == event.own and own is not None:
        return [retained, own]
    return [] if following is None else [following]


def _always_bytes(model: Formulation) -> list[tuple[int, int]]:
    """Return, for each stage, the bytes of unmanaged values and tokens: before its node, and while it runs."""
    candidates = model.candidates
    instance = candidates.instance
    count = len(instance.nodes)
    before = [0] * (count + 1)
    during = [0] * (count + 1)
    for value, last in candidates.last_alive.items():
        made, end = instance.producer[value], min(last, count - 1)
        during[made] += instance.sizes[value]
        during[end + 1] -= instance.sizes[value]
        if end > made:
            before[made + 1] += instance.sizes[value]
            before[end + 1] -= instance.sizes[value]
    tokens = TOKEN_BYTES_EACH * candidates.large_values if model.page_out else 0
    levels, now_before, now_during = [], tokens, tokens
    for stage in range(count):
        now_before += before[stage]
        now_during += during[stage]
        levels.append((now_before, now_during))
    return levels


def _shared_bytes(candidates: Candidates, stage: int) -> int:
    """Return what a node's outputs certainly save by taking over inputs: those that no later event can need."""
    instance = candidates.instance
    last_use = [-1] * len(instance.values)
    for value in instance.reads[stage]:
        events = candidates.events.get(value)
        last_use[value] = events[-1].stage if events else candidates.last_alive[value]
    return instance.shared_bytes(stage, last_use)


class _Kept:
    """Collects memory rows: drops those that cannot bind and those that a recent one implies."""

    def __init__(self, model: Formulation) -> None:
        self.model = model
        self.recent: list[tuple[dict[int, float], float]] = []

    def add(self, terms: dict[int, float], fixed: float) -> None:
        """Add terms + fixed <= budget."""
        model = self.model
        model.fixed_bytes = max(model.fixed_bytes, int(fixed))
        room = model.budget_bytes - fixed
        if sum(terms.values()) <= room:
            return
        for other, other_room in self.recent:
            implied = other_room <= room and len(other) >= len(terms)
            if implied and all(other.get(variable, 0.0) >= size for variable, size in terms.items()):
                return
        self.recent = [(terms, room), *self.recent[:20]]
        model.memory.append(Row(terms, high=room))
