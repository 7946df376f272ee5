"""Feasible assignments without branching: what a plan brings back, or everything.

They may exceed rows of time, and that of bytes written, which is treated as one of them. Local search that may not
exceed one is soon stuck, for whatever saves energy takes time elsewhere first. So the seconds of all rows of time are
charged for, at a price that rises until keeping the rows is the cheaper way (a Lagrangian relaxation); between the last
two prices a better one is looked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poet_onnx.plan import Step
from poet_onnx.scheduling.local_search import MOST_CHANGES, fitted, improve
from poet_onnx.scheduling.memory_rows import Ceilings, Row
from poet_onnx.scheduling.model import Formulation, Restores
from poet_onnx.scheduling.steps import restores_of

FIRST_PRICE = 1 / 16
"""Of the price at which all that the rows could hold costs as much as all that the model could spend."""

PRICE_RISE = 4.0

MOST_RISES = 7

BISECTIONS = 3
"""Prices between one that is too low and one that is not."""

SHARE_PER_RISE, SHARE_BETWEEN = 1 / 40, 1 / 8
"""Of all changes of restores, at each price; those of the bisection find the better plans."""


def start_from(model: Formulation, steps: Sequence[Step]) -> list[float] | None:
    """Return an assignment that brings back what a plan brings back, as far as the model has a variable for that.

    What it has none for stays in RAM, for which others may have to leave.

    Args:
        model: what to assign; the rows of time may be exceeded.
        steps: of a plan in the model's order, wherever its transfers stand.
    """
    return fitted(model, model.complete(restores_of(model, steps)))


def paged_start(model: Formulation) -> list[float] | None:
    """Return the assignment that keeps in RAM only what it must, or all there is, or None if neither can be made fit.

    What does not stay is paged in for each of its readers; without paging, it is made again.
    """
    recomputed = frozenset() if model.page_in else frozenset(model.recompute)
    for restores in (Restores(recomputed, frozenset(model.page_in)), Restores(frozenset(), frozenset())):
        x = fitted(model, model.complete(model.useful(restores)))
        if x is not None:
            return x
    return None


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
        most_changes: of restores, without a price and once it is in time.
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


def _level(rows: Sequence[Row]) -> float:
    """Return what rows could hold if every variable counted."""
    return sum(abs(term) for row in rows for term in row.terms.values())


@dataclass
class _Search:
    """Local search at prices for the rows of time.

    Attributes:
        model: with its rows of time.
        ceilings: of the model.
        end: when to stop.
        seed: of the local search.
        most_changes: of restores, without a price.
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
        for row, factor in self._rows():
            for variable, term in row.terms.items():
                cost[variable] += price * factor * term
        priced = replace(self.model, cost=cost, time=[], moved=[])
        most_changes = int(share * self.most_changes)
        return improve(priced, x, time_limit_seconds=self.left, seed=self.seed, most_changes=most_changes)

    def _rows(self) -> Iterator[tuple[Row, float]]:
        """Yield the rows that are charged for, each with what its unit is in seconds.

        All that could be written is charged for as all the time that could be spent, where there is a deadline.
        """
        for row in self.model.time:
            yield row, 1.0
        for row in self.model.moved:
            yield row, (_level(self.model.time) or 1.0) / _level([row])

    def is_late(self, x: Sequence[float]) -> bool:
        """Return whether an assignment exceeds a row of time or of bytes written."""
        return bool((self.ceilings.activity(x) > self.ceilings.limit)[self.ceilings.memory_rows :].any())

    def timely(self, late: list[float]) -> list[float] | None:
        """Return the cheapest assignment found that exceeds no row of time."""
        seconds = sum(factor * _level([row]) for row, factor in self._rows())
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
