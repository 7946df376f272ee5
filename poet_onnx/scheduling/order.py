"""Memory-aware order: the cheapest way to lower the peak, for it costs neither time nor energy.

ONNX Runtime's artifact generator puts every gradient accumulator at the end, so that all weight gradients are alive
together, and hoists nodes that read constants alone to the front. Several orders are made by baseline, the best one is
improved by moving nodes around its peak, and the file's own order is kept when nothing beats it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from poet_onnx.graph import Node, Phase, TrainingGraph
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.liveness import Integers, Liveness, Order, Profile, file_order

MOST_MOVED = 64
"""Nodes that one move may take along."""

MOST_NODE_VISITS = 1_000_000
"""Nodes that the improvement may look at, over all its trials: about a second, and the same on any machine."""

SPREAD_TRIALS = 200
"""Orders tried besides, from other starts and after random moves."""

LEAST_GAIN = 0.001
"""No more orders are tried if the peak can be no lower than by this share."""


class Mover:
    """Who must run before whom, by number."""

    def __init__(self, liveness: Liveness, before: Mapping[str, Sequence[str]]) -> None:
        self.before = [[liveness.number[other] for other in before[name]] for name in liveness.names]
        self.behind: list[list[int]] = [[] for _ in liveness.names]
        for node, earlier in enumerate(self.before):
            for other in earlier:
                self.behind[other].append(node)

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
    deps = Dependencies(problem.graph)
    liveness = Liveness(problem)
    orders = [file_order(problem.graph), deps.drain_order(), deps.greedy_order()]
    starts = sorted((liveness.profile(liveness.order_of(order)) for order in orders), key=_quality)
    mover = Mover(liveness, deps.before)
    search = _PeakSearch(liveness, mover)
    best = search.descend(starts[0], MOST_NODE_VISITS // max(1, len(liveness.names)))
    if best.peak_bytes > _bound(liveness, mover) * (1 + LEAST_GAIN):
        best = search.spread(best, starts[1:])
    return liveness.names_of(best.order)


def _quality(profile: Profile) -> tuple[int, int]:
    """Return the peak, then the bytes above nine tenths of it summed over the steps: less is better."""
    peak = profile.peak_bytes
    return peak, int(np.maximum(profile.levels - peak * 9 // 10, 0).sum())


class Dependencies:
    """Who must run before whom: producers before readers, and what `Node.after` adds."""

    def __init__(self, graph: TrainingGraph) -> None:
        self.graph = graph
        self.nodes: dict[str, Node] = {node.name: node for node in graph.nodes if not node.view}
        made_by = {value: node.name for node in self.nodes.values() for value in graph.writes(node)}
        self.before: dict[str, tuple[str, ...]] = {
            name: tuple(
                dict.fromkeys(
                    [made_by[value] for value in graph.reads(node)]
                    + [other for other in node.after if other in self.nodes]
                )
            )
            for name, node in self.nodes.items()
        }
        self.behind: dict[str, list[str]] = {name: [] for name in self.nodes}
        for name, earlier in self.before.items():
            for other in earlier:
                self.behind[other].append(name)

    def drain_order(self) -> tuple[str, ...]:
        """Return the file's order with gradient chains drained at once and constant chains run when first needed.

        A node drains if all that ever depends on it is an update; a node is constant if it depends on residents
        alone. Both rules shorten lives and touch nothing else.
        """
        drains = self._drains()
        constant = self._constant()
        done: dict[str, None] = {}
        for name in self.nodes:
            if name in constant and self.behind[name]:
                continue
            self._emit(name, drains, done)
        return tuple(done)

    def _emit(self, name: str, drains: set[str], done: dict[str, None]) -> None:
        stack = [name]
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

    def _drains(self) -> set[str]:
        drains: set[str] = set()
        for name in reversed(self.nodes):
            followers = self.behind[name]
            outputs = any(self.graph.tensors[output].is_output for output in self.nodes[name].outputs if output)
            if self.nodes[name].phase is Phase.UPDATE or (
                followers and not outputs and all(other in drains for other in followers)
            ):
                drains.add(name)
        return drains

    def _constant(self) -> set[str]:
        constant: set[str] = set()
        for name, node in self.nodes.items():
            if all(other in constant for other in self.before[name]) and not node.updates:
                constant.add(name)
        return constant

    def late_order(self, order: tuple[str, ...]) -> tuple[str, ...]:
        """Return an order with the nodes that depend on residents alone moved to right before their first reader."""
        constant = self._constant()
        done: dict[str, None] = {}
        for name in order:
            if name not in constant or not self.behind[name]:
                self._emit(name, set(), done)
        return tuple(done)

    def greedy_order(self) -> tuple[str, ...]:
        """Return the order that always runs the ready node which leaves the fewest bytes behind."""
        graph = self.graph
        size = {name: tensor.size_bytes for name, tensor in graph.tensors.items()}
        readers: dict[str, set[str]] = {value: set() for node in self.nodes.values() for value in graph.writes(node)}
        for name, node in self.nodes.items():
            for value in graph.reads(node):
                readers[value].add(name)
        place = {name: index for index, name in enumerate(self.nodes)}
        waiting = {name: len(earlier) for name, earlier in self.before.items()}

        def growth(name: str) -> tuple[int, int, str]:
            node = self.nodes[name]
            freed = sum(size[value] for value in graph.reads(node) if len(readers[value]) == 1)
            made = sum(size[value] for value in graph.writes(node) if readers[value])
            return made - freed, place[name], name

        # A node's growth only ever falls, when it becomes the last reader of a value; then it is entered once more, and
        # the entry that comes out first is the true one.
        ready = [growth(name) for name, count in waiting.items() if not count]
        heapq.heapify(ready)
        done: dict[str, None] = {}
        while ready:
            name = heapq.heappop(ready)[2]
            if name in done:
                continue
            done[name] = None
            for value in graph.reads(self.nodes[name]):
                readers[value].discard(name)
                last = next(iter(readers[value]), None)
                if last is not None and len(readers[value]) == 1 and not waiting[last]:
                    heapq.heappush(ready, growth(last))
            for other in self.behind[name]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, growth(other))
        return tuple(done)


class _PeakSearch:
    """Moves nodes across the peak while that lowers it."""

    def __init__(self, liveness: Liveness, mover: Mover) -> None:
        self.liveness, self.mover = liveness, mover
        self.trials = 0

    def descend(self, profile: Profile, most_trials: int) -> Profile:
        """Take the first improvement found, until there is none."""
        quality = _quality(profile)
        self.trials += most_trials
        better = True
        while better:
            better = False
            for order in _moved(profile, self.liveness, self.mover):
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
                    moved = self.mover.pull(order, position, [last], first)
                else:
                    moved = self.mover.push(order, position, first, last + 1)
                kicked = kicked if moved is None else self.liveness.profile(moved)
            if kicked is not best:
                best = min(best, self.descend(kicked, 0), key=_quality)
        return best


def _moved(profile: Profile, liveness: Liveness, mover: Mover) -> Iterator[Order | None]:
    """Yield orders in which a life that spans the peak is shorter, the largest value's first; None for no such one."""
    order, position, intervals = profile.order, profile.position, profile.intervals
    peak = int(np.argmax(profile.levels)) if len(order) else 0
    across = np.nonzero((intervals.first < peak) & (peak < intervals.last))[0]
    made_at = position[liveness.maker]

    def rank(interval: int) -> tuple[int, int, int]:
        value = int(intervals.value[interval])
        return -int(liveness.sizes[value]), int(made_at[value]), value

    spans = sorted(across.tolist(), key=rank)
    for interval in spans:
        value, first, last = (
            int(intervals.value[interval]),
            int(intervals.first[interval]),
            int(intervals.last[interval]),
        )
        later = intervals.last[(intervals.value == value) & (intervals.last > peak)]
        yield mover.pull(order, position, later.tolist(), peak)
        if first == made_at[value]:
            yield mover.push(order, position, first, last)
    for value in np.nonzero(liveness.kept & (made_at < peak))[0].tolist():
        yield mover.push(order, position, int(made_at[value]), len(order))
    for interval in spans:
        first, last = int(intervals.first[interval]), int(intervals.last[interval])
        yield mover.pull(order, position, [last], first + 1)
        yield mover.push(order, position, first, last)
        yield mover.push(order, position, first, peak + 1)


def peak_bound(problem: ScheduleProblem) -> int:
    """Return bytes that no order can stay below with nothing recomputed or paged.

    While a node runs, every value is alive that must be made before it and read behind it.
    """
    liveness = Liveness(problem)
    return _bound(liveness, Mover(liveness, Dependencies(problem.graph).before))


def _bound(liveness: Liveness, mover: Mover) -> int:
    """Return the most bytes that must be alive while a node runs, in any order; buffers are shared where they can be.

    A value must be alive if its maker is the node or must run before it, and it is an output of the graph, or the node
    or one that must run behind it reads it.
    """

    def nodes_of(bits: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return np.unpackbits(bits, count=count).view(np.bool_)

    count = len(liveness.names)
    earlier = _closure(range(count), mover.before)
    later = _closure(range(count)[::-1], mover.behind)
    readers: list[list[int]] = [[] for _ in liveness.values]
    for node, reads in enumerate(liveness.reads):
        for value in reads:
            readers[value].append(node)
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
            pair for pair in liveness.shares(node) if not liveness.kept[pair[0]] and not behind[readers[pair[0]]].any()
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
