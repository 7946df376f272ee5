"""Placement of transfers: when each page-in starts and each page-out ends, beside the nodes that run meanwhile.

The solver leaves this out, because the energy of a plan hardly depends on it. One channel carries all transfers in the
order of their starts. A transfer that the nodes beside it cannot hide makes the step wait. A page-in holds its buffer
from its start on; a page-out holds its source until its end. Both may do so only while the budget has room.

The search minimizes three things, one after the other:

1. the predicted time;
2. the time if every transfer took `SLOW_TRANSFERS` times as long, so that a late transfer does not stop the step;
3. the bytes that transfers hold, summed over the nodes that run.

A move shifts the start of one page-in, or the end of one page-out, past any number of nodes. The search ends when no
move helps; then no transfer holds memory longer than it must.

Example: k takes 2 s to read, and the two nodes before its reader take 1 s each. Its page-in starts before both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.plan import Action, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate import replay
from poet_onnx.simulate.versions import TOKEN_BYTES
from poet_onnx.transfers.timeline import Timeline, Transfer

MOST_HALF_VISITS = 2_000_000
"""Halves of transfers that one search may look at over all its trials: some seconds, and the same on any machine."""

_TICKS = 1e9
"""Times that differ by less than this part of the computations' time are the same."""

_Cost = tuple[float, float, int]

_WORST: _Cost = (float("inf"), float("inf"), 0)


