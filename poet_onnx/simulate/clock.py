"""The clock of a replay: seconds and joules of the steps, with transfers beside them on one channel.

A node that reads a store on disk, or writes it, waits for the channel as a transfer does that the step itself makes. So
does the commit of the store, with which the step ends.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem


class Lane(str, enum.Enum):
    """Who is busy: the computing thread, or the channel to the storage."""

    COMPUTE = "compute"
    STORAGE = "storage"


class Span(NamedTuple):
    """A time in which a step keeps a lane busy.

    Attributes:
        step: index of the step.
        lane: that is busy.
        start_seconds, end_seconds: since the training step began.
    """

    step: int
    lane: Lane
    start_seconds: float
    end_seconds: float


_ENDS = {Action.PAGE_OUT_START: Action.PAGE_OUT_END, Action.PAGE_IN_START: Action.PAGE_IN_END}


def _ends_at_once(steps: Sequence[Step], index: int) -> bool:
    """Return whether the transfer that starts at an index is one node, which the computing thread carries out."""
    start, following = steps[index], steps[index + 1]
    return following.action is _ENDS[start.action] and following.subject == start.subject


def time_and_energy(problem: ScheduleProblem, steps: Sequence[Step]) -> tuple[float, float, float]:
    """Return seconds of the step, what of it the computing thread works, and joules; transfers queue on one channel."""
    return _run(problem, steps, None)


def spans_of(problem: ScheduleProblem, steps: Sequence[Step]) -> tuple[Span, ...]:
    """Return what computing thread and channel do when; steps that wait, or end a transfer, have no span of their own.

    Raises:
        CheckFailedError: if the steps move a value and there is no storage.
    """
    spans: list[Span] = []
    _run(problem, steps, spans)
    return tuple(spans)


def _run(problem: ScheduleProblem, steps: Sequence[Step], spans: list[Span] | None) -> tuple[float, float, float]:
    """Run the clock, which notes its spans where there is a list for them."""
    note = _forget if spans is None else spans.append
    costs = problem.costs
    views = [costs.nodes[node.name] for node in problem.graph.nodes if node.view]
    clock = working = sum(cost.seconds for cost in views)
    joules = sum(cost.joules for cost in views)
    channel = 0.0
    finish: dict[str, float] = {}
    for index, step in enumerate(steps):
        if step.action is Action.COMPUTE:
            cost = costs.nodes[step.subject]
            if cost.storage_seconds:
                start = max(clock, channel)
                clock = channel = start + cost.storage_seconds
                note(Span(index, Lane.STORAGE, start, clock))
            work_seconds = cost.seconds - cost.storage_seconds
            note(Span(index, Lane.COMPUTE, clock, clock + work_seconds))
            clock += work_seconds
            working += work_seconds
            joules += cost.joules
        elif step.action in (Action.PAGE_OUT_START, Action.PAGE_IN_START):
            table = costs.page_out if step.action is Action.PAGE_OUT_START else costs.page_in
            transfer = table.get(step.subject)
            if transfer is None:
                raise CheckFailedError(
                    f"The plan moves '{step.subject}', but device '{costs.device}' has no storage for it."
                )
            joules += transfer.joules
            if costs.asynchronous and not _ends_at_once(steps, index):
                clock += costs.hand_over_seconds
                working += costs.hand_over_seconds
                channel = channel if channel > clock else clock + costs.wake_seconds
                channel += transfer.seconds
                finish[step.subject] = channel
            else:
                clock = channel = max(clock, channel) + transfer.seconds
            note(Span(index, Lane.STORAGE, channel - transfer.seconds, channel))
        else:
            clock = max(clock, finish.pop(step.subject, clock))
    clock += costs.commit.seconds  # each transfer has ended
    return clock, working, joules + costs.commit.joules + costs.idle_watts * clock


def _forget(_: Span) -> None:
    """Take no note."""
