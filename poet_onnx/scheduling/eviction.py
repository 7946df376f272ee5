"""A quick plan for an order: which values leave RAM between two uses, and how each one comes back.

Where the memory is highest above the budget, the wait that costs least for what it frees is spent outside RAM; its
value comes back by a page-in or by running its node again, and what that run reads must be there by then. That takes
milliseconds, so that many orders can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poet_onnx.scheduling.liveness import Integers, Lifetimes, Profile

Numbers = NDArray[np.float64]

LONGEST_CHAIN = 12
"""Nodes that may be run again, one for the other, to bring a value back."""

SMALLEST_SHARE = 1e-4
"""Values smaller than this share of the budget stay in RAM."""


MOST_IMPROVEMENT_VISITS = 400_000
"""Waits that the improvement of one plan may look at."""

MOST_CUTS, CUTS_BESIDES = 2, 536
"""Cuts of waits, for each wait that there is and besides, after which an eviction gives up."""

MOST_RESTARTS = 12
"""Times that recomputes which leave no way out are forbidden before paging alone is tried."""


RAM, STORAGE, NOWHERE = range(3)
"""Where a value is during a wait, and so how it comes back.

Plain numbers, for they are kept in arrays: NumPy asks the members of an enumeration whether they are arrays, which is
slow, and drops an interrupt that comes while they answer.
"""


@dataclass(frozen=True)
class Prices:
    """Joules of what brings values back; infinite where it is not possible.

    Attributes:
        page_out, page_in: of each value, by number.
        rerun: of each node, by number.
    """

    page_out: Numbers
    page_in: Numbers
    rerun: Numbers

    @classmethod
    def of(cls, lives: Lifetimes) -> Prices:
        """Return the prices of a problem's device; a transfer that stops the step pays for the time."""
        problem, costs = lives.problem, lives.problem.costs
        waits = 0.0 if costs.asynchronous else costs.idle_watts
        movable = costs.page_out.keys() & costs.page_in.keys() if problem.paging else frozenset()
        tables = [
            np.array([t[v].joules + waits * t[v].seconds if v in movable else math.inf for v in lives.values])
            for t in (costs.page_out, costs.page_in)
        ]
        rerun = [
            costs.nodes[node.name].joules + costs.idle_watts * costs.nodes[node.name].seconds
            if problem.recompute and node.recomputable
            else math.inf
            for node in lives.nodes
        ]
        return cls(tables[0], tables[1], np.array(rerun))