def overlap(problem: ScheduleProblem, limits: Limits, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with transfers spread over the computations that can hide them, just in time."""
    if not problem.costs.asynchronous or all(step.action is Action.COMPUTE for step in steps):
        return tuple(steps)
    best: tuple[_Cost, tuple[Step, ...]] | None = None
    for spread, outs_first, last_in_first in (
        (True, True, True),
        (False, True, True),
        (False, True, False),
        (False, False, False),
    ):
        placement = _Placement(problem, limits, steps)
        if spread:
            placement.spread()
        cost = placement.improve(outs_first=outs_first, last_in_first=last_in_first)
        if best is None or cost < best[0]:
            best = cost, tuple(placement.steps())
        if placement.is_spent():
            break  # a search that was cut short is not begun again from elsewhere
    return best[1] if best else tuple(steps)


def spread_out(problem: ScheduleProblem, limits: Limits, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with every transfer given all the time that memory allows it, and no wait moved elsewhere."""
    placement = _Placement(problem, limits, steps)
    placement.spread()
    return tuple(placement.steps())


class _Collector:
    """Finds the transfers in a list of steps, with the boundaries that other uses of their values set.

    Each is as short as can be: a page-out ends where it starts, a page-in starts where it ends.
    """

    def __init__(self, problem: ScheduleProblem, computations: int) -> None:
        self._graph = problem.graph
        self._costs = problem.costs
        self._last = computations
        self._boundary = 0
        self._leaving: dict[str, Transfer] = {}  # page-outs whose value has not changed since
        self._stored: dict[str, Transfer] = {}
        self._arriving: dict[str, Transfer] = {}
        self._last_use: dict[str, int] = {}
        self.transfers: list[Transfer] = []

    def add(self, step: Step, node: Node | None) -> None:
        """Take the next step; `node` is what a computation runs."""
        if node is not None:
            self._compute(node)
        elif step.action is Action.PAGE_OUT_START:
            self._page_out(step.subject)
        elif step.action is Action.PAGE_IN_START:
            self._page_in(step.subject)
        elif step.action is Action.PAGE_IN_END:
            arrival = self._arriving[step.subject]
            arrival.start = arrival.end = arrival.highest = self._boundary

    def _compute(self, node: Node) -> None:
        given_on = _given_on(self._graph, node)
        for value in self._graph.transient_reads(node):
            self._last_use[value] = self._boundary
            if value in self._leaving:
                self._leaving[value].free_from = self._boundary + (value not in given_on)
        for value in self._graph.transient_writes(node):
            self._last_use[value] = self._boundary
            if value in self._leaving:
                self._leaving.pop(value).highest = self._boundary
        self._boundary += 1

    def _page_out(self, value: str) -> None:
        here, size = self._boundary, self._graph.tensors[value].size_bytes
        seconds, free_from = self._costs.page_out[value].seconds, self._last_use[value] + 1
        leaver = Transfer(value, True, seconds, size, here, here, here, self._last, free_from)
        self._stored[value] = self._leaving[value] = leaver
        self.transfers.append(leaver)

    def _page_in(self, value: str) -> None:
        here, source = self._boundary, self._stored[value]
        size, seconds = self._graph.tensors[value].size_bytes, self._costs.page_in[value].seconds
        lowest = self._last_use[value] + 1
        arrival = Transfer(value, False, seconds, size, here, here, lowest, self._last, source=source)
        for earlier in source.readers:  # the last of them takes the place of the token, the others have theirs besides
            earlier.held_bytes = size + TOKEN_BYTES
        source.readers += (arrival,)
        self._leaving.pop(value, None)
        self._arriving[value] = arrival
        self.transfers.append(arrival)


def _given_on(graph: TrainingGraph, node: Node) -> set[str]:
    """Return the values whose buffers an output would take over, if they died in this node."""
    sources = (node.inputs[source] for source, _ in node.inplace if source < len(node.inputs))
    return {graph.tensors[name].buffer_owner for name in sources if name}


class _Placement:
    """Transfers among computations, and the bytes that are still free during each of these."""

    def __init__(self, problem: ScheduleProblem, limits: Limits, steps: Sequence[Step]) -> None:
        nodes = {node.name: node for node in problem.graph.nodes}
        self._computations = [step for step in steps if step.action is Action.COMPUTE]
        found = _Collector(problem, len(self._computations))
        for step in steps:
            found.add(step, nodes[step.subject] if step.action is Action.COMPUTE else None)
        self._outs = [transfer for transfer in found.transfers if transfer.leaves]
        self._ins = [transfer for transfer in found.transfers if not transfer.leaves]
        self._clock = [0.0]
        within = []
        for boundary, step in enumerate(self._computations):
            cost = problem.costs.nodes[step.subject]
            self._clock.append(self._clock[-1] + cost.seconds - cost.storage_seconds)
            if cost.storage_seconds:
                places = (boundary,) * 4
                within.append(Transfer(step.subject, False, cost.storage_seconds, 0, *places, is_within_node=True))
        hand_over_seconds, wake_seconds = problem.costs.hand_over_seconds, problem.costs.wake_seconds
        self._timeline = Timeline(
            [*self._outs, *self._ins, *within],
            self._clock,
            hand_over_seconds=hand_over_seconds,
            wake_seconds=wake_seconds,
        )
        self._price_seconds = hand_over_seconds + wake_seconds
        self._tick = self._clock[-1] / _TICKS or 1.0
        self._held = 0  # bytes, summed over computations
        self._room = self._free_bytes(problem, limits)

    def steps(self) -> Iterator[Step]:
        """Yield the computations with the halves of the transfers between them."""
        halves = [half for half in self._timeline.halves() if not half[2].is_within_node]
        halves.reverse()
        for boundary, computation in enumerate((*self._computations, None)):
            while halves and halves[-1][0] == boundary:
                _, starts, transfer = halves.pop()
                if transfer.leaves:
                    action = Action.PAGE_OUT_START if starts else Action.PAGE_OUT_END
                else:
                    action = Action.PAGE_IN_START if starts else Action.PAGE_IN_END
                yield Step(action, transfer.value)
            if computation is not None:
                yield computation

    def spread(self) -> None:
        """Let every transfer take the time that it needs with the channel full, as far as memory lets it.

        Where the channel is never idle, moving one half alone helps nothing; here all are moved together.
        """
        channel = stalled = 0.0
        for out in sorted(self._outs, key=lambda one: one.start):
            channel = max(channel, self._clock[out.start] + stalled) + out.seconds
            self._move_towards(out, "end", bisect_left(self._clock, channel - stalled))
            stalled += max(0.0, channel - self._clock[out.end] - stalled)
        channel = stalled = 0.0  # in seconds before the end
        end = self._clock[-1]
        for arrival in sorted(self._ins, key=lambda one: -one.end):
            channel = max(channel, end - self._clock[arrival.end] + stalled) + arrival.seconds
            self._move_towards(arrival, "start", bisect_right(self._clock, end - channel + stalled) - 1)
            stalled += max(0.0, channel - (end - self._clock[arrival.start]) - stalled)

    def _move_towards(self, transfer: Transfer, half: str, boundary: int) -> None:
        """Put a half as near to a boundary as its neighbours and memory let it."""
        low, high = transfer.limits(half)
        there = self._reach(transfer, half, min(max(boundary, low), high))
        nearer = 1 if there < getattr(transfer, half) else -1
        while there != getattr(transfer, half) and not self._move(transfer, half, there):
            there += nearer

    def _reach(self, transfer: Transfer, half: str, boundary: int) -> int:
        """Return how far towards a boundary a half can go before a computation has no room for what is held."""
        here, size, room = int(getattr(transfer, half)), transfer.held_bytes, self._room
        if boundary > here:
            added = range(max(here, transfer.free_from), boundary)
            return next((index for index in added if room[index] < size), boundary)
        return next((index + 1 for index in range(here - 1, boundary - 1, -1) if room[index] < size), boundary)

    def improve(self, *, outs_first: bool, last_in_first: bool) -> _Cost:
        """Move halves until no move helps, and return what is reached.

        Args:
            outs_first: page-outs are looked at before page-ins, and so get the room that both could use.
            last_in_first: page-ins are looked at from the last to the first.
        """
        outs = [(out, half) for out in self._outs for half in ("end", "start")]
        ins = [(arrival, "start") for arrival in (reversed(self._ins) if last_in_first else self._ins)]
        moves = outs + ins if outs_first else ins + outs
        best, before = self._cost(), None
        self._timeline.keep()
        while best != before and not self.is_spent():
            before = best
            for transfer, half in moves:
                for direction in (1, -1):
                    best = self._move_far(transfer, half, direction, best)
        return best

    def is_spent(self) -> bool:
        """Return whether the search has looked at as many halves as it may."""
        return self._timeline.visited >= MOST_HALF_VISITS

    def _move_far(self, transfer: Transfer, half: str, direction: int, best: _Cost) -> _Cost:
        """Move a half in one direction, by strides that double while they help and halve when they do not."""
        stride = self._first_stride(transfer, half, direction)
        while stride and not self.is_spent():
            here = int(getattr(transfer, half))
            low, high = transfer.limits(half)
            there = min(max(here + direction * stride, low), high)
            if there != here and self._move(transfer, half, there):
                found = self._cost(best[0])
                if found < best:
                    self._timeline.keep()
                    best, stride = found, 2 * stride
                    continue
                self._hold(transfer, half, here)
                self._timeline.take_back(transfer, half, here)
            stride //= 2
        return best

    def _first_stride(self, transfer: Transfer, half: str, direction: int) -> int:
        """Return over how many computations to move a half at first.

        One is enough to gain a little, but for a transfer that is to be handed over at a price: that pays only where
        more of it is hidden, so the first stride is over all that it can be beside.
        """
        if transfer.is_handed_over or not self._price_seconds:
            return 1
        here, seconds = int(getattr(transfer, half)), transfer.seconds + self._price_seconds
        if direction > 0:
            return max(1, bisect_left(self._clock, self._clock[here] + seconds) - here)
        return max(1, here - bisect_right(self._clock, self._clock[here] - seconds) + 1)

    def _move(self, transfer: Transfer, half: str, boundary: int) -> bool:
        """Put a half at a boundary, unless memory forbids it; return whether it is there now."""
        start, end = (boundary, transfer.end) if half == "start" else (transfer.start, boundary)
        # Where a page-out ends there are two tokens of it for a moment, whether or not it holds anything else.
        if transfer.leaves and end > start and self._room[end - 1] < 0:
            return False
        added, _ = _changes(transfer, half, boundary)
        if any(room < transfer.held_bytes for room in self._room[added.start : added.stop]):
            return False
        self._hold(transfer, half, boundary)
        self._timeline.put(transfer, half, boundary)
        return True

    def _hold(self, transfer: Transfer, half: str, boundary: int) -> None:
        """Account for the memory that a transfer holds when one half is at a boundary."""
        added, removed = _changes(transfer, half, boundary)
        for index in added:
            self._room[index] -= transfer.held_bytes
        for index in removed:
            self._room[index] += transfer.held_bytes
        self._held += transfer.held_bytes * (len(added) - len(removed))

    def _cost(self, most_ticks: float = float("inf")) -> _Cost:
        """Return time, time if transfers were slow, and bytes held; larger ones if the first is above a limit."""
        seconds = self._timeline.seconds(most_ticks, self._tick)
        return _WORST if seconds is None else (*seconds, self._held)

    def _free_bytes(self, problem: ScheduleProblem, limits: Limits) -> list[float]:
        """Return the free bytes during each computation, beside a token that may be there twice for a moment."""
        steps = tuple(self.steps())
        levels = replay(problem, steps).step_bytes
        budget = float("inf") if limits.budget_bytes is None else limits.budget_bytes - TOKEN_BYTES
        return [budget - level for level, step in zip(levels, steps, strict=True) if step.action is Action.COMPUTE]


def _changes(transfer: Transfer, half: str, boundary: int) -> tuple[range, range]:
    """Return the computations during which a transfer holds memory, or no longer does, with a half at a boundary."""
    if transfer.leaves:
        here = max(transfer.free_from, transfer.end)
        there = here if half == "start" else max(transfer.free_from, boundary)
        return range(here, there), range(there, here)
    there = boundary if half == "start" else transfer.start
    return range(there, transfer.start), range(transfer.start, there)
