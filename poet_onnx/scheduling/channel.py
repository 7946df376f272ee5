"""Rows that tell where transfers are: which have ended, or not yet begun, when the node of some stage runs.

What waits to be written, or has begun to arrive, is in RAM meanwhile; what is certainly on its way has its bytes in the
footprints. The channel is busy with one transfer at a time, and leaves none half done for another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from poet_onnx.scheduling.candidates import Candidates
from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.memory import Row
from poet_onnx.scheduling.stays import add_stays
from poet_onnx.scheduling.timing import (
    Timing,
    add_row,
    clock_seconds,
    later_page_ins,
    page_ins,
    page_ins_inside,
    page_outs_inside,
)

MOST_PARTNERS = 24
"""Transfers, the longest of a stage, that are paired with all others."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A page-out that has ended when the node of some stage runs, or a page-in that begins behind it.

    Attributes:
        key: the value, and the event of a page-in.
        variable: of the model: 1 if it is so.
        stage: before whose node the page-out can begin at the earliest, or the page-in must have ended.
        busy_seconds: how long the channel is busy with it.
        is_certain: there is nothing to decide, for the value is read back before.
    """

    key: tuple[int, int]
    variable: int
    stage: int
    busy_seconds: float
    is_certain: bool = False


def add_places(model: Formulation, timing: Timing) -> None:
    """Add the rows of departures and arrivals, those of pairs among them, and the variables that they need."""
    if not timing.places_transfers:
        return
    delays = _Delays(model, timing)
    departures = {stage: tuple(_departing(model, stage)) for stage in sorted(timing.departures)}
    arrivals = {stage: tuple(_arriving(model, stage)) for stage in sorted(timing.arrivals)}
    for first, end in timing.windows:
        if end in departures:
            inside = {job.variable: job.busy_seconds for job in departures[end] if job.stage >= first}
        else:
            inside = page_outs_inside(model, first, end)
        if first - 1 in arrivals:
            inside.update((job.variable, job.busy_seconds) for job in arrivals[first - 1] if job.stage <= end)
        else:
            inside.update(page_ins_inside(model, first, end))
        delays.add_window(inside, first, end)
    delays.finish()
    clock, slack = clock_seconds(model.candidates.instance), timing.wait_seconds + 1e-9 * timing.deadline_seconds
    waiting = {stage: [job for job in jobs if not job.is_certain] for stage, jobs in departures.items()}
    _add_pairs(model, clock, [(clock[stage] + slack, jobs) for stage, jobs in waiting.items()])
    # Where time runs backwards, a page-in is like a page-out.
    backwards = [(slack - clock[stage + 1], jobs) for stage, jobs in arrivals.items()]
    _add_pairs(model, [-seconds for seconds in clock], backwards[::-1])
    add_stays(model)


class _Delays:
    """How late the step is when nodes begin, by recomputes and waits: variables, as shares of all that it may be.

    Waits in one window are missing in all others.
    """

    def __init__(self, model: Formulation, timing: Timing) -> None:
        self._model = model
        self._timing = timing
        self._clock = clock_seconds(model.candidates.instance)
        self._at: dict[int, int] = {}

    def add_window(self, transfers: dict[int, float], first: int, end: int) -> None:
        """Add the row that transfers fit between the node before stage `first` and the node of stage `end`."""
        terms = {**transfers, self._delay(end): -self._timing.spare_seconds}
        if first:
            terms[self._delay(first - 1)] = self._timing.spare_seconds
        add_row(self._model, terms, self._clock[end] - self._clock[first])

    def finish(self) -> None:
        """Add the rows that recomputes make the step later, and waits, by no more than it may wait."""
        model, spare = self._model, self._timing.spare_seconds
        last = len(model.candidates.instance.nodes) - 1
        waits = {self._delay(last): spare}  # less all recomputes
        stages = sorted(self._at)
        later = [{self._at[stage]: -spare} for stage in stages]
        for before, terms in zip(stages, later[1:], strict=False):
            terms[self._at[before]] = spare
        for (stage, number), variable in model.recompute.items():
            seconds = model.candidates.units[number].seconds
            later[bisect_left(stages, stage)][variable] = seconds
            waits[variable] = -seconds
        model.time.extend(Row(terms, high=0.0) for terms in later)
        add_row(model, waits, self._timing.wait_seconds)

    def _delay(self, stage: int) -> int:
        if stage not in self._at:
            self._at[stage] = self._model.variable(binary=False)
        return self._at[stage]


def _departing(model: Formulation, stage: int) -> Iterator[_Job]:
    """Yield the page-outs that have, or may have, ended when a stage's node runs."""
    instance = model.candidates.instance
    for value, variable in model.page_out.items():
        later = later_page_ins(model, value, stage)
        index = _waiting_event(model.candidates, value, stage)
        is_sure = value in model.leaving and stage < model.leaving_until[value]
        if index is not None and not is_sure:
            flag = model.unwritten[value, index, stage] = model.variable()
            moved = _unless(model, variable, (model.retain[value, index], flag))
            if later is not None:
                model.require(moved, variable, unless=later)
        elif later is not None:
            moved = _unless(model, variable, later) if later else variable
        else:
            continue
        busy = instance.problem.costs.page_out[instance.values[value]].seconds
        yield _Job((value, 0), moved, instance.producer[value] + 1, busy, is_certain=index is None)


