"""The halves of transfers in the order in which they stand, and the time of the step that follows from it.

A half that moves changes the time of those beside it, and of no others once the channel is as busy and the step as late
as before: only that much is looked at again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

SLOW_TRANSFERS = 1.25
"""Transfers are placed so that they would be in time, where memory allows it, even if they took so much longer."""

_Key = tuple[int, int, int, int, int, bool]
"""Boundary and rank there; start, end and number of the transfer; whether it is the half that ends it."""


@dataclass(eq=False)
class Transfer:
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
        is_within_node: the computation behind it makes it, and so it never moves.
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
    source: Transfer | None = None
    readers: tuple[Transfer, ...] = ()
    is_within_node: bool = False

    @property
    def is_handed_over(self) -> bool:
        """Return whether computations lie between its halves, so that it is not the computing thread that makes it."""
        return self.start < self.end

    def limits(self, half: str) -> tuple[int, int]:
        """Return the boundaries between which a half may stand while everything else stays where it is."""
        if half == "start":
            return max(self.lowest, self.source.end if self.source else 0), self.end
        return self.start, min([self.highest, *(reader.start for reader in self.readers)])


@dataclass
class _Pace:
    """The channel and the step along the halves, at one slowness of the transfers.

    Attributes:
        slowness: times that transfers take as long as they should.
        busy: for each half, until when the channel is busy before it; the last is for the end of the step.
        stalled: for each half, how late the step is before it; the last is for the end of the step.
        done: by number, when each transfer is done.
    """

    slowness: float
    busy: list[float]
    stalled: list[float]
    done: list[float]


@dataclass(frozen=True)
class _Stretch:
    """What a pace becomes from one half up to another."""

    first: int
    busy: list[float]
    stalled: list[float]
    done: dict[int, float]


class Timeline:
    """Transfers among computations, by the boundaries of their halves.

    At one boundary page-outs come before page-ins and ends before starts, which frees memory and tokens and loses no
    time, for the channel is busy while an end waits. Page-ins start in the order in which they are needed; both halves
    of a transfer that starts and ends there stay side by side.
    """

    def __init__(
        self, transfers: Sequence[Transfer], clock: Sequence[float], *, hand_over_seconds: float, wake_seconds: float
    ) -> None:
        """Put the transfers where they say.

        Args:
            transfers: page-outs and page-ins, and those that nodes make.
            clock: seconds of the computations before each boundary.
            hand_over_seconds: of the computing thread, for a transfer that is made beside it.
            wake_seconds: until the channel begins with such a transfer, if it was idle.
        """
        self.transfers = transfers
        self.visited = 0
        self._clock = clock
        self._hand_over_seconds, self._wake_seconds = hand_over_seconds, wake_seconds
        self._number = {transfer: number for number, transfer in enumerate(transfers)}
        self._keys = sorted(key for transfer in transfers for key in self._keys_of(transfer))
        count = len(self._keys)
        self._paces = [
            _Pace(slowness, [0.0] * (count + 1), [0.0] * (count + 1), [0.0] * len(transfers))
            for slowness in (1.0, SLOW_TRANSFERS)
        ]
        self._first, self._last = 0, count  # the halves from and up to which the paces are out of date
        self._stretches: list[_Stretch] = []

    def halves(self) -> list[tuple[int, bool, Transfer]]:
        """Return (boundary, whether it is a start, transfer) in the order in which the halves stand."""
        return [(key[0], not key[5], self.transfers[key[4]]) for key in self._keys]

    def _keys_of(self, transfer: Transfer) -> tuple[_Key, _Key]:
        start, end, number = transfer.start, transfer.end, self._number[transfer]
        rank = 4 if transfer.is_within_node else 1 if transfer.leaves else 3
        return (start, rank, start, end, number, False), (end, rank - (start < end), start, end, number, True)

    def put(self, transfer: Transfer, half: str, boundary: int) -> None:
        """Put a half of a transfer at a boundary."""
        keys = self._keys
        places = []
        for key in self._keys_of(transfer):
            places.append(bisect_left(keys, key))
            del keys[places[-1]]
        places[1] += 1  # the start was gone when the end was looked for
        setattr(transfer, half, boundary)
        for key in self._keys_of(transfer):
            insort(keys, key)
            places.append(bisect_left(keys, key))
        self._first, self._last = min(self._first, *places), max(self._last, max(places) + 1)

    def seconds(self, most_ticks: float, tick: float) -> tuple[int, int] | None:
        """Return the time of the step, and that if transfers were slow, in ticks; None if the first is above the most.

        What was found out stands for the order of the halves once it is kept.
        """
        self._stretches = []
        found = []
        for pace in self._paces:
            seconds = self._look_along(pace, most_ticks, tick)
            if seconds is None:
                return None
            found.append(round(seconds / tick))
            most_ticks = float("inf")
        return found[0], found[1]

    def keep(self) -> None:
        """Take the order of the halves, whose time was asked for, as the one that others are compared with."""
        for pace, stretch in zip(self._paces, self._stretches, strict=True):
            last = stretch.first + len(stretch.busy)
            pace.busy[stretch.first : last] = stretch.busy
            pace.stalled[stretch.first : last] = stretch.stalled
            for number, done in stretch.done.items():
                pace.done[number] = done
        self._first, self._last = len(self._keys), 0

    def take_back(self, transfer: Transfer, half: str, boundary: int) -> None:
        """Put a half back to where it was in the order that was kept last."""
        self.put(transfer, half, boundary)
        self._first, self._last = len(self._keys), 0

    def _look_along(self, pace: _Pace, most_ticks: float, tick: float) -> float | None:
        """Return the time of the step, None if it is above the most, and note what changes on the way."""
        clock, transfers, keys, end = self._clock, self.transfers, self._keys, self._clock[-1]
        here = first = min(self._first, len(keys))
        channel, stalled = pace.busy[here], pace.stalled[here]
        busy, late, done = [channel], [stalled], dict[int, float]()
        differing: set[int] = set()
        while here < len(keys):
            if here >= self._last and not differing and channel == pace.busy[here] and stalled == pace.stalled[here]:
                break
            boundary, _, start, last, number, is_end = keys[here]
            now = clock[boundary] + stalled
            if is_end:
                ready = done[number] if number in done else pace.done[number]
                differing.discard(number)
                if ready > now:
                    stalled += ready - now
                    if round((end + stalled) / tick) > most_ticks:
                        self.visited += here - first
                        return None
            else:
                if start < last:
                    stalled += self._hand_over_seconds
                    now += self._hand_over_seconds
                    channel = channel if channel > now else now + self._wake_seconds
                    channel += pace.slowness * transfers[number].seconds
                else:
                    channel = max(now, channel) + pace.slowness * transfers[number].seconds
                done[number] = channel
                if channel != pace.done[number]:
                    differing.add(number)
            here += 1
            busy.append(channel)
            late.append(stalled)
        self.visited += here - first
        self._stretches.append(_Stretch(first, busy, late, done))
        return end + (stalled if here == len(keys) else pace.stalled[-1])
