"""The cheapest plan in a given order by exhaustive search: the unrestricted optimum that classes are measured against.

A state is how many nodes have run, which values are in RAM and which in storage, the last two as bit sets. Running the
next node costs nothing, recomputing one and moving a value cost what they cost, so Dijkstra's search looks only at
plans whose overhead is no more than the least. Transfers take no time; buffers are not shared. Three rules leave out
what cannot be better than the rest: a value is written out when it is made or not at all, as many values as fit are
kept, and what nothing can read any more is forgotten.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

from benchmark.prices import Prices, can_page
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.baselines.horizon import find_horizon
from poet_onnx.scheduling.liveness import build_instance

State = tuple[int, int, int]


def least_overhead(
    problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], *, most_states: int = 2_000_000
) -> float | None:
    """Return the least energy above that of the computations alone, infinite if no plan fits, None if it gave up."""
    search = _Search(problem, limits.transient_bytes, order)
    start: State = (0, 0, 0)
    best = {start: 0.0}
    queue: list[tuple[float, int, State]] = [(0.0, 0, start)]
    while queue:
        joules, _, state = heapq.heappop(queue)
        if joules > best[state]:
            continue
        if state[0] == len(order):
            return joules
        for cost, following in search.moves(state):
            total = joules + cost
            if total < best.get(following, float("inf")) - 1e-12:
                best[following] = total
                # Among equals, those that have come further first.
                heapq.heappush(queue, (total, -following[0], following))
        if len(best) > most_states:
            return None
    return float("inf")


class _Search:
    def __init__(self, problem: ScheduleProblem, budget_bytes: int, order: tuple[str, ...]) -> None:
        instance = build_instance(problem, order)
        horizon = find_horizon(instance)
        prices = Prices(problem)
        self.budget = budget_bytes
        self.sizes = instance.sizes
        self.reads = [_bits(values) for values in instance.reads]
        self.writes = [_bits(values) for values in instance.writes]
        self.kept = _bits(instance.kept)
        self.workspace = instance.workspace
        self.last_run = horizon.last_run
        count = len(order)
        self.needed = [
            self.kept | _bits(v for v in range(len(instance.values)) if horizon.last_need[v] >= done)
            for done in range(count + 1)
        ]
        self.joules = [prices.compute(name) for name in order]
        pageable = [value for value, name in enumerate(instance.values) if can_page(problem, name)]
        self.page_out = {value: prices.page_out(instance.values[value]) for value in pageable}
        self.page_in = {value: prices.page_in(instance.values[value]) for value in pageable}
        self.bytes_of = lru_cache(maxsize=None)(self._bytes_of)
        self.largest_subsets = lru_cache(maxsize=None)(self._largest_subsets)

    def moves(self, state: State) -> Iterator[tuple[float, State]]:
        """Yield (joules, state) for everything that can be done next."""
        done, in_ram, stored = state
        yield from self._run(done, in_ram, stored, done)
        for position in range(done):
            made = self.writes[position]
            if self.last_run[position] >= done and made & in_ram != made:
                yield from self._run(position, in_ram, stored, done)
        fixed = self.kept & in_ram
        for value, joules in self.page_in.items():
            bit = 1 << value
            if stored & bit and not in_ram & bit:
                room = self.budget - self.sizes[value] - self.bytes_of(fixed)
                for rest in self.largest_subsets(in_ram & ~fixed, room):
                    yield joules, (done, rest | bit | fixed, stored)

    def _run(self, position: int, in_ram: int, stored: int, done: int) -> Iterator[tuple[float, State]]:
        """Run a node, for the first time if its turn has come, and write out any of what it makes."""
        if self.reads[position] & ~in_ram:
            return
        first = position == done
        needed = self.reads[position] | self.writes[position] | (self.kept & in_ram)
        room = self.budget - self.bytes_of(needed) - self.workspace[position]
        joules = 0.0 if first else self.joules[position]
        alive = self.needed[done + first]
        for rest in self.largest_subsets(in_ram & ~needed, room):
            state = (done + first, (rest | needed) & alive, stored & alive)
            yield joules, state
            leavers = [v for v in _values(self.writes[position] & alive & ~stored & ~self.kept) if v in self.page_out]
            for count in range(1, len(leavers) + 1):
                for chosen in combinations(leavers, count):
                    paid = joules + sum(self.page_out[value] for value in chosen)
                    yield paid, (state[0], state[1], state[2] | _bits(chosen))

    def _bytes_of(self, values: int) -> int:
        return sum(self.sizes[value] for value in _values(values))

    def _largest_subsets(self, values: int, room: int) -> tuple[int, ...]:
        """Return the subsets that fit and that no other one contains."""
        if room < 0:
            return ()
        if self.bytes_of(values) <= room:
            return (values,)
        found: set[int] = set()
        for value in _values(values):
            found.update(self.largest_subsets(values & ~(1 << value), room))
        return tuple(s for s in found if not any(s != other and s & other == s for other in found))


def _bits(values: Iterator[int] | tuple[int, ...] | frozenset[int]) -> int:
    return sum(1 << value for value in values)


def _values(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
