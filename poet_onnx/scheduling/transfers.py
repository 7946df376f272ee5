"""Transfers beside compute: where in the order each page-out ends and each page-in starts.

The energy does not depend on it, so the solver leaves it out. One channel carries all transfers in the order of their
starts; what it cannot hide is added to the step's time. A page-in that starts early holds its buffer from then on, a
page-out that ends late holds its source until then, both only while the budget has room.

Wanted, in this order: the least predicted time; the least time if every transfer took `SLOW_TRANSFERS` times as long,
so that one which is a little late does not stop the step; the fewest bytes held, summed over the computations. The
halves of transfers are moved, one at a time and over as many computations as it takes, until no move helps: what is
left is just in time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.plan import Action, Step
from poet_onnx.problem import ScheduleProblem
from poet_onnx.simulate import TOKEN_BYTES, replay

SLOW_TRANSFERS = 1.25
"""Transfers are placed so that they would be in time, where memory allows it, even if they took so much longer."""

MOST_HALF_VISITS = 4_000_000
"""Halves of transfers that one search may look at over all its trials: about a second, the same on any machine."""

_TICKS = 1e9
"""Times that differ by less than this part of the computations' time are the same."""

_Cost = tuple[int, int, int]


@dataclass(eq=False)
class _Transfer:
    """A transfer between two boundaries; boundary b lies before the b-th computation.

    Attributes:
        value: name of what moves.
        leaves: it is a page-out.
        seconds: how long the channel is busy with it.
        held_bytes: what it holds while it takes longer than it must.
        start, end: boundaries of its halves.
        lowest, highest: boundaries between which both must stay.
        free_from: of a page-out, the first computation during which nothing but the transfer needs the value's buffer.
        source: of a page-in, the page-out that must have ended.
        readers: of a page-out, the page-ins that must follow it.
    """

    value: str
    leaves: bool
    seconds: float
    held_bytes: int
    start: int
    end: int
    lowest: int
    highest: int
    free_from: int = 0
    source: _Transfer | None = None
    readers: tuple[_Transfer, ...] = ()

    def holds(self) -> range:
        """Return the computations during which memory is held for the transfer alone."""
        return range(self.free_from if self.leaves else self.start, self.end)

    @property
    def is_handed_over(self) -> bool:
        """Return whether computations lie between its halves, so that it is not the computing thread that makes it."""
        return self.start < self.end

    def limits(self, half: str) -> tuple[int, int]:
        """Return the boundaries between which a half may stand while everything else stays where it is."""
        if half == "start":
            return max(self.lowest, self.source.end if self.source else 0), self.end
        return self.start, min([self.highest, *(reader.start for reader in self.readers)])


def overlap(problem: ScheduleProblem, steps: Sequence[Step]) -> tuple[Step, ...]:
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
        placement = _Placement(problem, steps)
        if spread:
            placement.spread()
        cost = placement.improve(outs_first=outs_first, last_in_first=last_in_first)
        if best is None or cost < best[0]:
            best = cost, tuple(placement.steps())
    return best[1] if best else tuple(steps)


