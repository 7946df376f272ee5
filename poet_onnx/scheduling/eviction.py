"""An eviction: which values of an order leave RAM, and how they come back.

Where the memory is highest above the budget, the value whose retention interval costs least for what it frees leaves
RAM. It is paged in again, or its node runs again, and what that run reads must be there by then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling.limit_rows import forbidden
from poet_onnx.scheduling.liveness import Integers, Numbers, Profile

LONGEST_CHAIN = 12
"""Nodes that may be run again, one for the other, to bring a value back."""

SMALLEST_SHARE = 1e-4
"""Values smaller than this share of the budget stay in RAM."""

MOST_IMPROVEMENT_VISITS = 400_000
"""Intervals that the improvement of one plan may look at."""

MOST_CUTS, CUTS_BESIDES = 2, 536
"""Cuts of intervals, for each interval that there is and besides, after which an eviction gives up."""

MOST_RESTARTS = 12
"""Times that recomputes which leave no way out are forbidden before paging alone is tried.

With one, orders for ResNet-18 at 75 % on a72, recompute only, cost 25 % more energy.
"""

RAM, STORAGE, DROPPED = range(3)
"""Where a value is during an interval, and so how it comes back.

Plain numbers, for they are kept in arrays: NumPy asks the members of an enumeration whether they are arrays, which is
slow, and drops an interrupt that comes while they answer.
"""


class Eviction:
    """Intervals of an order's values, and where each value is meanwhile.

    Attributes:
        away_from: first place at which the value of each interval is not in RAM, if it leaves. It is the one behind
            `first`, or `first` itself where only a rerun before that place reads the value.
        visits: intervals that were looked at, a measure of work.
    """

    def __init__(
        self,
        profile: Profile,
        limits: Limits,
        *,
        held: frozenset[tuple[int, int]] = frozenset(),
        least_bytes: float | None = None,
    ) -> None:
        """Start with everything in RAM.

        Args:
            profile: of the order.
            limits: that are kept, but for the deadline.
            held: values (with the start of the interval) that come back by page-in alone.
            least_bytes: smaller values stay in RAM; by default a share of the budget.
        """
        self.profile, self.limits = profile, limits
        self.liveness = liveness = profile.liveness
        budget_bytes = limits.transient_bytes
        self.excess: Integers = profile.levels - budget_bytes
        intervals = profile.intervals
        above = np.concatenate(([0], np.cumsum(self.excess > 0)))
        useful = (intervals.last > intervals.first + 1) & ~liveness.kept[intervals.value]
        least_bytes = SMALLEST_SHARE * budget_bytes if least_bytes is None else least_bytes
        useful &= liveness.sizes[intervals.value] >= least_bytes
        useful &= above[intervals.last] > above[np.minimum(intervals.first + 1, len(profile.order))]
        self.count = int(useful.sum())
        # An interval is cut in two where its value is needed for a recompute.
        self.most_intervals = (1 + MOST_CUTS) * self.count + CUTS_BESIDES
        self.value, self.first, self.last = intervals.value[useful], intervals.first[useful], intervals.last[useful]
        self.away_from = self.first + 1
        self._remade: set[int] = set()
        self.placement = np.zeros(self.count, dtype=np.int64)
        self.rerun = np.full(self.count, math.inf)
        self._grow()
        self.cause: dict[int, int] = {}
        self.of_value: dict[int, list[int]] = {}
        self._known: dict[tuple[int, int], float] = {}
        for interval in range(self.count):
            value = int(self.value[interval])
            self.of_value.setdefault(value, []).append(interval)
            if (value, int(self.first[interval])) not in held:
                self.rerun[interval] = self._rerun_price(value, int(self.last[interval]))
        self.paged = np.zeros(len(liveness.values), dtype=np.int64)
        self.visits = len(profile.order)

    def _rerun_price(self, value: int, place: int, depth: int = 0) -> float:
        """Return the joules of making a value again before a place; what is used there or later is at hand."""
        key = (value, place)
        if key not in self._known:
            self._known[key] = math.inf
            maker = int(self.liveness.maker[value])
            possible = depth < LONGEST_CHAIN and not self._is_changed(maker, place)
            price = float(self.liveness.rerun[maker]) if possible else math.inf
            for read in self.liveness.reads[maker] if price < math.inf else ():
                if self.profile.last_use[read] < place:
                    price += self._rerun_price(read, place, depth + 1)
            self._known[key] = price
        return self._known[key]

    def _is_changed(self, node: int, place: int) -> bool:
        """Return whether a resident tensor that a node reads is another one before a place than when the node ran."""
        position, changers = self.profile.position, self.liveness.changers[node]
        return bool(changers) and any(position[node] < position[other] < place for other in changers)

    def absences(self) -> Iterator[tuple[int, int, int, bool]]:
        """Yield each value that is away, the places between which it is, and whether it is in storage."""
        for interval in np.nonzero(self.placement[: self.count])[0]:
            is_stored = self.placement[interval].item() == STORAGE
            yield int(self.value[interval]), int(self.first[interval]), int(self.last[interval]), is_stored

    @property
    def joules(self) -> float:
        """Return what all transfers and reruns cost."""
        placement, value = self.placement[: self.count], self.value[: self.count]
        stored = value[placement == STORAGE]
        price = self.liveness.page_in[stored].sum() + self.liveness.page_out[np.unique(stored)].sum()
        return float(price + self.rerun[: self.count][placement == DROPPED].sum())

    def fill(self, *, barred: int = -1) -> bool:
        """Send values away until the memory keeps to the budget, but for a barred interval; return whether it does.

        An interval is judged by what it frees where memory is highest.
        """
        excess = self.excess
        while True:
            place = int(np.argmax(excess)) if len(excess) else 0
            if not len(excess) or excess[place] <= 0:
                return True
            count = self.count
            self.visits += count
            fits = (self.away_from[:count] <= place) & (place < self.last[:count]) & (self.placement[:count] == RAM)
            chosen = np.nonzero(fits)[0]
            chosen = chosen[chosen != barred]
            if not len(chosen) or count > self.most_intervals:
                return False
            value = self.value[chosen]
            page = self.liveness.page_in[value] + self._page_out_price()[value]
            price = np.minimum(self.rerun[chosen], page)
            frees = np.minimum(self.liveness.sizes[value], excess[place])
            best = int(np.argmin(price / frees))
            if price[best] == math.inf:
                return False
            interval = int(chosen[best])
            self.send(interval, STORAGE if page[best] <= self.rerun[interval] else DROPPED)

    def send(self, interval: int, placement: int) -> None:
        """Let a value be elsewhere during an interval."""
        value = int(self.value[interval])
        self.excess[self.away_from[interval] : self.last[interval]] -= self.liveness.sizes[value]
        self.placement[interval] = placement
        if placement == STORAGE:
            self.paged[value] += 1
        else:
            self._require(value, int(self.last[interval]), interval)

    def _require(self, value: int, place: int, cause: int) -> None:
        """Have all that a rerun of a value's node reads in RAM before a place."""
        stack, seen = [value], {value}
        while stack:
            for read in self.liveness.reads[self.liveness.maker[stack.pop()]]:
                if read in seen:
                    continue
                seen.add(read)
                if self.profile.last_use[read] < place:
                    stack.append(read)
                    continue
                for interval in self.of_value.get(read, ()):
                    if self.first[interval] < place < self.last[interval]:
                        if self._cut(interval, place, cause):
                            stack.append(read)
                        break

    def _cut(self, interval: int, place: int, cause: int) -> bool:
        """End an interval earlier and let another begin there; return whether its value is made again at that place."""
        new, value = self.count, int(self.value[interval])
        if new == len(self.value):
            self._grow()
        self.count += 1
        self.value[new], self.first[new], self.last[new] = value, place, self.last[interval]
        self.away_from[new] = place + (place not in self._remade or value in self._read_at(place))
        self.rerun[new] = self.rerun[interval]
        if self.placement[interval].item() != RAM:
            self.excess[place : self.last[interval]] += self.liveness.sizes[value]
        self.last[interval] = place
        if self.rerun[interval] < math.inf:
            self.rerun[interval] = self._rerun_price(value, place)
        self.of_value[value].append(new)
        self.cause[new] = cause
        return bool(self.placement[interval].item() == DROPPED)

    def _grow(self) -> None:
        """Make room for as many intervals again."""
        more = self.count + 64
        self.value, self.first, self.last, self.away_from, self.placement = (
            np.concatenate((array, np.zeros(more, dtype=np.int64)))
            for array in (self.value, self.first, self.last, self.away_from, self.placement)
        )
        self.rerun = np.concatenate((self.rerun, np.full(more, math.inf)))

    def remake(self, intervals: Iterable[int], place: int) -> None:
        """Drop values until a place, at which they are made again, one after the other, and stay in RAM.

        What they are made of, and is read again later, may leave RAM before the node at that place runs.
        """
        self._remade.add(place)
        for interval in intervals:
            if self.rerun[interval] < math.inf and self.first[interval] + 1 < place < self.last[interval]:
                kept = self.count
                self._cut(interval, place, interval)
                self.rerun[kept] = math.inf
                self.send(interval, DROPPED)

    def _read_at(self, place: int) -> tuple[int, ...]:
        """Return the values that the node at a place reads."""
        return self.liveness.reads[int(self.profile.order[place])]

    def bring_back(self, interval: int) -> None:
        """Keep a value in RAM during an interval."""
        self.excess[self.away_from[interval] : self.last[interval]] += self.liveness.sizes[self.value[interval]]
        if self.placement[interval].item() == STORAGE:
            self.paged[self.value[interval]] -= 1
        self.placement[interval] = RAM

    def prune(self) -> None:
        """Keep in RAM what there turned out to be room for, the dearest first."""
        for interval in self.away():
            between = self.excess[self.away_from[interval] : self.last[interval]]
            if int(between.max(initial=-(2**62))) + self.liveness.sizes[self.value[interval]] <= 0:
                self.bring_back(interval)

    def away(self) -> list[int]:
        """Return the intervals that are spent outside RAM, the dearest first."""
        intervals = np.nonzero(self.placement[: self.count])[0]
        is_stored = self.placement[intervals] == STORAGE
        price = np.where(is_stored, self._page_price(self.value[intervals]), self.rerun[intervals])
        return [int(interval) for interval in intervals[np.lexsort((intervals, -price))]]

    def _page_price(self, value: Integers) -> Numbers:
        """Return the joules of a page-in of values, with the share of their page-outs that falls to it."""
        return self.liveness.page_in[value] + self.liveness.page_out[value] / np.maximum(self.paged[value], 1)

    def _page_out_price(self) -> Numbers:
        """Return the joules that writing each value adds: none if it is written anyway, infinite if it may not move."""
        added = np.where(self.paged > 0, 0.0, self.liveness.page_out)
        return np.where(forbidden(self.limits, self.liveness.sizes, self.paged), math.inf, added)

    def _is_worth(self, interval: int, placement: int) -> bool:
        """Return whether another placement may be cheaper for a value that is away; of paging, a page-in tells."""
        value, rerun = self.value[interval], self.rerun[interval]
        if placement == DROPPED:
            return bool(rerun < self._page_price(value))
        return placement == RAM or bool(
            self.liveness.page_in[value] < rerun and self._page_out_price()[value] < math.inf
        )

    def improve(self) -> None:
        """Try to keep each value that is away, or to bring it back in the other way, and stay with what is cheaper."""
        best = self.joules
        most_visits = self.visits + MOST_IMPROVEMENT_VISITS
        for interval in self.away():
            if self.visits > most_visits:
                return
            for placement in (RAM, DROPPED, STORAGE):
                if self.placement[interval].item() in (RAM, placement) or not self._is_worth(interval, placement):
                    continue
                saved = self.saved()
                self.visits += self.count
                self.bring_back(interval)
                if placement != RAM:
                    self.send(interval, placement)
                fits = self.fill(barred=interval)
                if fits:
                    self.prune()
                if fits and self.joules < best * (1 - 1e-9):
                    best = self.joules
                else:
                    vars(self).update(saved)

    def guilty(self) -> frozenset[tuple[int, int]]:
        """Return (value, start) of the intervals whose reruns keep other values in RAM where memory is highest."""
        place = int(np.argmax(self.excess))
        causes = {cause for new, cause in self.cause.items() if self.first[new] - 1 <= place < self.last[new]}
        return frozenset((int(self.value[cause]), int(self.first[cause])) for cause in causes)

    def saved(self) -> dict[str, object]:
        """Return all that changes with every value that is sent away or brought back, by the names of attributes."""
        arrays = ("excess", "value", "first", "last", "away_from", "placement", "paged", "rerun")
        of_value = {value: [*intervals] for value, intervals in self.of_value.items()}
        return {name: getattr(self, name).copy() for name in arrays} | {"count": self.count, "of_value": of_value}


def evict(profile: Profile, limits: Limits) -> Eviction | None:
    """Return a quick plan that keeps to the limits but the deadline, or None if none was found."""
    return evict_and_count(profile, limits)[0]


def evict_and_count(profile: Profile, limits: Limits) -> tuple[Eviction | None, int]:
    """Return the quick plan, or None, and the intervals that were looked at for it, in vain or not.

    Where the recomputes that were chosen hold too much in RAM they are forbidden and all starts anew; if that does not
    help, everything is paged, and what is cheaper to make again is made again then.
    """
    held: frozenset[tuple[int, int]] = frozenset()
    visits = 0
    for _ in range(MOST_RESTARTS):
        plan = Eviction(profile, limits, held=held)
        plan.visits += visits
        if plan.fill():
            plan.prune()
            return plan, plan.visits
        visits = plan.visits
        guilty = plan.guilty()
        if guilty <= held:
            break
        held |= guilty
    plan = Eviction(profile, limits)
    plan.visits += visits
    reruns, plan.rerun = plan.rerun, np.full_like(plan.rerun, math.inf)
    if not plan.fill():
        return None, plan.visits
    plan.rerun = reruns
    plan.prune()
    plan.improve()
    return plan, plan.visits