def _arriving(model: Formulation, stage: int) -> Iterator[_Job]:
    """Yield the page-ins that may or may not have begun when a stage's node has run."""
    instance = model.candidates.instance
    for value in model.page_out:
        busy = instance.problem.costs.page_in[instance.values[value]].seconds
        for key, (release, due) in page_ins(model, value):
            if due <= stage or model.arrival.get(key, due) <= stage:
                continue
            variable = model.page_in[key]
            if release <= stage:
                model.early[(*key, stage)] = model.variable()
                variable = _unless(model, variable, (model.early[(*key, stage)],))
            yield _Job(key, variable, due, busy)


def _add_pairs(model: Formulation, clock: Sequence[float], groups: Sequence[tuple[float, Sequence[_Job]]]) -> None:
    """Add rows for pairs of jobs of which, whichever is first, the other ends too late.

    Args:
        model: takes the rows.
        clock: the time of each stage.
        groups: a time, ascending, and the jobs that may have ended by then.
    """
    times = [seconds for seconds, _ in groups]
    partners = [
        {job.key: job for job in sorted(jobs, key=lambda job: -job.busy_seconds)[:MOST_PARTNERS]} for _, jobs in groups
    ]
    known: dict[tuple[tuple[int, int], tuple[int, int]], int] = {}
    for number in range(len(groups) - 1, -1, -1):
        for job in groups[number][1]:
            for key, other in partners[number].items():
                busy = job.busy_seconds + other.busy_seconds
                if key == job.key or times[number] >= clock[other.stage] + busy:
                    continue
                latest = bisect_left(times, clock[job.stage] + busy) - 1
                while latest >= number and key not in partners[latest]:
                    latest -= 1
                if latest >= number and latest > known.get((job.key, key), -1):
                    known[job.key, key] = latest
                    known[key, job.key] = max(known.get((key, job.key), -1), number)
                    model.rows.append(Row({job.variable: 1.0, partners[latest][key].variable: 1.0}, high=1.0))


def _unless(model: Formulation, transfer: int, excuses: Sequence[int]) -> int:
    """Return a variable that is at least a transfer's, less its excuses."""
    moved = model.variable(binary=False)
    model.require(moved, transfer, unless=excuses)
    return moved


def _waiting_event(candidates: Candidates, value: int, stage: int) -> int | None:
    """Return the index of the event that a value waits for while a stage's node runs, None if that node needs it."""
    if candidates.instance.producer[value] >= stage:
        return None
    for index, event in enumerate(candidates.events[value]):
        if event.stage == stage and event.main:
            return None
        if event.stage > stage:
            return index
    return None
