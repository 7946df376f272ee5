"""The cheapest plan of a small graph by exhaustive search: oracles that know nothing of the scheduler's model.

`least_energy` looks at all plans. A state is how far the order has come, what is in RAM and what is in storage; a move
runs the next node, recomputes one or moves one value, and values are dropped at will. Dijkstra's search over states
gives the least energy of any plan whose transfers take no time. `least_overhead_of_class` looks at the plans of the
scheduler's class, stage by stage.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations

from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.choices import Candidates

State = tuple[int, frozenset[str], frozenset[str]]
"""Nodes done, values in RAM, values in storage: these stay there, so they are what was written."""


def least_energy(problem: ScheduleProblem, limits: Limits, order: Sequence[str]) -> float | None:
    """Return the least energy of any plan in this order within budget and written bytes, or None if none."""
    search = _Search(problem, limits, order)
    start: State = (0, frozenset(), frozenset())
    best = {start: 0.0}
    queue = [(0.0, 0, start)]
    count = 0
    while queue:
        energy, _, state = heapq.heappop(queue)
        if energy > best[state]:
            continue
        if state[0] == len(order):
            return energy
        for cost, following in search.moves(state):
            total = energy + cost
            if total < best.get(following, float("inf")) - 1e-12:
                best[following] = total
                count += 1
                heapq.heappush(queue, (total, count, following))
    return None


class _Search:
    def __init__(self, problem: ScheduleProblem, limits: Limits, order: Sequence[str]) -> None:
        self.problem, self.limits = problem, limits
        graph = problem.graph
        nodes = {node.name: node for node in graph.nodes}
        self.order = [nodes[name] for name in order]
        made = [value for node in self.order for value in graph.transient_writes(node)]
        self.size = {value: graph.tensors[value].size_bytes for value in made}
        self.kept = {graph.tensors[name].buffer_owner for name in graph.outputs} & set(self.size)
        self.budget = limits.budget_bytes if limits.budget_bytes is not None else sum(self.size.values()) * 10

    def moves(self, state: State) -> Iterator[tuple[float, State]]:
        """Yield (joules, state) for everything that can be done next."""
        done, in_ram, stored = state
        graph, costs = self.problem.graph, self.problem.costs
        runnable = [(node, False) for node in self.order[:done] if node.recomputable and self.problem.recompute]
        runnable.append((self.order[done], True))
        for node, first in runnable:
            reads, writes = set(graph.transient_reads(node)), set(graph.transient_writes(node))
            if not reads <= in_ram or (not first and writes <= in_ram):
                continue
            needed = reads | writes | (self.kept & in_ram)
            room = self.budget - sum(self.size[value] for value in needed) - costs.nodes[node.name].workspace_bytes
            for rest in self._subsets(in_ram - needed, room):
                yield costs.nodes[node.name].joules, (done + first, rest | needed, stored)
        if not self.problem.paging:
            return
        for value in in_ram - stored:
            if not self._may_write(stored | {value}):
                continue
            yield costs.page_out[value].joules, (done, in_ram, stored | {value})
        for value in stored - in_ram:
            room = self.budget - self.size[value] - sum(self.size[name] for name in self.kept & in_ram)
            for rest in self._subsets(in_ram - self.kept, room):
                yield costs.page_in[value].joules, (done, rest | {value} | (self.kept & in_ram), stored)

    def _may_write(self, values: frozenset[str]) -> bool:
        allowed = self.limits.max_written_bytes
        return allowed is None or sum(self.size[value] for value in values) <= allowed

    def _subsets(self, values: frozenset[str] | set[str], room: float) -> Iterator[frozenset[str]]:
        """Yield the largest subsets that fit: keeping more never costs anything."""
        names = sorted(values)
        found: list[frozenset[str]] = []
        for count in range(len(names), -1, -1):
            for chosen in combinations(names, count):
                subset = frozenset(chosen)
                if sum(self.size[name] for name in subset) <= room and not any(subset < other for other in found):
                    found.append(subset)
        yield from found


def least_overhead_of_class(candidates: Candidates, budget_bytes: int) -> float | None:
    """Return the least energy above the computations' of any plan of the scheduler's class, None if none fits.

    The class is what `Certificate.covers` says in words and `Candidates` in full: units that may be recomputed in each
    stage, values that may leave RAM. All its plans are built step by step, and what is in RAM is counted at each step;
    no row or variable of the scheduler's model is looked at.
    """
    search = _ClassSearch(candidates, budget_bytes)
    states: dict[ClassState, float] = {(0, 0, 0, 0): 0.0}
    for stage, slots in enumerate(candidates.slots):
        states = {(ram, stored, 0, 0): joules for (ram, stored, _, _), joules in states.items()}
        for slot in range(len(slots)):
            states = _cheapest([*states.items(), *search.after_unit(states, stage, slot)])
        states = _cheapest(search.after_node(states, stage))
    return min(states.values(), default=None)


ClassState = tuple[int, int, int, int]
"""Bit sets: values in RAM, values in storage, values read or restored in this stage, slots whose results are unread."""


def _cheapest(found: Iterable[tuple[ClassState, float]]) -> dict[ClassState, float]:
    states: dict[ClassState, float] = {}
    for state, joules in found:
        if joules < states.get(state, float("inf")):
            states[state] = joules
    return states


class _ClassSearch:
    def __init__(self, candidates: Candidates, budget_bytes: int) -> None:
        self.candidates, self.budget = candidates, budget_bytes
        self.instance = instance = candidates.instance
        costs = instance.problem.costs
        waits = 0.0 if costs.asynchronous else costs.idle_watts
        self.page_out, self.page_in = (
            {
                value: table[instance.values[value]].joules + waits * table[instance.values[value]].seconds
                for value in candidates.events
                if instance.problem.paging and instance.values[value] in table
            }
            for table in (costs.page_out, costs.page_in)
        )
        self.last_event = {value: events[-1].stage for value, events in candidates.events.items()}
        self.largest_subsets = lru_cache(maxsize=None)(self._largest_subsets)

    def after_unit(self, states: dict[ClassState, float], stage: int, slot: int) -> Iterator[tuple[ClassState, float]]:
        """Yield what comes of running the unit of a slot, what it reads being paged in if need be."""
        candidates = self.candidates
        unit = candidates.units[candidates.slots[stage][slot]]
        reads = _bits(unit.inputs)
        writes = _bits(value for value in unit.outputs if candidates.last_alive.get(value, -1) < stage)
        read_by = [_bits(candidates.units[number].outputs) & reads for number in candidates.slots[stage]]
        unread = 0 if writes & _bits(self.instance.reads[stage]) else 1 << slot
        stays = self._unmanaged(stage, before=True) + unit.extra_bytes
        for (ram, stored, touched, owed), joules in states.items():
            fetched = reads & ~ram
            if touched & (fetched | writes) or not self._stored(fetched, stored):
                continue
            owed_now = sum(1 << other for other in _members(owed) if not read_by[other]) | unread
            cost = joules + unit.joules + sum(self.page_in[value] for value in _members(fetched))
            needed = reads | writes
            for rest in self.largest_subsets(ram & ~needed, self.budget - stays - self._bytes(needed)):
                yield (rest | needed, stored, touched | needed, owed_now), cost

    def after_node(self, states: dict[ClassState, float], stage: int) -> Iterator[tuple[ClassState, float]]:
        """Yield what comes of running a stage's node and writing out any of what it makes."""
        managed = self.candidates.events
        reads = _bits(value for value in self.instance.reads[stage] if value in managed)
        writes = _bits(value for value in self.instance.writes[stage] if value in managed)
        stays = self._unmanaged(stage, before=False) + self.instance.workspace[stage] - self._taken_over(stage)
        alive = _bits(value for value, last in self.last_event.items() if last > stage)
        leavers = [value for value in self.instance.writes[stage] if value in self.page_out]
        ways = list(self._ways_of_giving(stage))
        for (ram, stored, touched, owed), joules in states.items():
            fetched = reads & ~ram
            if owed or touched & fetched or not self._stored(fetched, stored):
                continue
            cost = joules + sum(self.page_in[value] for value in _members(fetched))
            needed = reads | writes
            for given, saved in ways:
                for rest in self.largest_subsets(ram & ~needed, self.budget - stays - self._bytes(needed) + saved):
                    for chosen in _subsets(leavers):
                        paid = cost + sum(self.page_out[value] for value in chosen)
                        yield ((rest | needed) & alive & ~given, (stored | _bits(chosen)) & alive, 0, 0), paid

    def _stored(self, fetched: int, stored: int) -> bool:
        return not fetched & ~stored and all(value in self.page_in for value in _members(fetched))

    def _bytes(self, values: int) -> int:
        return sum(self.instance.sizes[value] for value in _members(values))

    def _unmanaged(self, stage: int, *, before: bool) -> int:
        """Return the bytes of values that stay in RAM all their life, before a stage's node or while it runs."""
        made, last = self.instance.producer, self.candidates.last_alive
        return sum(self.instance.sizes[value] for value in last if made[value] + before <= stage <= last[value])

    def _taken_over(self, stage: int) -> int:
        """Return the bytes that a node's outputs take over from inputs that no later event can need."""
        return self.instance.shared_bytes(stage, self._last_needed())

    def _last_needed(self) -> list[int]:
        last = {**self.candidates.last_alive, **self.last_event}
        return [last[value] for value in range(len(self.instance.values))]

    def _ways_of_giving(self, stage: int) -> Iterator[tuple[int, int]]:
        """Yield sets of inputs that leave RAM although a later event needs them, and the bytes of outputs in them.

        An output takes the first such input for which it is the only output, unless it may take one that dies.
        """
        instance, last = self.instance, self._last_needed()
        pairs = instance.inplace[stage]
        givers: dict[int, int] = {}
        for output in dict.fromkeys(written for _, written in pairs):
            inputs = [read for read, written in pairs if written == output]
            alone = [read for read in inputs if sum(other == read for other, _ in pairs) == 1 and last[read] > stage]
            if alone and all(last[read] > stage for read in inputs):
                givers[alone[0]] = instance.sizes[output]
        for given in _subsets(list(givers)):
            yield _bits(given), sum(givers[read] for read in given)

    def _largest_subsets(self, values: int, room: int) -> tuple[int, ...]:
        """Return the subsets that fit and that no other one contains."""
        if room < 0:
            return ()
        if self._bytes(values) <= room:
            return (values,)
        found = {subset for value in _members(values) for subset in self.largest_subsets(values & ~(1 << value), room)}
        return tuple(one for one in found if not any(one != other and one & other == one for other in found))


def _subsets(values: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(values, count) for count in range(len(values) + 1))


def _bits(values: Iterable[int]) -> int:
    return sum(1 << value for value in values)


def _members(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
