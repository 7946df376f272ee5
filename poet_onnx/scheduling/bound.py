"""A lower bound on what recompute and paging cost in one order: what is above the budget must be elsewhere.

A small integer program has one choice for each retention interval of a large value: in RAM, in storage, or dropped. It
asks at every position that enough bytes are elsewhere, and charges for each absence the least that ends it. What the
recomputes themselves read and hold is left out, smaller values take no room at all, and buffers are shared wherever
they could be. So no plan in this order costs less.

Two nodes: a makes k of 8 bytes, b reads it; a node between them exceeds the budget by 4. The row is
8 stored + 8 dropped >= 4, and the objective charges e_in + e_out for the one and e_a for the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.eviction import Prices
from poet_onnx.scheduling.liveness import Liveness, Profile

if TYPE_CHECKING:
    from pyscipopt import Model, Variable

SMALLEST_SHARE = 0.001
"""Of the budget: intervals of smaller values cost nothing here."""

RELAXATION_SECONDS = 10.0
"""A guard; the nodes are counted, and take two seconds where there are many. The bound holds wherever it ends."""

MOST_NODES = 20
"""Of the branch and bound; the bound holds wherever it stops."""

SCALE = 1000.0
"""The largest price in the units that SCIP sees."""

_Need = tuple[int, dict[int, int]]
"""Bytes that must be elsewhere at some place, and the bytes of each interval that can be."""


def least_overhead_in_order(problem: ScheduleProblem, order: Sequence[str]) -> float:
    """Return joules above the base energy that no plan of a problem in an order can stay below."""
    lives = Liveness(problem)
    profile = lives.profile(lives.order_of(order))
    return least_overhead(lives, Prices.of(lives), profile, problem.budget_bytes or 0)


def least_overhead(lives: Liveness, prices: Prices, profile: Profile, budget_bytes: int) -> float:
    """Return joules that no plan of an order within a budget can stay below, those of the computations aside.

    Args:
        lives: of the graph, and of the problem with its limit on what is written.
        prices: of the device, at least.
        profile: of the order.
        budget_bytes: bound on the transient peak.
    """
    # Imported here, so that an order can be inspected where no solver is installed.
    from pyscipopt import Model, quicksum

    from poet_onnx.scheduling.interrupts import optimize

    rows = _Rows(lives, prices, profile, budget_bytes)
    needs = rows.needs()
    prices_of = {interval: rows.prices_of(interval) for _, terms in needs for interval in terms}
    largest = max((price for pair in prices_of.values() for price in pair if price < math.inf), default=0.0)
    if any(
        sum(size for interval, size in terms.items() if min(prices_of[interval]) < math.inf) < need
        for need, terms in needs
    ):
        return math.inf
    if largest <= 0:
        return 0.0
    scip = Model("relaxation")
    scip.hideOutput()
    away: dict[int, list[Variable]] = {}
    stored: dict[int, Variable] = {}
    for interval, (page, rerun) in prices_of.items():
        value = int(profile.intervals.value[interval])
        away[interval] = []
        if rerun < math.inf:
            away[interval].append(scip.addVar(vtype="B", obj=rerun * SCALE / largest))
        if page < math.inf:
            if value not in stored:
                stored[value] = scip.addVar(vtype="B", obj=float(prices.page_out[value]) * SCALE / largest)
            away[interval].append(scip.addVar(vtype="B", obj=page * SCALE / largest))
            scip.addCons(away[interval][-1] <= stored[value])
        if len(away[interval]) == 2:
            scip.addCons(quicksum(away[interval]) <= 1)
    _limit_written(scip, lives, stored)
    for need, terms in needs:
        factors = [(variable, size / need) for interval, size in terms.items() for variable in away[interval]]
        # A sum of all terms would take PySCIPOpt several times as long to make.
        row = scip.addCons(factors[0][1] * factors[0][0] >= 1.0)
        for variable, factor in factors[1:]:
            scip.addCoefLinear(row, variable, factor)
    scip.setParam("limits/nodes", MOST_NODES)
    scip.setParam("limits/time", RELAXATION_SECONDS)
    if optimize(scip):
        raise KeyboardInterrupt
    if scip.getStatus() == "infeasible":
        return math.inf
    return max(0.0, float(scip.getDualbound())) * largest / SCALE


def _limit_written(scip: Model, lives: Liveness, stored: Mapping[int, Variable]) -> None:
    """Add the row of what a step may write, where the problem has such a limit."""
    from pyscipopt import quicksum

    allowed = lives.problem.max_written_bytes
    if allowed is not None and stored:
        unit = max(1, allowed)
        scip.addCons(quicksum(lives.sizes[value] / unit * level for value, level in stored.items()) <= allowed / unit)


class _Rows:
    """What must be elsewhere at each place, and what that costs at least."""

    def __init__(self, lives: Liveness, prices: Prices, profile: Profile, budget_bytes: int) -> None:
        self.lives, self.prices, self.profile = lives, prices, profile
        intervals = profile.intervals
        self.sizes = lives.sizes[intervals.value]
        self.least_bytes = SMALLEST_SHARE * budget_bytes
        movable = (intervals.last > intervals.first + 1) & ~lives.kept[intervals.value]
        self.large = np.nonzero(movable & (self.sizes >= self.least_bytes))[0].tolist()
        self.excess = profile.levels - budget_bytes
        starts = {
            (int(intervals.value[interval]), int(intervals.first[interval])): interval
            for interval in np.nonzero(movable)[0].tolist()
        }
        large = set(self.large)
        for interval in set(starts.values()) - large:
            self.excess[intervals.first[interval] + 1 : intervals.last[interval]] -= self.sizes[interval]
        # A buffer that is not needed again, its value coming back in another one, may be taken over by an output.
        self.taken_over: dict[int, list[tuple[int, int]]] = {}
        for node in range(len(lives.names)):
            place = int(profile.position[node])
            for read, heir in lives.shares(node):
                if (read, place) not in starts:
                    continue
                interval = starts[read, place]
                if interval in large:
                    self.taken_over.setdefault(place, []).append((interval, int(lives.sizes[heir])))
                else:
                    self.excess[place] -= lives.sizes[heir]
        self.readers = [0] * len(lives.values)
        for reads in lives.reads:
            for value in reads:
                self.readers[value] += 1

    def needs(self) -> list[_Need]:
        """Return the rows in the order of their places, but those that a neighbour implies."""
        intervals = self.profile.intervals
        rows: list[_Need] = []
        first, last = intervals.first[self.large], intervals.last[self.large]
        numbers = np.array(self.large, dtype=np.int64)
        for place in np.nonzero(self.excess > 0)[0].tolist():
            here = numbers[(first < place) & (place < last)].tolist()
            terms = {interval: int(self.sizes[interval]) for interval in here}
            for interval, size in self.taken_over.get(place, ()):
                terms[interval] = terms.get(interval, 0) + size
            row = int(self.excess[place]), terms
            while rows and _implies(row, rows[-1]):
                rows.pop()
            if not rows or not _implies(rows[-1], row):
                rows.append(row)
        return rows

    def prices_of(self, interval: int) -> tuple[float, float]:
        """Return the least joules that end an interval spent elsewhere: by page-in, and by running nodes again."""
        value = int(self.profile.intervals.value[interval])
        return float(self.prices.page_in[value]), self._rerun(value, int(self.sizes[interval]))

    def _rerun(self, value: int, size_bytes: int) -> float:
        """Return the least joules of making a value again, of which nothing as large was kept to make it from."""
        maker = int(self.lives.maker[value])
        price = float(self.prices.rerun[maker])
        for read in self.lives.reads[maker] if price < math.inf else ():
            # Who keeps this instead, all the time, saves no room: it is as large, and nothing else reads it.
            if self.readers[read] == 1 and not self.lives.kept[read] and self.lives.sizes[read] >= size_bytes:
                price += min(float(self.prices.page_in[read]), self._rerun(read, size_bytes))
        together = sum(1 for made in self.lives.writes[maker] if self.lives.sizes[made] >= self.least_bytes)
        return price / max(1, together)


def _implies(row: _Need, other: _Need) -> bool:
    """Return whether whatever satisfies one row satisfies another: the rest is too small to make the difference."""
    (need, terms), (other_need, other_terms) = row, other
    rest = sum(max(0, size - other_terms.get(interval, 0)) for interval, size in terms.items() - other_terms.items())
    return need - other_need >= rest
