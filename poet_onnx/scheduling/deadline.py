"""Time in the model: rows (5), the RAM that transfers occupy while they are under way.

Transfers run beside the computations on one channel; what they cannot hide makes the step wait. All that waits and
recomputes add up to may not exceed what the deadline leaves beside the computations. From that follow, without placing
a single transfer, rows that every plan within the deadline keeps: what certainly moves within a window of stages fits
in it, and a transfer that takes longer than the step may wait is in RAM while the nodes next to it run.

Two nodes: a makes k, which takes 3 s to write and 2 s to read, and b reads it 4 s later. The row of the window between
them is 3 F[k] + 2 I[k,0] <= 4 + w, where w is the longest that the step may wait.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from poet_onnx.plan.limits import ROUNDING, Limits
from poet_onnx.scheduling.liveness import Instance
from poet_onnx.scheduling.memory_rows import Row

if TYPE_CHECKING:
    from poet_onnx.scheduling.model import Formulation


@dataclass(frozen=True, slots=True)
class Timing:
    """How a model sees a deadline.

    Attributes:
        spare_seconds: what it leaves beside the computations, for recomputes and waits.
        charged: share of the transfers' time that counts as waits: 1 where they are synchronous.
        wait_seconds: the longest that the step is assumed to wait for transfers in windows and footprints; infinite if
            the time of transfers is not looked at.
        begins, ends: stages of windows, from each of the former to each of the latter, in which transfers must fit:
            from the recomputes of the first stage to those of the last one, before the node of that.
        leaves_none_out: every plan that keeps the deadline satisfies the rows.
    """

    spare_seconds: float
    charged: float = 0.0
    wait_seconds: float = 0.0
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    leaves_none_out: bool = True

    def with_windows_of(self, other: Timing) -> Timing:
        """Return this relaxation with the windows of another one too, and those between the stages of both."""
        begins, ends = {*self.begins, *other.begins}, {*self.ends, *other.ends}
        return replace(self, begins=tuple(sorted(begins)), ends=tuple(sorted(ends)))

    @property
    def windows(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last stage of each window."""
        return ((first, end) for first in self.begins for end in self.ends[bisect_left(self.ends, first) :])

    @property
    def limits_transfers(self) -> bool:
        """Return whether the time of transfers matters at all."""
        return self.charged > 0 or self.wait_seconds < float("inf")


def relaxed_timing(instance: Instance, limits: Limits) -> Timing | None:
    """Return the relaxation of a deadline, which leaves no plan out; exact where transfers are synchronous.

    None where there is no deadline.
    """
    if limits.deadline_seconds is None:
        return None
    deadline_seconds = limits.deadline_seconds
    spare = max(0.0, deadline_seconds - instance.base_seconds) + ROUNDING * deadline_seconds
    if instance.problem.costs.asynchronous:
        return Timing(spare, wait_seconds=spare)
    return Timing(spare, charged=1.0, wait_seconds=float("inf"))


def clock_seconds(instance: Instance) -> list[float]:
    """Return when each node starts if nothing is recomputed or waited for, and when the last one ends."""
    return list(accumulate(instance.seconds, initial=0.0))


def add_footprints(model: Formulation, timing: Timing) -> None:
    """Note which page-ins and page-outs are in RAM while other nodes run, and for how many stages."""
    candidates = model.candidates
    instance, costs = candidates.instance, candidates.instance.problem.costs
    clock = clock_seconds(instance)
    for value, variable in model.page_out.items():
        begin, name = instance.producer[value] + 1, instance.values[value]
        until = clock[begin] + costs.page_out[name].seconds - timing.wait_seconds
        end = begin
        while end < candidates.events[value][0].stage and clock[end] < until:
            end += 1
        if end > begin:
            model.leaving[value], model.leaving_until[value] = model.variable(binary=False), end
            for other in (variable, model.retain[value, 0]):
                model.require(model.leaving[value], other)
        for (_, index), (earliest, stage) in page_ins(model, value):
            since = clock[stage] - costs.page_in[name].seconds + timing.wait_seconds
            start = stage
            while start > earliest and clock[start] > since:
                start -= 1
            if start < stage:
                model.arrival[value, index] = start


def add_time_rows(model: Formulation, timing: Timing) -> None:
    """Add rows (5): recomputes and charged transfers within the spare time, all transfers within the deadline."""
    candidates = model.candidates
    work = {variable: candidates.units[number].seconds for (_, number), variable in model.recompute.items()}
    transfers = transfer_seconds(model)
    charged = {variable: timing.charged * seconds for variable, seconds in transfers.items() if timing.charged}
    add_row(model, {**work, **charged}, timing.spare_seconds)
    if timing.limits_transfers:
        add_row(model, transfers, model.limits.deadline_seconds or math.inf)
    clock = clock_seconds(candidates.instance)
    for first, end in timing.windows:
        outside = _work_outside(model, first, end + 1)
        inside = {**page_outs_inside(model, first, end), **page_ins_inside(model, first, end)}
        add_row(model, {**outside, **inside}, clock[end] - clock[first] + timing.wait_seconds)


