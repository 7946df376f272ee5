"""From a schedule that keeps to the budget to one that keeps the rows of time as well: a second is given a price.

Local search that may not exceed a row of time is soon stuck, for whatever saves energy takes time elsewhere first. So
the seconds of all rows of time are charged for, at a price that rises until keeping the rows is the cheaper way (a
Lagrangian relaxation); between the last two prices a better one is looked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.memory import Ceilings
from poet_onnx.scheduling.search import MOST_CHANGES, improve

FIRST_PRICE = 1 / 16
"""Of the price at which all that the rows could hold costs as much as all that the model could spend."""

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
    x = search.improved(start, 0.0)
    if not search.is_late(x):
        return x
    timely = [one for one in (search.timely(x), start) if one is not None and not search.is_late(one)]
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

    def improved(self, x: list[float], price: float, share: float = 1.0) -> list[float]:
        """Return a cheaper assignment at a price, in joules, for each second in a row of time."""
        cost = list(self.model.cost)
        for row in self.model.time:
            for variable, seconds in row.terms.items():
                cost[variable] += price * seconds
        priced = replace(self.model, cost=cost, time=[])
        most_changes = int(share * self.most_changes)
        return improve(priced, x, time_limit_seconds=self.left, seed=self.seed, most_changes=most_changes)

    def is_late(self, x: Sequence[float]) -> bool:
        """Return whether an assignment exceeds a row of time."""
        return bool((self.ceilings.activity(x) > self.ceilings.limit)[self.ceilings.memory_rows :].any())

    def timely(self, late: list[float]) -> list[float] | None:
        """Return the cheapest assignment found that exceeds no row of time."""
        seconds = sum(abs(term) for row in self.model.time for term in row.terms.values())
        low, price = 0.0, FIRST_PRICE * sum(self.model.cost) / seconds
        for _ in range(MOST_RISES):
            found = self.improved(late, price, SHARE_PER_RISE)
            if not self.is_late(found):
                return self._between(low, price, late, found)
            late, low, price = found, price, price * PRICE_RISE
        return None

    def _between(self, low: float, high: float, late: list[float], timely: list[float]) -> list[float]:
        """Return the cheapest timely assignment at prices between that of a late one and that of a timely one."""
        best = timely
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            found = [self.improved(start, middle, SHARE_BETWEEN) for start in (late, timely)]
            kept = [x for x in found if not self.is_late(x)]
            if kept:
                timely, high = min(kept, key=self.model.joules), middle
                best = min(best, timely, key=self.model.joules)
            else:
                late, low = found[0], middle
        return best
