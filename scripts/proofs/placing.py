"""The least time that a plan's recomputes and transfers take within a budget, all places of the transfers tried.

Computations stay in their order. A label is a partial plan: how many of them have run, which transfers have begun and
ended, the time, and when those under way will end. Nothing of the scheduler or the simulator is used.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem

TICK = 1e-9


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A transfer; boundary b lies before the b-th computation.

    Attributes:
        earliest: the first boundary at which it may begin.
        latest: the boundary by which it must have ended.
        source: of a page-in, the number of the page-out.
        last_read: of a page-out, the last computation that reads the value meanwhile.
    """

    value: str
    leaves: bool
    seconds: float
    size_bytes: int
    earliest: int
    latest: int
    source: int = -1
    last_read: int = -1


@dataclass(frozen=True, slots=True)
class _Label:
    """A partial plan.

    Attributes:
        done: computations that have run.
        begun, ended: numbers of transfers.
        moving: transfers under way, first to last, with when they end.
    """

    clock: float = 0.0
    done: int = 0
    begun: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    moving: tuple[tuple[int, float], ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def state(self) -> tuple[object, ...]:
        return self.done, self.ended, tuple(number for number, _ in self.moving)

    @property
    def figures(self) -> tuple[float, ...]:
        return self.clock, *(end for _, end in self.moving)


class Placing:
    """A plan whose transfers are to be placed; it must have each transfer's halves side by side.

    Attributes:
        least_bytes: the peak with every transfer as short as can be.
        seconds: what its computations take.
    """

    def __init__(self, problem: ScheduleProblem, steps: Sequence[Step]) -> None:
        graph, nodes = problem.graph, {node.name: node for node in problem.graph.nodes}
        self._computations = [step for step in steps if step.action is Action.COMPUTE]
        runs = [nodes[step.subject] for step in self._computations]
        self._seconds = [problem.costs.nodes[node.name].seconds for node in runs]
        self._reads = [set(graph.reads(node)) for node in runs]
        self._writes = [set(graph.writes(node)) for node in runs]
        self._sizes = {value: graph.tensors[value].size_bytes for writes in self._writes for value in writes}
        self._kept = {graph.tensors[name].storage for name in graph.outputs}
        self._transfers = self._found(problem, steps)
        arrivals: dict[str, list[int]] = {}
        for transfer in self._transfers:
            if not transfer.leaves:
                arrivals.setdefault(transfer.value, []).append(transfer.latest)
        self._lives = {value: list(self._lives_of(value, arrivals.get(value, ()))) for value in self._sizes}
        self._levels = [self._alive_bytes(index, index) for index in range(len(runs))]
        self._levels = [
            level + problem.costs.nodes[node.name].workspace_bytes + (graph.scratch_bytes(node) if step.copy else 0)
            for level, node, step in zip(self._levels, runs, self._computations, strict=True)
        ]
        self._crossing = [self._alive_bytes(index - 1, index) for index in range(len(runs) + 1)]
        self.least_bytes = max(self._levels)
        self.seconds = sum(self._seconds)

    def least_seconds(self, budget_bytes: int) -> tuple[float, tuple[Step, ...]] | None:
        """Return the least time within a budget and the steps that take it, None if no places keep the budget."""
        queue = [(self.seconds, 0, _Label())]
        known: dict[tuple[object, ...], list[tuple[float, ...]]] = {}
        count = 0
        while queue:
            _, _, label = heapq.heappop(queue)
            if label.done == len(self._computations) and not label.moving:
                return label.clock, label.steps
            for following in self._moves(label, budget_bytes):
                figures, seen = following.figures, known.setdefault(following.state, [])
                if any(all(a <= b + TICK for a, b in zip(other, figures, strict=True)) for other in seen):
                    continue
                seen.append(figures)
                count += 1
                rest = sum(self._seconds[following.done :])
                heapq.heappush(queue, (following.clock + rest, count, following))
        return None

    def _found(self, problem: ScheduleProblem, steps: Sequence[Step]) -> list[_Transfer]:
        found: list[_Transfer] = []
        source: dict[str, int] = {}
        boundary = 0
        for step in steps:
            value = step.subject
            if step.action is Action.COMPUTE:
                boundary += 1
            elif step.action is Action.PAGE_OUT_START:
                source[value] = len(found)
                changes = [index for index, made in enumerate(self._writes) if value in made and index >= boundary]
                latest = min(changes, default=len(self._computations))
                seconds, size = problem.costs.page_out[value].seconds, self._sizes[value]
                found.append(_Transfer(value, True, seconds, size, boundary, latest))
            elif step.action is Action.PAGE_IN_START:
                touched = [i for i in range(boundary) if value in self._reads[i] | self._writes[i]]
                seconds, size = problem.costs.page_in[value].seconds, self._sizes[value]
                found.append(_Transfer(value, False, seconds, size, max(touched) + 1, boundary, source[value]))
        for number, transfer in enumerate(found):
            if transfer.leaves:
                ends = [other.latest for other in found if other.source == number]
                reads = [i for i in range(min([transfer.latest, *ends])) if transfer.value in self._reads[i]]
                found[number] = replace(transfer, last_read=max(reads, default=transfer.earliest - 1))
        return found

    def _lives_of(self, value: str, arrivals: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield (first, last computation) of each life of a value, transfers being as short as can be."""
        end = len(self._computations)
        begins = sorted({*(index for index, made in enumerate(self._writes) if value in made), *arrivals})
        for begin, following in zip(begins, [*begins[1:], end], strict=True):
            # What is made anew where it is read dies with that reader, not before it.
            reads = [index for index in range(begin, following) if value in self._reads[index]]
            last = max(reads, default=begin)
            yield begin, end if value in self._kept and begin == begins[0] else last

    def _alive_bytes(self, first: int, last: int) -> int:
        """Return the bytes of what is alive through both of two computations, transfers being as short as can be."""
        return sum(
            self._sizes[value]
            for value, lives in self._lives.items()
            for begin, end in lives
            if begin <= first and last <= end
        )

    def _moves(self, label: _Label, budget_bytes: int) -> Iterator[_Label]:
        if label.moving:
            yield self._at(label, max(label.clock, label.moving[0][1]))
        for number, transfer in enumerate(self._transfers):
            possible = number not in label.begun and transfer.earliest <= label.done <= transfer.latest
            if possible and (transfer.leaves or transfer.source in label.ended):
                yield from self._begin(label, number, budget_bytes)
        if label.done < len(self._computations):
            yield from self._run(label, budget_bytes)

    def _begin(self, label: _Label, number: int, budget_bytes: int) -> Iterator[_Label]:
        transfer = self._transfers[number]
        free_at = max([label.clock, *(end for _, end in label.moving)])
        action = Action.PAGE_OUT_START if transfer.leaves else Action.PAGE_IN_START
        begun = replace(
            label,
            begun=label.begun | {number},
            moving=(*label.moving, (number, free_at + transfer.seconds)),
            steps=(*label.steps, Step(action, transfer.value)),
        )
        if self._crossing[label.done] + self._held_bytes(begun, label.done - 1, label.done) <= budget_bytes:
            yield self._at(begun, label.clock)

    def _run(self, label: _Label, budget_bytes: int) -> Iterator[_Label]:
        here = label.done
        waits = any(
            transfer.latest == here and number not in label.ended for number, transfer in enumerate(self._transfers)
        )
        if waits or self._levels[here] + self._held_bytes(label, here, here) > budget_bytes:
            return
        ran = replace(label, done=here + 1, steps=(*label.steps, self._computations[here]))
        yield self._at(ran, label.clock + self._seconds[here])

    def _held_bytes(self, label: _Label, first: int, last: int) -> int:
        """Return the bytes that transfers alone keep in RAM from one computation to the other."""
        held = 0
        for number, transfer in enumerate(self._transfers):
            if transfer.leaves:
                holds = transfer.earliest <= last and number not in label.ended and transfer.last_read < last
            else:
                holds = number in label.begun and first < transfer.latest and last <= transfer.latest
            held += transfer.size_bytes * holds
        return held

    def _at(self, label: _Label, clock: float) -> _Label:
        """Return a label at a time, the transfers that have ended by then being ended."""
        ended = [number for number, end in label.moving if end <= clock + TICK]
        found = [self._transfers[number] for number in ended]
        ends = (Step(Action.PAGE_OUT_END if one.leaves else Action.PAGE_IN_END, one.value) for one in found)
        return replace(
            label,
            clock=clock,
            ended=label.ended.union(ended),
            moving=label.moving[len(ended) :],
            steps=(*label.steps, *ends),
        )