def _work_outside(model: Formulation, first: int, end: int) -> dict[int, float]:
    """Return the seconds of recomputes outside a window of stages, by variable."""
    return {
        variable: model.candidates.units[number].seconds
        for (stage, number), variable in model.recompute.items()
        if not first <= stage < end
    }


def transfer_seconds(model: Formulation) -> dict[int, float]:
    """Return how long the channel is busy with each page-in and page-out, by variable."""
    instance, costs = model.candidates.instance, model.candidates.instance.problem.costs
    seconds = {
        variable: costs.page_in[instance.values[value]].seconds for (value, _), variable in model.page_in.items()
    }
    seconds.update(
        (variable, costs.page_out[instance.values[value]].seconds) for value, variable in model.page_out.items()
    )
    return seconds


def crowded_windows(model: Formulation, x: Sequence[float], timing: Timing, *, most: int = 12) -> Timing:
    """Return a relaxation of the deadline with the windows only whose transfers fit least in an assignment."""
    candidates = model.candidates
    clock = clock_seconds(candidates.instance)
    seconds = transfer_seconds(model)
    recomputed = [0.0] * len(clock)
    for (stage, number), variable in model.recompute.items():
        recomputed[stage + 1] += candidates.units[number].seconds * (x[variable] > 0.5)
    redone = list(accumulate(recomputed))
    jobs = sorted(_jobs(model, x, seconds), key=lambda job: job[1])
    crowded = []
    for first in sorted({release for release, _, _ in jobs}):
        load, worst = 0.0, (0.0, 0)
        for release, due, busy in jobs:
            if due < first:  # no window ends before it begins
                continue
            load += busy if release >= first else 0.0
            inside = redone[due + 1] - redone[first]
            room = clock[due] - clock[first] + timing.wait_seconds - (redone[-1] - inside)
            worst = max(worst, (load - room, due))
        if worst[0] > ROUNDING * (model.limits.deadline_seconds or 0.0):
            crowded.append((-worst[0], first, worst[1]))
    windows = [(first, end) for _, first, end in sorted(crowded)[:most]]
    begins, ends = (tuple(sorted({window[side] for window in windows})) for side in (0, 1))
    return replace(timing, begins=begins, ends=ends)


def _jobs(model: Formulation, x: Sequence[float], seconds: dict[int, float]) -> Iterator[tuple[int, int, float]]:
    """Yield (stage from which, stage up to which, seconds) for each transfer of an assignment."""
    for value, variable in model.page_out.items():
        stages = []
        for key, (release, stage) in page_ins(model, value):
            page_in = model.page_in[key]
            if x[page_in] > 0.5:
                stages.append(stage)
                yield release, stage, seconds[page_in]
        if stages:
            yield model.candidates.instance.producer[value] + 1, min(stages), seconds[variable]


def page_ins(model: Formulation, value: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield a value's possible page-ins: key, and the stages between which the transfer must lie."""
    release = model.candidates.instance.producer[value] + 1
    for index, event in enumerate(model.candidates.events[value]):
        if (value, index) in model.page_in:
            yield (value, index), (release, event.stage)
        if event.main:
            release = event.stage + 1


def later_page_ins(model: Formulation, value: int, stage: int) -> list[int] | None:
    """Return a value's possible page-ins that end behind a stage; None if it cannot be read back before."""
    ends = {model.page_in[key]: end for key, (_, end) in page_ins(model, value)}
    later = [page_in for page_in, end in ends.items() if end > stage]
    return later if len(later) < len(ends) else None


def page_outs_inside(model: Formulation, first: int, end: int) -> dict[int, float]:
    """Return the seconds of page-outs that certainly lie in a window: made in it, and no page-in lies behind."""
    instance = model.candidates.instance
    terms: dict[int, float] = {}
    for value, variable in model.page_out.items():
        if instance.producer[value] + 1 < first:
            continue
        seconds = instance.problem.costs.page_out[instance.values[value]].seconds
        later = later_page_ins(model, value, end)
        if later is not None:
            terms[variable] = seconds
            terms.update((page_in, -seconds) for page_in in later)
    return terms


def page_ins_inside(model: Formulation, first: int, end: int) -> dict[int, float]:
    """Return the seconds of page-ins that certainly lie in a window: possible no earlier, and due in it."""
    instance = model.candidates.instance
    return {
        model.page_in[key]: instance.problem.costs.page_in[instance.values[value]].seconds
        for value in model.page_out
        for key, (release, stage) in page_ins(model, value)
        if release >= first and stage <= end
    }


def add_row(model: Formulation, terms: dict[int, float], high: float) -> None:
    """Add a row of time, in seconds, unless it can never bind."""
    if sum(max(0.0, seconds) for seconds in terms.values()) > high:
        model.time.append(Row(terms, high=high))
