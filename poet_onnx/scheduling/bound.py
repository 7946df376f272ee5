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
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.eviction import Prices
from poet_onnx.scheduling.limit_rows import transfer_rows
from poet_onnx.scheduling.liveness import Liveness, Profile

if TYPE_CHECKING:
    from pyscipopt import Variable

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


def least_overhead_in_order(problem: ScheduleProblem, limits: Limits, order: Sequence[str]) -> float:
    """Return joules above the base energy that no plan of a problem in an order can stay below."""
    liveness = Liveness(problem)
    profile = liveness.profile(liveness.order_of(order))
    return least_overhead(liveness, Prices.of(liveness), profile, limits)


def least_overhead(liveness: Liveness, prices: Prices, profile: Profile, limits: Limits) -> float:
    """Return joules that no plan of an order within limits can stay below, those of the computations aside.

    Args:
        liveness: of the graph.
        prices: of the device, at least.
        profile: of the order.
        limits: what plans must keep to; a deadline is left out.
    """
    rows = _Rows(liveness, prices, profile, limits.transient_bytes)
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
    relaxation = _Relaxation(rows, largest)
    for interval, (page, rerun) in prices_of.items():
        relaxation.add_interval(interval, page, rerun)
    relaxation.limit_transfers(limits)
    for need, terms in needs:
        relaxation.add_need(need, terms)
    return relaxation.solve()


class _Relaxation:
    """The integer program: variables by number, those of each interval that say where its value is elsewhere."""

    def __init__(self, rows: _Rows, largest: float) -> None:
        # Imported here, so that an order can be inspected where no solver is installed.
        from pyscipopt import Model

        self.rows, self.largest = rows, largest
        self.scip = Model("relaxation")
        self.scip.hideOutput()
        self.variables: list[Variable] = []
        self.away: dict[int, list[int]] = {}
        self.stored: dict[int, int] = {}
        self.page_ins: dict[int, int] = {}

    def _variable(self, joules: float) -> int:
        self.variables.append(self.scip.addVar(vtype="B", obj=joules * SCALE / self.largest))
        return len(self.variables) - 1

    def add_interval(self, interval: int, page: float, rerun: float) -> None:
        """Let an interval's value be elsewhere at prices in joules, infinite where it may not."""
        value = int(self.rows.profile.intervals.value[interval])
        away = self.away[interval] = []
        if rerun < math.inf:
            away.append(self._variable(rerun))
        if page < math.inf:
            if value not in self.stored:
                self.stored[value] = self._variable(float(self.rows.prices.page_out[value]))
            away.append(self._variable(page))
            self.page_ins[away[-1]] = int(self.rows.liveness.sizes[value])
            self.scip.addCons(self.variables[away[-1]] <= self.variables[self.stored[value]])
        if len(away) == 2:
            self.scip.addCons(self.variables[away[0]] + self.variables[away[1]] <= 1)

    def limit_transfers(self, limits: Limits) -> None:
        """Add the rows of what a step may move."""
        from pyscipopt import quicksum

        page_outs = {number: int(self.rows.liveness.sizes[value]) for value, number in self.stored.items()}
        for row in transfer_rows(limits, page_outs, self.page_ins):
            moved = quicksum(size * self.variables[number] for number, size in row.terms.items())
            self.scip.addCons(moved <= row.high)

    def add_need(self, need: int, terms: dict[int, int]) -> None:
        """Ask that so many bytes are elsewhere, of what intervals can free."""
        factors = [
            (self.variables[number], size / need) for interval, size in terms.items() for number in self.away[interval]
        ]
        # A sum of all terms would take PySCIPOpt several times as long to make.
        row = self.scip.addCons(factors[0][1] * factors[0][0] >= 1.0)
        for variable, factor in factors[1:]:
            self.scip.addCoefLinear(row, variable, factor)

    def solve(self) -> float:
        """Return a lower bound in joules; infinite where nothing does."""
        from poet_onnx.scheduling.solver import optimize

        self.scip.setParam("limits/nodes", MOST_NODES)
        self.scip.setParam("limits/time", RELAXATION_SECONDS)
        if optimize(self.scip):
            raise KeyboardInterrupt
        if self.scip.getStatus() == "infeasible":
            return math.inf
        return max(0.0, float(self.scip.getDualbound())) * self.largest / SCALE


class _Rows:
    """What must be elsewhere at each place, and what that costs at least."""

    def __init__(self, liveness: Liveness, prices: Prices, profile: Profile, budget_bytes: int) -> None:
        self.liveness, self.prices, self.profile = liveness, prices, profile
        intervals = profile.intervals
        self.sizes = liveness.sizes[intervals.value]
        self.least_bytes = SMALLEST_SHARE * budget_bytes
        movable = (intervals.last > intervals.first + 1) & ~liveness.kept[intervals.value]
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
        for node in range(len(liveness.names)):
            place = int(profile.position[node])
            for read, heir in liveness.shares(node):
                if (read, place) not in starts:
                    continue
                interval = starts[read, place]
                if interval in large:
                    self.taken_over.setdefault(place, []).append((interval, int(liveness.sizes[heir])))
                else:
                    self.excess[place] -= liveness.sizes[heir]
        self.readers = [0] * len(liveness.values)
        for reads in liveness.reads:
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
        maker = int(self.liveness.maker[value])
        price = float(self.prices.rerun[maker])
        for read in self.liveness.reads[maker] if price < math.inf else ():
            # Who keeps this instead, all the time, saves no room: it is as large, and nothing else reads it.
            if self.readers[read] == 1 and not self.liveness.kept[read] and self.liveness.sizes[read] >= size_bytes:
                price += min(float(self.prices.page_in[read]), self._rerun(read, size_bytes))
        together = sum(1 for made in self.liveness.writes[maker] if self.liveness.sizes[made] >= self.least_bytes)
        return price / max(1, together)


def _implies(row: _Need, other: _Need) -> bool:
    """Return whether whatever satisfies one row satisfies another: the rest is too small to make the difference."""
    (need, terms), (other_need, other_terms) = row, other
    rest = sum(max(0, size - other_terms.get(interval, 0)) for interval, size in terms.items() - other_terms.items())
    return need - other_need >= rest