def spread_out(problem: ScheduleProblem, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with every transfer given all the time that memory allows it, and no wait moved elsewhere."""
    placement = _Placement(problem, steps)
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
        self._leaving: dict[str, _Transfer] = {}  # page-outs whose value has not changed since
        self._stored: dict[str, _Transfer] = {}
        self._arriving: dict[str, _Transfer] = {}
        self._last_use: dict[str, int] = {}
        self.transfers: list[_Transfer] = []

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
        for value in self._graph.reads(node):
            self._last_use[value] = self._boundary
            if value in self._leaving:
                self._leaving[value].free_from = self._boundary + (value not in given_on)
        for value in self._graph.writes(node):
            self._last_use[value] = self._boundary
            if value in self._leaving:
                self._leaving.pop(value).highest = self._boundary
        self._boundary += 1

    def _page_out(self, value: str) -> None:
        here, size = self._boundary, self._graph.tensors[value].size_bytes
        seconds, free_from = self._costs.page_out[value].seconds, self._last_use[value] + 1
        leaver = _Transfer(value, True, seconds, size, here, here, here, self._last, free_from)
        self._stored[value] = self._leaving[value] = leaver
        self.transfers.append(leaver)

    def _page_in(self, value: str) -> None:
        here, source = self._boundary, self._stored[value]
        size, seconds = self._graph.tensors[value].size_bytes, self._costs.page_in[value].seconds
        lowest = self._last_use[value] + 1
        arrival = _Transfer(value, False, seconds, size, here, here, lowest, self._last, source=source)
        for earlier in source.readers:  # the last of them takes the place of the token, the others have theirs besides
            earlier.held_bytes = size + TOKEN_BYTES
        source.readers += (arrival,)
        self._leaving.pop(value, None)
        self._arriving[value] = arrival
        self.transfers.append(arrival)


def _given_on(graph: TrainingGraph, node: Node) -> set[str]:
    """Return the values whose buffers an output would take over, if they died in this node."""
    sources = (node.inputs[source] for source, _ in node.inplace if source < len(node.inputs))
    return {graph.tensors[name].storage for name in sources if name}


class _Placement:
    """Transfers among computations, and the bytes that are still free during each of these."""

    def __init__(self, problem: ScheduleProblem, steps: Sequence[Step]) -> None:
        nodes = {node.name: node for node in problem.graph.nodes}
        self._computations = [step for step in steps if step.action is Action.COMPUTE]
        found = _Collector(problem, len(self._computations))
        for step in steps:
            found.add(step, nodes[step.subject] if step.action is Action.COMPUTE else None)
        self._outs = [transfer for transfer in found.transfers if transfer.leaves]
        self._ins = [transfer for transfer in found.transfers if not transfer.leaves]
        self._clock = [0.0]
        for step in self._computations:
            self._clock.append(self._clock[-1] + problem.costs.nodes[step.subject].seconds)
        self._wake_seconds = problem.costs.wake_seconds
        self._hand_over_seconds = problem.costs.hand_over_seconds
        self._tick = self._clock[-1] / _TICKS or 1.0
        self._visits = MOST_HALF_VISITS
        self._held = 0  # bytes, summed over computations
        self._room = self._free_bytes(problem)

    def steps(self) -> Iterator[Step]:
        """Yield the computations with the halves of the transfers between them."""
        halves = self._halves()
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

    def _move_towards(self, transfer: _Transfer, half: str, boundary: int) -> None:
        """Put a half as near to a boundary as its neighbours and memory let it."""
        low, high = transfer.limits(half)
        there = self._reach(transfer, half, min(max(boundary, low), high))
        nearer = 1 if there < getattr(transfer, half) else -1
        while there != getattr(transfer, half) and not self._move(transfer, half, there):
            there += nearer

    def _reach(self, transfer: _Transfer, half: str, boundary: int) -> int:
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
        while best != before and self._visits > 0:
            before = best
            for transfer, half in moves:
                for direction in (1, -1):
                    best = self._move_far(transfer, half, direction, best)
        return best

    def _move_far(self, transfer: _Transfer, half: str, direction: int, best: _Cost) -> _Cost:
        """Move a half in one direction, by strides that double while they help and halve when they do not."""
        stride = self._first_stride(transfer, half, direction)
        while stride and self._visits > 0:
            here = int(getattr(transfer, half))
            low, high = transfer.limits(half)
            there = min(max(here + direction * stride, low), high)
            found = self._cost(best) if there != here and self._move(transfer, half, there) else None
            if found is not None and found < best:
                best, stride = found, 2 * stride
                continue
            if found is not None:
                self._move(transfer, half, here)
            stride //= 2
        return best

    def _first_stride(self, transfer: _Transfer, half: str, direction: int) -> int:
        """Return over how many computations to move a half at first.

        One is enough to gain a little, but for a transfer that is to be handed over at a price: that pays only where
        more of it is hidden, so the first stride is over all that it can be beside.
        """
        price = self._wake_seconds + self._hand_over_seconds
        if transfer.is_handed_over or not price:
            return 1
        here, seconds = int(getattr(transfer, half)), transfer.seconds + price
        if direction > 0:
            return max(1, bisect_left(self._clock, self._clock[here] + seconds) - here)
        return max(1, here - bisect_right(self._clock, self._clock[here] - seconds) + 1)

    def _move(self, transfer: _Transfer, half: str, boundary: int) -> bool:
        """Put a half at a boundary, unless memory forbids it; return whether it is there now."""
        here, held, size = getattr(transfer, half), transfer.holds(), transfer.held_bytes
        setattr(transfer, half, boundary)
        wanted = transfer.holds()
        # Where a page-out ends there are two tokens of it for a moment, whether or not it holds anything else.
        full = transfer.leaves and transfer.end > transfer.start and self._room[transfer.end - 1] < 0
        if full or any(self._room[index] < size for index in wanted if index not in held):
            setattr(transfer, half, here)
            return False
        for index in held:
            self._room[index] += size
        for index in wanted:
            self._room[index] -= size
        self._held += size * (len(wanted) - len(held))
        return True

    def _cost(self, best: _Cost | None = None) -> _Cost:
        """Return time, time if transfers were slow, and bytes held; the best so far may be given to save work."""
        halves = self._halves()
        self._visits -= len(halves)
        seconds = round(self._seconds(halves, 1.0) / self._tick)
        if best is not None and seconds > best[0]:
            return seconds, 0, 0
        return seconds, round(self._seconds(halves, SLOW_TRANSFERS) / self._tick), self._held

    def _seconds(self, halves: Sequence[tuple[int, bool, _Transfer]], slowness: float) -> float:
        channel = stalled = 0.0
        done: dict[_Transfer, float] = {}
        for boundary, starts, transfer in halves:
            now = self._clock[boundary] + stalled
            if starts and transfer.is_handed_over:
                stalled += self._hand_over_seconds
                now += self._hand_over_seconds
                channel = channel if channel > now else now + self._wake_seconds
                done[transfer] = channel = channel + slowness * transfer.seconds
            elif starts:
                done[transfer] = channel = max(now, channel) + slowness * transfer.seconds
            elif done[transfer] > now:
                stalled += done[transfer] - now
        return self._clock[-1] + stalled

    def _halves(self) -> list[tuple[int, bool, _Transfer]]:
        """Return (boundary, whether it is a start, transfer) in the order in which the halves stand.

        At one boundary page-outs come before page-ins and ends before starts, which frees memory and tokens and loses
        no time, for the channel is busy while an end waits. Page-ins start in the order in which they are needed; both
        halves of a transfer that starts and ends there stay side by side.
        """
        found = []
        for rank, transfers in ((1, self._outs), (3, self._ins)):
            for transfer in sorted(transfers, key=lambda one: (one.start, one.end)):
                found.append((transfer.start, rank, True, transfer))
                found.append((transfer.end, rank - transfer.is_handed_over, False, transfer))
        found.sort(key=lambda half: half[:2])
        return [(boundary, starts, transfer) for boundary, _, starts, transfer in found]

    def _free_bytes(self, problem: ScheduleProblem) -> list[float]:
        """Return the free bytes during each computation, beside a token that may be there twice for a moment."""
        unlimited = replace(problem, budget_bytes=None, deadline_seconds=None)
        steps = tuple(self.steps())
        levels = replay(unlimited, steps).step_bytes
        budget = float("inf") if problem.budget_bytes is None else problem.budget_bytes - TOKEN_BYTES
        return [budget - level for level, step in zip(levels, steps, strict=True) if step.action is Action.COMPUTE]
