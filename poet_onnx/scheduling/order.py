"""Memory-aware order: the cheapest way to lower the peak, for it costs neither time nor energy.

ONNX Runtime's artifact generator puts every gradient accumulator at the end, so that all weight gradients are alive
together, and hoists nodes that read constants alone to the front. Several orders are made by baseline, the best one is
improved by moving nodes around its peak, and the file's own order is kept when nothing beats it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from poet_onnx.graph import Phase
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.liveness import Integers, Liveness, Order, Profile

MOST_MOVED = 64
"""Nodes that one move may take along."""

MOST_NODE_VISITS = 1_000_000
"""Nodes that the improvement may look at, over all its trials: about a second, and the same on any machine."""

SPREAD_TRIALS = 200
"""Orders tried besides, from other starts and after random moves."""

LEAST_GAIN = 0.001
"""No more orders are tried if the peak can be no lower than by this share."""


class Dependencies:
    """Who must run before whom, by number: producers before readers, and what `Node.after` adds."""

    def __init__(self, liveness: Liveness) -> None:
        self.liveness = liveness
        self.before: list[tuple[int, ...]] = []
        self.behind: list[list[int]] = [[] for _ in liveness.names]
        for number, node in enumerate(liveness.nodes):
            earlier = [int(liveness.maker[value]) for value in liveness.reads[number]]
            earlier += [liveness.number[other] for other in node.after if other in liveness.number]
            self.before.append(tuple(dict.fromkeys(earlier)))
            for other in self.before[-1]:
                self.behind[other].append(number)

    def pull(self, order: Order, position: Integers, starts: Sequence[int], place: int) -> Order | None:
        """Return the order with nodes, and all behind a place that they depend on, moved up to that place.

        Args:
            order: numbers of the nodes.
            position: place of each node in it.
            starts: where the nodes are, all behind the place.
            place: where they shall be; None is returned if nothing would change, or if too much would.
        """
        end = max(starts, default=place) + 1
        moved = self._tied([int(order[start]) for start in starts], self.before, position, range(place, end))
        return None if moved is None else _split(order, place, end, moved, first=True)

    def push(self, order: Order, position: Integers, start: int, place: int) -> Order | None:
        """Return the order with a node, and all before a place that depends on it, moved to just before that place.

        Arguments and result are as for `pull`.
        """
        moved = self._tied([int(order[start])], self.behind, position, range(start + 1, place))
        return None if moved is None else _split(order, start, place, moved, first=False)

    @staticmethod
    def _tied(
        nodes: Sequence[int], ties: Sequence[Sequence[int]], position: Integers, places: range
    ) -> set[int] | None:
        """Return nodes and all that is tied to them in a stretch of the order, None if that is too much."""
        tied = set(nodes)
        stack = list(nodes)
        first, end = places.start, places.stop
        while stack:
            for other in ties[stack.pop()]:
                # A range would be walked through to find a number of numpy's in it.
                if other not in tied and first <= position[other] < end:
                    if len(tied) >= MOST_MOVED:
                        return None
                    tied.add(other)
                    stack.append(other)
        return tied

    def drain_order(self) -> Order:
        """Return the file's order with gradient chains drained at once and constant chains run when first needed.

        A node drains if all that ever depends on it is an update; a node is constant if it depends on residents
        alone. Both rules shorten lives and touch nothing else.
        """
        return self._late(range(len(self.before)), self._drains())

    def late_order(self, order: Order) -> Order:
        """Return an order with the nodes that depend on residents alone moved to right before their first reader."""
        return self._late(order.tolist(), set())

    def _late(self, order: Iterable[int], drains: set[int]) -> Order:
        constant = self._constant()
        done: dict[int, None] = {}
        for node in order:
            if node not in constant or not self.behind[node]:
                self._emit(node, drains, done)
        return np.array(list(done), dtype=np.int64)

    def _emit(self, node: int, drains: set[int], done: dict[int, None]) -> None:
        stack = [node]
        while stack:
            current = stack[-1]
            missing = [other for other in self.before[current] if other not in done]
            if current in done or missing:
                if current in done:
                    stack.pop()
                stack.extend(reversed(missing))
                continue
            stack.pop()
            done[current] = None
            ready = [other for other in self.behind[current] if other in drains and other not in done]
            stack.extend(other for other in reversed(ready) if all(need in done for need in self.before[other]))

    def _drains(self) -> set[int]:
        tensors = self.liveness.problem.graph.tensors
        drains: set[int] = set()
        for number, node in reversed(list(enumerate(self.liveness.nodes))):
            followers = self.behind[number]
            outputs = any(tensors[output].is_output for output in node.outputs if output)
            if node.phase is Phase.UPDATE or (
                followers and not outputs and all(other in drains for other in followers)
            ):
                drains.add(number)
        return drains

    def _constant(self) -> set[int]:
        constant: set[int] = set()
        for number, node in enumerate(self.liveness.nodes):
            if all(other in constant for other in self.before[number]) and not node.updates:
                constant.add(number)
        return constant

    def greedy_order(self) -> Order:
        """Return the order that always runs the ready node which leaves the fewest bytes behind."""
        reads, writes, size = self.liveness.reads, self.liveness.writes, self.liveness.sizes.tolist()
        readers = [set(nodes) for nodes in self.liveness.readers]
        waiting = [len(earlier) for earlier in self.before]

        def growth(node: int) -> tuple[int, int]:
            freed = sum(size[value] for value in reads[node] if len(readers[value]) == 1)
            made = sum(size[value] for value in writes[node] if readers[value])
            return made - freed, node

        # A node's growth only ever falls, when it becomes the last reader of a value; then it is entered once more, and
        # the entry that comes out first is the true one.
        ready = [growth(node) for node, count in enumerate(waiting) if not count]
        heapq.heapify(ready)
        done: dict[int, None] = {}
        while ready:
            node = heapq.heappop(ready)[1]
            if node in done:
                continue
            done[node] = None
            for value in reads[node]:
                readers[value].discard(node)
                last = next(iter(readers[value]), None)
                if last is not None and len(readers[value]) == 1 and not waiting[last]:
                    heapq.heappush(ready, growth(last))
            for other in self.behind[node]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, growth(other))
        return np.array(list(done), dtype=np.int64)


def _split(order: Order, begin: int, end: int, moved: set[int], *, first: bool) -> Order | None:
    """Put some nodes of a stretch of the order before or behind the others; None if that changes nothing."""
    if not moved or len(moved) >= end - begin:
        return None
    stretch = order[begin:end]
    chosen = np.fromiter((node in moved for node in stretch.tolist()), dtype=bool, count=end - begin)
    front = stretch[chosen if first else ~chosen]
    back = stretch[~chosen if first else chosen]
    return np.concatenate((order[:begin], front, back, order[end:]))


def memory_aware_order(problem: ScheduleProblem) -> tuple[str, ...]:
    """Return an order of the graph's nodes whose peak is as low as was found, never above the file's."""
    liveness = Liveness(problem)
    deps = Dependencies(liveness)
    orders = (np.arange(len(liveness.names)), deps.drain_order(), deps.greedy_order())
    starts = sorted(map(liveness.profile, orders), key=_quality)
    search = _PeakSearch(deps)
    best = search.descend(starts[0], MOST_NODE_VISITS // max(1, len(liveness.names)))
    if best.peak_bytes > peak_bound(deps) * (1 + LEAST_GAIN):
        best = search.spread(best, starts[1:])
    return liveness.names_of(best.order)


def _quality(profile: Profile) -> tuple[int, int]:
    """Return the peak, then the bytes above nine tenths of it summed over the steps: less is better."""
    peak = profile.peak_bytes
    return peak, int(np.maximum(profile.levels - peak * 9 // 10, 0).sum())


class _PeakSearch:
    """Moves nodes across the peak while that lowers it."""

    def __init__(self, deps: Dependencies) -> None:
        self.liveness, self.deps = deps.liveness, deps
        self.trials = 0

    def descend(self, profile: Profile, most_trials: int) -> Profile:
        """Take the first improvement found, until there is none."""
        quality = _quality(profile)
        self.trials += most_trials
        better = True
        while better:
            better = False
            for order in _moved(profile, self.deps):
                if not self.trials:
                    return profile
                self.trials -= 1
                if order is None:
                    continue
                candidate = self.liveness.profile(order)
                if _quality(candidate) < quality:
                    profile, quality, better = candidate, _quality(candidate), True
                    break
        return profile

    def spread(self, best: Profile, others: Sequence[Profile]) -> Profile:
        """Set out from other orders too, then from the best one after a few random moves."""
        self.trials = 0
        for other in others:
            best = min(best, self.descend(other, SPREAD_TRIALS // 4), key=_quality)
        bits = random.Random(0)
        self.trials = SPREAD_TRIALS
        count = len(best.order)
        while self.trials and count > 1:
            self.trials -= 1
            kicked = best
            for _ in range(bits.randint(1, 3)):
                first, last = sorted(bits.sample(range(count), 2))
                order, position = kicked.order, kicked.position
                if bits.random() < 0.5:
                    moved = self.deps.pull(order, position, [last], first)
                else:
                    moved = self.deps.push(order, position, first, last + 1)
                kicked = kicked if moved is None else self.liveness.profile(moved)
            if kicked is not best:
                best = min(best, self.descend(kicked, 0), key=_quality)
        return best


def _moved(profile: Profile, deps: Dependencies) -> Iterator[Order | None]:
    """Yield orders in which a life that spans the peak is shorter, the largest value's first; None for no such one."""
    liveness, order, position, intervals = deps.liveness, profile.order, profile.position, profile.intervals
    peak = int(np.argmax(profile.levels)) if len(order) else 0
    across = np.nonzero((intervals.first < peak) & (peak < intervals.last))[0]
    made_at, sizes = position[liveness.maker].tolist(), liveness.sizes.tolist()
    columns = (intervals.value[across].tolist(), intervals.first[across].tolist(), intervals.last[across].tolist())
    spans = sorted(zip(*columns, strict=True), key=lambda span: (-sizes[span[0]], made_at[span[0]], span[0]))
    for value, first, last in spans:
        later = intervals.last[(intervals.value == value) & (intervals.last > peak)]
        yield deps.pull(order, position, later.tolist(), peak)
        if first == made_at[value]:
            yield deps.push(order, position, first, last)
    for value in np.flatnonzero(liveness.kept).tolist():
        if made_at[value] < peak:
            yield deps.push(order, position, made_at[value], len(order))
    for _, first, last in spans:
        yield deps.pull(order, position, [last], first + 1)
        yield deps.push(order, position, first, last)
        yield deps.push(order, position, first, peak + 1)


