"""Paging by free time: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning" (ASPLOS 2020).

A value may be away between two neighbouring accesses of it, the second of which lies behind where memory exceeds the
budget. With the times of a step in which everything stays (its "measured execution"),

    FT   = (time of the next access - time of the page-in) - (end of the last access + time of the page-out)
    MSPS = bytes / seconds to make the value again, from what is in RAM then

(sections 4.3 and 4.4). Values are paged in the order of their free time, as long as that is not negative: then nothing
waits. Where this does not suffice, what remains is paged or made again, whichever delays the step less: a page-in by
what its free time lacks, the next recompute being that of most MSPS (section 4.5). A value that recompute needs stays
in RAM until then, and what was to be made from a value that is made again itself takes as much longer.
"""

from __future__ import annotations

import math

import numpy as np

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling.baselines.outcome import Task
from poet_onnx.scheduling.eviction import DROPPED, STORAGE, Eviction
from poet_onnx.scheduling.liveness import Liveness
from poet_onnx.scheduling.steps import steps_of_eviction


def offer(task: Task) -> str:
    """Offer what the two rules make of the budget."""
    for budget_bytes in task.budgets():
        policy = _Policy(task, task.limits.within(budget_bytes))
        policy.page_what_is_free()
        while policy.excess_bytes > 0:
            if not policy.choose():
                return (
                    f"With all that it can page or make again, {policy.excess_bytes:,} bytes more than the budget are "
                    f"needed at node '{policy.worst_node}'."
                )
        policy.eviction.prune()
        task.offer(steps_of_eviction(policy.eviction))
    return "Its plan breaks a limit once transfers and tokens are counted."


class _Policy:
    """The values that are away so far.

    Attributes:
        eviction: intervals between accesses, and where the value is meanwhile; reruns are priced in seconds.
    """

    def __init__(self, task: Task, limits: Limits) -> None:
        lives, costs = Liveness(task.problem), task.problem.costs
        node_seconds = np.array([costs.nodes[name].seconds for name in lives.names])
        lives.rerun = np.where(np.isinf(lives.rerun), math.inf, node_seconds)
        self._lives = lives
        self._profile = lives.in_order(task.order)
        self.eviction = Eviction(self._profile, limits)
        seconds = np.array([task.problem.costs.nodes[name].seconds for name in task.order])
        self._end = np.cumsum(seconds)
        self._begin = self._end - seconds

    @property
    def excess_bytes(self) -> int:
        """Return by how much memory exceeds the budget where it is highest."""
        return int(self.eviction.excess.max(initial=0))

    @property
    def worst_node(self) -> str:
        """Return the node at which memory is highest."""
        return self._lives.names[int(self._profile.order[int(np.argmax(self.eviction.excess))])]

    def page_what_is_free(self) -> None:
        """Page values that no node will wait for, those of most free time first, while memory exceeds the budget."""
        while self.excess_bytes > 0:
            found = [(self.free_seconds(one), -one) for one in self._useful() if self._may_page(one)]
            best = max(found, default=(-1.0, 0))
            if best[0] < 0:
                return
            self.eviction.send(-best[1], STORAGE)

    def choose(self) -> bool:
        """Page the value that delays the step least, or make that of most MSPS again; return whether there is one."""
        useful = self._useful()
        paged = [(max(0.0, -self.free_seconds(one)), one) for one in useful if self._may_page(one)]
        again = [(self.msps(one), -one) for one in useful if self.eviction.rerun[one] < math.inf]
        page = min(paged, default=None)
        rerun = max(again, default=None)
        if page is None and rerun is None:
            return False
        if rerun is None or (page is not None and page[0] < self.eviction.rerun[-rerun[1]]):
            assert page is not None
            self.eviction.send(page[1], STORAGE)
        else:
            self.eviction.send(-rerun[1], DROPPED)
        return True

    def free_seconds(self, interval: int) -> float:
        """Return the free time of an interval."""
        eviction = self.eviction
        name = self._lives.values[int(eviction.value[interval])]
        costs = self._lives.problem.costs
        away = self._begin[eviction.last[interval]] - self._end[eviction.first[interval]]
        return float(away) - costs.page_in[name].seconds - costs.page_out[name].seconds

    def msps(self, interval: int) -> float:
        """Return the bytes that making a value again saves, by the second."""
        size = int(self._lives.sizes[self.eviction.value[interval]])
        return size / max(float(self.eviction.rerun[interval]), 1e-12)

    def _useful(self) -> list[int]:
        """Return the intervals of values in RAM that span the place where memory is highest."""
        eviction, count = self.eviction, self.eviction.count
        place = int(np.argmax(eviction.excess))
        spans = (eviction.first[:count] < place) & (place < eviction.last[:count]) & (eviction.placement[:count] == 0)
        return [int(interval) for interval in np.nonzero(spans)[0]]

    def _may_page(self, interval: int) -> bool:
        return bool(self._lives.page_in[self.eviction.value[interval]] < math.inf)
