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
    (4)   bytes in RAM <= budget                  at each slot and each node
    (5)   rows of time, see `Timing`
    (6)   R[s,u] <= sum R[s,readers of u] (+ S[k,i+1] of its outputs k where an input of u is in RAM anyway)
                                                  unless the stage's node reads u
    (7)   what these rows imply for whole numbers, looked for where relaxations violate it, see `Ancestry`

(4) counts a value while it is retained, from its slot or page-in to the last slot that needs it, and to the node that
reads it; Y >= R of every reader at or behind the slot, Y >= next Y, last Y >= S[k,i+1], first Y >= R_own. Where other
slots may come before a page-in, E in [0,1] says that it has come by a reader's slot: E >= I + R of the reader - 1,
E >= previous E, E >= I - next Y.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from poet_onnx.scheduling.candidates import Candidates, Event
from poet_onnx.scheduling.memory import Ceilings, MemoryRows, Row


class Supplied(Protocol):
    """What tells which supplies there are: `Supplies`, or what changes them."""

    @property
    def recomputed(self) -> AbstractSet[tuple[int, int]]:
        """Return (stage, unit) pairs."""

    @property
    def paged_in(self) -> AbstractSet[tuple[int, int]]:
        """Return (value, index of its event) pairs."""


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
        budget_bytes: right-hand side of the memory rows.
        deadline_seconds: what the rows of time were made for; None for none.
        cost: objective coefficient of each variable, joules.
        binary: whether each variable is integral; all lie in [0, 1].
        rows: rows (1) to (3), (6) and those of Y.
        time: rows (5), all of the form terms <= high, in seconds.
        memory: rows (4).
        leaving: for values whose page-out takes so long that they stay in RAM for it, the variable that says so.
        leaving_until: the stage up to which they do.
        arrival: for page-ins that must start stages before they are needed, the first stage whose node they are in RAM
            with; that stage's recomputes may come before.
        proves: every plan of the class within the budget and the deadline satisfies the rows.
    """

    candidates: Candidates
    budget_bytes: int
    deadline_seconds: float | None = None
    cost: list[float] = field(default_factory=list)
    binary: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    time: list[Row] = field(default_factory=list)
    memory: MemoryRows = field(default_factory=MemoryRows)
    leaving: dict[int, int] = field(default_factory=dict)
    leaving_until: dict[int, int] = field(default_factory=dict)
    arrival: dict[tuple[int, int], int] = field(default_factory=dict)
    proves: bool = True
    recompute: dict[tuple[int, int], int] = field(default_factory=dict)
    retain: dict[tuple[int, int], int] = field(default_factory=dict)
    page_in: dict[tuple[int, int], int] = field(default_factory=dict)
    page_out: dict[int, int] = field(default_factory=dict)
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
                for variable, level in self.fetches(value, index, supplies):
                    x[variable] = level
            if value in self.leaving:
                x[self.leaving[value]] = max(x[self.retain[value, 0]], x[self.page_out[value]])
        return x

    def exact(self, x: Sequence[float]) -> list[float]:
        """Return a solver's assignment with whole numbers: what it decides, and all that follows."""
        return self.complete(self.supplies(x))

    def joules(self, x: Sequence[float]) -> float:
        """Return what an assignment of the variables costs."""
        return sum(cost * level for cost, level in zip(self.cost, x, strict=True))

    def ceilings(self) -> Ceilings:
        """Return the rows of memory and time in a form that is quick to evaluate."""
        return Ceilings(self.memory, self.time, len(self.cost))

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

    def walk_back(
        self, value: int, supplies: Supplied, *, since: int | None = None, wanted: bool = False
    ) -> Iterator[tuple[int, bool, list[bool], bool]]:
        """Yield, from a value's last event to its first: index, retained into it, needed from each reader on, used.

        Args:
            value: its number.
            supplies: what there is of it and others.
            since: the event to begin with, if not the last one.
            wanted: whether the value is retained into the event behind that.
        """
        events = self.candidates.events[value]
        for index in range(len(events) - 1 if since is None else since, -1, -1):
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

    def fetches(self, value: int, index: int, supplies: Supplied) -> Iterator[tuple[int, float]]:
        """Yield the variables that say by which reader a value is paged in at one of its events, and their levels."""
        if (value, index, 0) not in self.fetched:
            return
        event = self.candidates.events[value][index]
        slots = self.candidates.slots[event.stage]
        there = False
        for place, slot in enumerate(event.readers):
            there = there or (event.stage, slots[slot]) in supplies.recomputed
            yield self.fetched[value, index, place], float(there and (value, index) in supplies.paged_in)

    def supplies(self, x: Sequence[float]) -> Supplies:
        """Return the supplies that an assignment of the variables describes."""
        return self.useful(
            Supplies(
                frozenset(key for key, variable in self.recompute.items() if x[variable] > 0.5),
                frozenset(key for key, variable in self.page_in.items() if x[variable] > 0.5),
            )
        )