def peak_bound(deps: Dependencies) -> int:
    """Return bytes that no order can stay below with nothing recomputed or paged: the most that must be alive at once.

    Buffers are shared where they can be. A value must be alive if its maker is the node or must run before it, and it
    is an output of the graph, or the node or one that must run behind it reads it.
    """

    def nodes_of(bits: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return np.unpackbits(bits, count=count).view(np.bool_)

    liveness, count = deps.liveness, len(deps.before)
    earlier = _closure(range(count), deps.before)
    later = _closure(range(count)[::-1], deps.behind)
    readers = [list(nodes) for nodes in liveness.readers]
    levels = np.array(liveness.workspace, dtype=np.int64)
    for value, nodes in enumerate(readers):
        maker = int(liveness.maker[value])
        alive = later[maker]
        if not liveness.kept[value]:
            alive = alive & np.bitwise_or.reduce(earlier[[maker, *nodes]])
        levels[nodes_of(alive)] += liveness.sizes[value]
    most = 0
    for node, level in enumerate(levels.tolist()):
        behind = nodes_of(later[node])
        behind[node] = False
        given = (
            pair for pair in liveness.inplace[node] if not liveness.kept[pair[0]] and not behind[readers[pair[0]]].any()
        )
        most = max(most, level - sum(int(liveness.sizes[heir]) for heir in {heir for _, heir in given}))
    return most


def _closure(order: Sequence[int], ties: Sequence[Sequence[int]]) -> NDArray[np.uint8]:
    """Return, in rows of bits, each node with all it is tied to; ties lead to nodes that come first in the order."""
    closure = np.zeros((len(order), -(-len(order) // 8)), dtype=np.uint8)
    for node in order:
        closure[node, node >> 3] = 0x80 >> (node & 7)
        for other in ties[node]:
            closure[node] |= closure[other]
    return closure