class Eviction:
    """Waits of an order's values, and where each value is meanwhile.

    Attributes:
        visits: waits that were looked at, a measure of work.
    """

    def __init__(
        self,
        lives: Lifetimes,
        prices: Prices,
        profile: Profile,
        budget_bytes: int,
        *,
        held: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        """Start with everything in RAM; values of `held` (value, start of the wait) come back by page-in alone."""
        self.lives, self.prices, self.profile = lives, prices, profile
        self.excess: Integers = profile.levels - budget_bytes
        waits = profile.waits
        above = np.concatenate(([0], np.cumsum(self.excess > 0)))
        useful = (waits.last > waits.first + 1) & (lives.sizes[waits.value] >= SMALLEST_SHARE * budget_bytes)
        useful &= ~lives.kept[waits.value]
        useful &= above[waits.last] > above[np.minimum(waits.first + 1, len(profile.order))]
        self.count = int(useful.sum())
        # A wait is cut in two where its value is needed for a recompute.
        self.most_waits = (1 + MOST_CUTS) * self.count + CUTS_BESIDES
        self.value, self.first, self.last = waits.value[useful], waits.first[useful], waits.last[useful]
        self.home = np.zeros(self.count, dtype=np.int64)
        self.rerun = np.full(self.count, math.inf)
        self._grow()
        self.cause: dict[int, int] = {}
        self.of_value: dict[int, list[int]] = {}
        self._known: dict[tuple[int, int], float] = {}
        for wait in range(self.count):
            value = int(self.value[wait])
            self.of_value.setdefault(value, []).append(wait)
            if (value, int(self.first[wait])) not in held:
                self.rerun[wait] = self._rerun_price(value, int(self.last[wait]))
        self.paged = np.zeros(len(lives.values), dtype=np.int64)
        self.visits = len(profile.order)

    def _rerun_price(self, value: int, place: int, depth: int = 0) -> float:
        """Return the joules of making a value again before a place; what is used there or later is at hand."""
        key = (value, place)
        if key not in self._known:
            self._known[key] = math.inf
            maker = int(self.lives.maker[value])
            possible = depth < LONGEST_CHAIN and not self._is_changed(maker, place)
            price = float(self.prices.rerun[maker]) if possible else math.inf
            for read in self.lives.reads[maker] if price < math.inf else ():
                if self.profile.last_use[read] < place:
                    price += self._rerun_price(read, place, depth + 1)
            self._known[key] = price
        return self._known[key]

    def _is_changed(self, node: int, place: int) -> bool:
        """Return whether a resident tensor that a node reads is another one before a place than when the node ran."""
        position = self.profile.position
        return any(position[node] < position[other] < place for other in self.lives.changers[node])

    @property
    def joules(self) -> float:
        """Return what all transfers and reruns cost."""
        home, value = self.home[: self.count], self.value[: self.count]
        stored = value[home == STORAGE]
        price = self.prices.page_in[stored].sum() + self.prices.page_out[np.unique(stored)].sum()
        return float(price + self.rerun[: self.count][home == NOWHERE].sum())

    def fill(self, *, at_peak: bool, barred: int = -1) -> bool:
        """Send values away until the memory keeps to the budget; return whether it does.

        Args:
            at_peak: judge a wait by what it frees where memory is highest, otherwise by all that it frees above the
                budget.
            barred: a wait that must not be used.
        """
        excess = self.excess
        while True:
            first, last = self.first, self.last
            place = int(np.argmax(excess)) if len(excess) else 0
            if not len(excess) or excess[place] <= 0:
                return True
            count = self.count
            self.visits += count
            fits = (first[:count] < place) & (place < last[:count]) & (self.home[:count] == RAM)
            chosen = np.nonzero(fits)[0]
            chosen = chosen[chosen != barred]
            if not len(chosen) or count > self.most_waits:
                return False
            value = self.value[chosen]
            page = self.prices.page_in[value] + np.where(self.paged[value] > 0, 0.0, self.prices.page_out[value])
            price = np.minimum(self.rerun[chosen], page)
            frees = np.minimum(self.lives.sizes[value], excess[place])
            if not at_peak:
                above = np.concatenate(([0], np.cumsum(np.maximum(excess, 0))))
                places = np.concatenate(([0], np.cumsum(excess > 0)))
                begin, end = first[chosen] + 1, last[chosen]
                frees = np.minimum(above[end] - above[begin], self.lives.sizes[value] * (places[end] - places[begin]))
            best = int(np.argmin(price / frees))
            if price[best] == math.inf:
                return False
            wait = int(chosen[best])
            self.send(wait, STORAGE if page[best] <= self.rerun[wait] else NOWHERE)

    def send(self, wait: int, home: int) -> None:
        """Let a value be elsewhere during a wait."""
        value = int(self.value[wait])
        self.excess[self.first[wait] + 1 : self.last[wait]] -= self.lives.sizes[value]
        self.home[wait] = home
        if home == STORAGE:
            self.paged[value] += 1
        else:
            self._require(value, int(self.last[wait]), wait)

    def _require(self, value: int, place: int, cause: int) -> None:
        """Have all that a rerun of a value's node reads in RAM before a place."""
        stack, seen = [value], {value}
        while stack:
            for read in self.lives.reads[self.lives.maker[stack.pop()]]:
                if read in seen:
                    continue
                seen.add(read)
                if self.profile.last_use[read] < place:
                    stack.append(read)
                    continue
                for wait in self.of_value.get(read, ()):
                    if self.first[wait] < place < self.last[wait]:
                        if self._cut(wait, place, cause):
                            stack.append(read)
                        break

    def _cut(self, wait: int, place: int, cause: int) -> bool:
        """End a wait earlier and let another begin there; return whether its value is made again at that place."""
        new, value = self.count, int(self.value[wait])
        if new == len(self.value):
            self._grow()
        self.count += 1
        self.value[new], self.first[new], self.last[new] = value, place, self.last[wait]
        self.rerun[new] = self.rerun[wait]
        if self.home[wait].item() != RAM:
            self.excess[place : self.last[wait]] += self.lives.sizes[value]
        self.last[wait] = place
        if self.rerun[wait] < math.inf:
            self.rerun[wait] = self._rerun_price(value, place)
        self.of_value[value].append(new)
        self.cause[new] = cause
        return bool(self.home[wait].item() == NOWHERE)

    def _grow(self) -> None:
        """Make room for as many waits again."""
        more = self.count + 64
        self.value, self.first, self.last, self.home = (
            np.concatenate((array, np.zeros(more, dtype=np.int64)))
            for array in (self.value, self.first, self.last, self.home)
        )
        self.rerun = np.concatenate((self.rerun, np.full(more, math.inf)))

    def bring_back(self, wait: int) -> None:
        """Keep a value in RAM during a wait."""
        self.excess[self.first[wait] + 1 : self.last[wait]] += self.lives.sizes[self.value[wait]]
        if self.home[wait].item() == STORAGE:
            self.paged[self.value[wait]] -= 1
        self.home[wait] = RAM

    def prune(self) -> None:
        """Keep in RAM what there turned out to be room for, the dearest first."""
        for wait in self.away():
            between = self.excess[self.first[wait] + 1 : self.last[wait]]
            if int(between.max(initial=-(2**62))) + self.lives.sizes[self.value[wait]] <= 0:
                self.bring_back(wait)

    def away(self) -> list[int]:
        """Return the waits that are spent outside RAM, the dearest first."""
        waits = np.nonzero(self.home[: self.count])[0]
        is_stored = self.home[waits] == STORAGE
        price = np.where(is_stored, self._page_price(self.value[waits]), self.rerun[waits])
        return [int(wait) for wait in waits[np.lexsort((waits, -price))]]

    def _page_price(self, value: Integers) -> Numbers:
        """Return the joules of a page-in of values, with the share of their page-outs that falls to it."""
        return self.prices.page_in[value] + self.prices.page_out[value] / np.maximum(self.paged[value], 1)

    def improve(self, *, at_peak: bool) -> None:
        """Try to keep each value that is away, or to bring it back in the other way, and stay with what is cheaper."""
        best = self.joules
        most_visits = self.visits + MOST_IMPROVEMENT_VISITS
        for wait in self.away():
            if self.visits > most_visits:
                return
            for home in (RAM, NOWHERE, STORAGE):
                now = self.home[wait].item()
                if now in (RAM, home):
                    continue
                if home == NOWHERE and self.rerun[wait] >= self._page_price(self.value[wait]):
                    continue
                if home == STORAGE and self.prices.page_in[self.value[wait]] >= self.rerun[wait]:
                    continue
                saved = self._save()
                self.visits += self.count
                self.bring_back(wait)
                if home != RAM:
                    self.send(wait, home)
                fits = self.fill(at_peak=at_peak, barred=wait)
                if fits:
                    self.prune()
                if fits and self.joules < best * (1 - 1e-9):
                    best = self.joules
                else:
                    self._restore(saved)

    def guilty(self) -> frozenset[tuple[int, int]]:
        """Return (value, start) of the waits whose reruns keep other values in RAM where memory is highest."""
        place = int(np.argmax(self.excess))
        causes = {cause for new, cause in self.cause.items() if self.first[new] - 1 <= place < self.last[new]}
        return frozenset((int(self.value[cause]), int(self.first[cause])) for cause in causes)

    def _save(self) -> _Saved:
        arrays = {name: getattr(self, name).copy() for name in _ARRAYS}
        return _Saved(arrays, self.count, {value: [*waits] for value, waits in self.of_value.items()})

    def _restore(self, saved: _Saved) -> None:
        for name, array in saved.arrays.items():
            setattr(self, name, array)
        self.count, self.of_value = saved.count, saved.of_value


_ARRAYS = ("excess", "value", "first", "last", "home", "paged", "rerun")
"""What of an eviction changes with every value that is sent away or brought back."""


@dataclass(frozen=True)
class _Saved:
    """What an eviction goes back to: its arrays, by name, the number of its waits, and the waits of each value."""

    arrays: dict[str, Integers | Numbers]
    count: int
    of_value: dict[int, list[int]]


def evict(
    lives: Lifetimes, prices: Prices, profile: Profile, budget_bytes: int, *, at_peak: bool = True
) -> Eviction | None:
    """Return a quick plan that keeps to a budget, or None if none was found.

    Where the recomputes that were chosen hold too much in RAM they are forbidden and all starts anew; if that does not
    help, everything is paged, and what is cheaper to make again is made again then.
    """
    held: frozenset[tuple[int, int]] = frozenset()
    visits = 0
    for _ in range(MOST_RESTARTS):
        plan = Eviction(lives, prices, profile, budget_bytes, held=held)
        plan.visits += visits
        if plan.fill(at_peak=at_peak):
            plan.prune()
            return plan
        visits = plan.visits
        guilty = plan.guilty()
        if guilty <= held:
            break
        held |= guilty
    plan = Eviction(lives, prices, profile, budget_bytes)
    plan.visits += visits
    reruns = plan.rerun.copy()
    plan.rerun[:] = math.inf
    if not plan.fill(at_peak=True):
        return None
    plan.rerun[:] = reruns
    plan.prune()
    plan.improve(at_peak=True)
    return plan
