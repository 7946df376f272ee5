"""The cheapest plan of a small graph by exhaustive search: an oracle that knows nothing of the scheduler's model.

A state is how far the order has come, what is in RAM and what is in storage; a move runs the next node, recomputes one
or moves one value, and values are dropped at will. Dijkstra's search over states gives the least energy of any plan
whose transfers take no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import combinations

from poet_onnx.problem import ScheduleProblem

State = tuple[int, frozenset[str], frozenset[str]]


def least_energy(problem: ScheduleProblem, order: Sequence[str]) -> float | None:
    """Return the least energy of any plan in this order within the budget, or None if there is none."""
    search = _Search(problem, order)
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
    def __init__(self, problem: ScheduleProblem, order: Sequence[str]) -> None:
        self.problem = problem
        graph = problem.graph
        nodes = {node.name: node for node in graph.nodes}
        self.order = [nodes[name] for name in order]
        self.size = {value: graph.tensors[value].size_bytes for node in self.order for value in graph.writes(node)}
        self.kept = {graph.tensors[name].storage for name in graph.outputs} & set(self.size)
        self.budget = problem.budget_bytes if problem.budget_bytes is not None else sum(self.size.values()) * 10

    def moves(self, state: State) -> Iterator[tuple[float, State]]:
        """Yield (joules, state) for everything that can be done next."""
        done, in_ram, stored = state
        graph, costs = self.problem.graph, self.problem.costs
        runnable = [(node, False) for node in self.order[:done] if node.recomputable and self.problem.recompute]
        runnable.append((self.order[done], True))
        for node, first in runnable:
            reads, writes = set(graph.reads(node)), set(graph.writes(node))
            if not reads <= in_ram or (not first and writes <= in_ram):
                continue
            needed = reads | writes | (self.kept & in_ram)
            room = self.budget - sum(self.size[value] for value in needed) - costs.nodes[node.name].workspace_bytes
            for rest in self._subsets(in_ram - needed, room):
                yield costs.nodes[node.name].joules, (done + first, rest | needed, stored)
        if not self.problem.paging:
            return
        for value in in_ram - stored:
            yield costs.page_out[value].joules, (done, in_ram, stored | {value})
        for value in stored - in_ram:
            room = self.budget - self.size[value] - sum(self.size[name] for name in self.kept & in_ram)
            for rest in self._subsets(in_ram - self.kept, room):
                yield costs.page_in[value].joules, (done, rest | {value} | (self.kept & in_ram), stored)

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
