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

from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.limit_rows import transfer_rows
from poet_onnx.scheduling.liveness import Liveness, Profile

if TYPE_CHECKING:
    from pyscipopt import Variable

SMALLEST_SHARE = 0.001
"""Intervals of values below this share of the budget cost nothing here."""

RELAXATION_SECONDS = 10.0
"""A guard; the nodes are counted, and take two seconds where there are many. The bound holds wherever it ends."""

MOST_NODES = 20
"""The branch and bound stops after so many nodes; the bound holds wherever it stops."""

SCALE = 1000.0
"""The largest price in the units that SCIP sees."""

_Need = tuple[int, dict[int, int]]
"""Bytes that must be elsewhere at some place, and the bytes of each interval that can be."""


def least_overhead_in_order(problem: ScheduleProblem, limits: Limits, order: Sequence[str]) -> float:
    """Return joules above the base energy that no plan of a problem in an order can stay below."""
    return least_overhead(Liveness(problem).in_order(order), limits)


def least_overhead(profile: Profile, limits: Limits) -> float:
    """Return joules that no plan of an order within limits, a deadline aside, can stay below besides computing."""
    rows = _Rows(profile, limits.transient_bytes)
    needs = rows.needs()
    prices_of = {interval: rows.prices_of(interval) for _, terms in needs for interval in terms}
    for need, terms in needs:
        if sum(size for interval, size in terms.items() if min(prices_of[interval]) < math.inf) < need:
            return math.inf
    largest = max((price for pair in prices_of.values() for price in pair if price < math.inf), default=0.0)
    return _solved(rows, needs, prices_of, limits, SCALE / largest) if largest > 0 else 0.0


def _solved(
    rows: _Rows, needs: list[_Need], prices_of: dict[int, tuple[float, float]], limits: Limits, scale: float
) -> float:
    """Return a lower bound in joules of the integer program, infinite where it has no solution.

    Args:
        rows: of an order.
        needs: what must be elsewhere.
        prices_of: of each interval, in joules, infinite where it may not be elsewhere.
        limits: on what a step may move.
        scale: what a joule is in the units that SCIP sees.
    """
    # Imported here, so that an order can be inspected where no solver is installed.
    from pyscipopt import Model, quicksum

    from poet_onnx.scheduling.solver import optimize

    scip = Model("relaxation")
    scip.hideOutput()
    variables: list[Variable] = []

    def variable(joules: float) -> int:
        variables.append(scip.addVar(vtype="B", obj=joules * scale))
        return len(variables) - 1

    away: dict[int, list[int]] = {}
    stored: dict[int, int] = {}
    page_ins: dict[int, int] = {}
    sizes = rows.liveness.sizes
    for interval, (page, rerun) in prices_of.items():
        value = int(rows.profile.intervals.value[interval])
        away[interval] = [variable(rerun)] if rerun < math.inf else []
        if page < math.inf:
            if value not in stored:
                stored[value] = variable(float(rows.liveness.page_out[value]))
            paged = variable(page)
            page_ins[paged] = int(sizes[value])
            away[interval].append(paged)
            scip.addCons(variables[paged] <= variables[stored[value]])
        if len(away[interval]) == 2:
            scip.addCons(quicksum(variables[number] for number in away[interval]) <= 1)
    page_outs = {number: int(sizes[value]) for value, number in stored.items()}
    for row in transfer_rows(limits, page_outs, page_ins):
        scip.addCons(quicksum(size * variables[number] for number, size in row.terms.items()) <= row.high)
    for need, terms in needs:
        factors = [(variables[number], size / need) for interval, size in terms.items() for number in away[interval]]
        # A sum of all terms would take PySCIPOpt several times as long to make.
        bytes_elsewhere = scip.addCons(factors[0][1] * factors[0][0] >= 1.0)
        for term, factor in factors[1:]:
            scip.addCoefLinear(bytes_elsewhere, term, factor)
    scip.setParam("limits/nodes", MOST_NODES)
    scip.setParam("limits/time", RELAXATION_SECONDS)
    if optimize(scip):
        raise KeyboardInterrupt
    return math.inf if scip.getStatus() == "infeasible" else max(0.0, float(scip.getDualbound())) / scale


class _Rows:
    """What must be elsewhere at each place, and what that costs at least."""

    def __init__(self, profile: Profile, budget_bytes: int) -> None:
        self.liveness, self.profile = profile.liveness, profile
        liveness = profile.liveness
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
            for read, heir in liveness.inplace[node]:
                if (read, place) not in starts:
                    continue
                interval = starts[read, place]
                if interval in large:
                    self.taken_over.setdefault(place, []).append((interval, int(liveness.sizes[heir])))
                else:
                    self.excess[place] -= liveness.sizes[heir]

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
        return float(self.liveness.page_in[value]), self._rerun(value, int(self.sizes[interval]))

    def _rerun(self, value: int, size_bytes: int) -> float:
        """Return the least joules of making a value again where nothing as large was kept to make it from."""
        prices: dict[int, float] = {}
        waiting = [value]
        while waiting:
            made = waiting[-1]
            parts = self._parts_not_kept(made, size_bytes)
            unknown = [part for part in parts if part not in prices]
            waiting += unknown
            if not unknown:
                prices[made] = self._rerun_from(made, {part: prices[part] for part in parts})
                waiting.pop()
        return prices[value]

    def _parts_not_kept(self, value: int, size_bytes: int) -> list[int]:
        """Return what a value is made of that nobody keeps instead of it.

        Who keeps this all the time saves no room: it is as large, and nothing else reads it.
        """
        liveness, maker = self.liveness, int(self.liveness.maker[value])
        return [
            read
            for read in (liveness.reads[maker] if liveness.rerun[maker] < math.inf else ())
            if len(liveness.readers[read]) == 1 and not liveness.kept[read] and liveness.sizes[read] >= size_bytes
        ]

    def _rerun_from(self, value: int, parts: Mapping[int, float]) -> float:
        """Return the joules of making a value again, of parts that take so many to be made again or are paged in."""
        maker = int(self.liveness.maker[value])
        price = float(self.liveness.rerun[maker])
        for part, joules in parts.items():
            price += min(float(self.liveness.page_in[part]), joules)
        together = sum(1 for made in self.liveness.writes[maker] if self.liveness.sizes[made] >= self.least_bytes)
        return price / max(1, together)


def _implies(row: _Need, other: _Need) -> bool:
    """Return whether whatever satisfies one row satisfies another: the rest is too small to make the difference."""
    (need, terms), (other_need, other_terms) = row, other
    rest = sum(max(0, size - other_terms.get(interval, 0)) for interval, size in terms.items() - other_terms.items())
    return need - other_need >= rest
