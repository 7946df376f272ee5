"""From a schedule that keeps to the budget to one that keeps the rows of time as well: a second is given a price.

Local search that may not exceed a row of time is soon stuck, for whatever saves energy takes time elsewhere first. So
the seconds of the rows that are exceeded are charged for, at prices that rise until keeping the rows is the cheaper way
(a Lagrangian relaxation); between the last two prices a better one is looked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.memory import Ceilings
from poet_onnx.scheduling.search import MOST_CHANGES, improve

FIRST_PRICE = 1 / 16
"""Of the price at which all that a row could hold costs as much as all that the model could spend."""

PRICE_RISE = 4.0
MOST_RISES = 7

BISECTIONS = 3
"""Prices between one that is too low and one that is not."""

SHARE_PER_RISE, SHARE_BETWEEN = 1 / 40, 1 / 8
"""Of all changes of supplies, at each price; those of the bisection find the better plans."""


def improve_in_time(
    model: Formulation,
    start: list[float],
    *,
    time_limit_seconds: float,
    seed: int = 0,
    most_changes: int = MOST_CHANGES,
) -> list[float] | None:
    """Return a cheap assignment that satisfies all rows, or None if none was found.

    Args:
        model: with its rows of time.
        start: satisfies all rows but, perhaps, those of time.
        time_limit_seconds: a guard; what is done is counted.
        seed: of the local search.
        most_changes: of supplies, without a price and once it is in time.
    """
    search = _Search(model, model.ceilings(), time.monotonic() + time_limit_seconds, seed, most_changes)
    x = search.improved(start, [0.0] * len(model.time))
    if not search.exceeded(x):
        return x
    timely = [one for one in (search.timely(x), start) if one is not None and not search.exceeded(one)]
    best = min(timely, key=model.joules, default=None)
    if best is None:
        return None
    return improve(model, best, time_limit_seconds=search.left, seed=seed, most_changes=most_changes)


@dataclass
class _Search:
    """Local search at prices for the rows of time.

    Attributes:
        model: with its rows of time.
        ceilings: of the model.
        end: when to stop.
        seed: of the local search.
        most_changes: of supplies, without a price.
    """

    model: Formulation
    ceilings: Ceilings
    end: float
    seed: int
    most_changes: int

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.end - time.monotonic())

    def improved(self, x: list[float], prices: Sequence[float], share: float = 1.0) -> list[float]:
        """Return a cheaper assignment at a price, in joules per second, for each row of time."""
        cost = list(self.model.cost)
        for row, price in zip(self.model.time, prices, strict=True):
            for variable, seconds in row.terms.items():
                cost[variable] += price * seconds
        priced = replace(self.model, cost=cost, time=[])
        most_changes = int(share * self.most_changes)
        return improve(priced, x, time_limit_seconds=self.left, seed=self.seed, most_changes=most_changes)

    def exceeded(self, x: Sequence[float]) -> set[int]:
        """Return the rows of time that an assignment exceeds."""
        late = (self.ceilings.activity(x) > self.ceilings.limit)[self.ceilings.memory_rows :]
        return {number for number, is_late in enumerate(late) if is_late}

    def timely(self, x: list[float]) -> list[float] | None:
        """Return the cheapest assignment found that exceeds no row of time."""
        low = prices = [0.0] * len(self.model.time)
        late = x
        for _ in range(MOST_RISES):
            exceeded = self.exceeded(late)
            if not exceeded:
                break
            low, prices = prices, [self._risen(row, price, row in exceeded) for row, price in enumerate(prices)]
            x, late = late, self.improved(late, prices, SHARE_PER_RISE)
        return None if self.exceeded(late) else self._between(low, prices, x, late)

    def _risen(self, row: int, price: float, is_exceeded: bool) -> float:
        """Return the next price of a row's seconds."""
        if not is_exceeded:
            return price
        joules, seconds = sum(self.model.cost), sum(map(abs, self.model.time[row].terms.values()))
        return max(FIRST_PRICE * joules / seconds, price * PRICE_RISE) if seconds else price

    def _between(
        self, low: Sequence[float], high: Sequence[float], late: list[float], timely: list[float]
    ) -> list[float]:
        """Return the cheapest timely assignment at prices between those of a late one and those of a timely one."""
        best = timely
        for _ in range(BISECTIONS):
            middle = [(one + other) / 2 for one, other in zip(low, high, strict=True)]
            found = [self.improved(start, middle, SHARE_BETWEEN) for start in (late, timely)]
            kept = [x for x in found if not self.exceeded(x)]
            if kept:
                timely, high = min(kept, key=self.model.joules), middle
                best = min(best, timely, key=self.model.joules)
            else:
                late, low = found[0], middle
        return best
