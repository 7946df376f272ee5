"""Memory-aware order: the cheapest way to lower the peak, for it costs neither time nor energy.

ONNX Runtime's artifact generator puts every gradient accumulator at the end, so that all weight gradients are alive
together, and hoists nodes that read constants alone to the front. Several orders are made by rule, the best one is
improved by moving nodes around its peak, and the file's own order is kept when nothing beats it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial

from poet_onnx.graph import Node, Phase, TrainingGraph
from poet_onnx.problem import ScheduleProblem
from poet_onnx.scheduling.instance import Instance, build_instance, file_order

MOST_NODE_VISITS = 150_000
"""Nodes that the improvement may look at, over all its trials: about two seconds, and the same on any machine."""


def memory_aware_order(problem: ScheduleProblem) -> tuple[str, ...]:
    """Return an order of the graph's nodes whose peak is as low as was found, never above the file's."""
    deps = Dependencies(problem.graph)
    orders = [file_order(problem.graph), deps.drain_order(), deps.greedy_order()]
    best = min((build_instance(problem, order) for order in orders), key=_quality)
    return tuple(node.name for node in _improve(best, deps).nodes)


def _quality(instance: Instance) -> tuple[int, int]:
    """Return the peak, then the bytes above nine tenths of it summed over the steps: less is better."""
    levels = instance.step_bytes()
    peak = max(levels, default=0)
    floor = peak * 9 // 10
    return peak, sum(level - floor for level in levels if level > floor)


class Dependencies:
    """Who must run before whom: producers before readers, and what `Node.after` adds."""

    def __init__(self, graph: TrainingGraph) -> None:
        self.graph = graph
        self.nodes: dict[str, Node] = {node.name: node for node in graph.nodes if not node.view}
        made_by = {value: node.name for node in self.nodes.values() for value in graph.writes(node)}
        self.before: dict[str, tuple[str, ...]] = {
            name: tuple(dict.fromkeys([made_by[value] for value in graph.reads(node)] + list(node.after)))
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


def _improve(instance: Instance, deps: Dependencies) -> Instance:
    """Move nodes across the peak while that lowers it; the first improvement found is taken."""
    quality = _quality(instance)
    trials = MOST_NODE_VISITS // max(1, len(instance.nodes))
    better = True
    while better:
        better = False
        names = [node.name for node in instance.nodes]
        for order in filter(None, (move(names) for move in _moves(instance, deps))):
            if not trials:
                return instance
            trials -= 1
            candidate = build_instance(instance.problem, order)
            if _quality(candidate) < quality:
                instance, quality, better = candidate, _quality(candidate), True
                break
    return instance


def _moves(instance: Instance, deps: Dependencies) -> list[Callable[[list[str]], list[str] | None]]:
    """Return the moves that could shorten a life across the peak."""
    levels = instance.step_bytes()
    peak = max(range(len(levels)), key=levels.__getitem__, default=0)
    moves: list[Callable[[list[str]], list[str] | None]] = []
    across = [
        value
        for value in range(len(instance.values))
        if instance.producer[value] < peak < instance.last_use(value) and peak not in instance.uses[value]
    ]
    for value in sorted(across, key=lambda value: -instance.sizes[value]):
        later = [position for position in instance.uses[value] if position > peak]
        moves.append(partial(_pull_before, deps=deps, positions=later, peak=peak))
        if later and len(later) == len(instance.uses[value]):
            moves.append(partial(_push_behind, deps=deps, made=instance.producer[value], first=later[0]))
    return moves


def _pull_before(order: list[str], *, deps: Dependencies, positions: Sequence[int], peak: int) -> list[str] | None:
    """Move nodes, with all they depend on, to just before the peak; None if the peak itself is among that."""
    pulled: set[str] = set()
    stack = [order[position] for position in positions]
    head = set(order[:peak])
    while stack:
        name = stack.pop()
        if name in head or name in pulled:
            continue
        if name == order[peak] or len(pulled) > 64:
            return None
        pulled.add(name)
        stack.extend(deps.before[name])
    moved = [name for name in order if name in pulled]
    return order[:peak] + moved + [name for name in order[peak:] if name not in pulled]


def _push_behind(order: list[str], *, deps: Dependencies, made: int, first: int) -> list[str] | None:
    """Move a node to just before its first reader; None if something in between depends on it."""
    between = set(order[made + 1 : first])
    if any(other in between for other in deps.behind[order[made]]):
        return None
    return order[:made] + order[made + 1 : first] + [order[made]] + order[first:]
