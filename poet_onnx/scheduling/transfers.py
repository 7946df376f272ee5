"""Transfers beside compute: start page-ins early and end page-outs late, as far as the budget has room.

The energy does not depend on it, so the solver leaves it out; what a transfer cannot hide is added to the step's time
by the simulator. One channel carries all transfers in the order of their starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.plan import Action, Step
from poet_onnx.problem import ScheduleProblem
from poet_onnx.simulate import TOKEN_BYTES, replay


@dataclass
class _Transfer:
    """A transfer between two boundaries; boundary b lies before the b-th computation.

    Attributes:
        value: name of what moves.
        seconds: how long the channel is busy with it.
        size_bytes: of the value.
        start, end: boundaries.
        bound: the boundary that `end` of a page-out must not pass, where its value is made or paged in again; for a
            page-in, the boundary that `start` must not precede.
        held_from: for a page-out, the computation at which the value would die if it were not being written.
    """

    value: str
    seconds: float
    size_bytes: int
    start: int
    end: int
    bound: int = 0
    held_from: int = 0


def overlap(problem: ScheduleProblem, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with transfers spread over the computations that can hide them."""
    if not problem.costs.asynchronous or all(step.action is Action.COMPUTE for step in steps):
        return tuple(steps)
    computations = [step for step in steps if step.action is Action.COMPUTE]
    outs, ins = _collect(problem, steps)
    room = _room(problem, steps, len(outs) + len(ins))
    clock = [0.0]
    for step in computations:
        clock.append(clock[-1] + problem.costs.nodes[step.subject].seconds)
    _delay_ends(outs, ins, clock, room)
    _advance_starts(outs, ins, clock, room)
    return _weave(computations, outs, ins)


def _room(problem: ScheduleProblem, steps: Sequence[Step], transfers: int) -> list[float]:
    """Return the free bytes during each computation, tokens of all transfers set aside."""
    unlimited = ScheduleProblem(problem.graph, problem.costs, None, None, problem.recompute, problem.paging)
    levels = replay(unlimited, steps).step_bytes
    budget = float("inf") if problem.budget_bytes is None else problem.budget_bytes - 2 * TOKEN_BYTES * transfers
    return [budget - level for level, step in zip(levels, steps, strict=True) if step.action is Action.COMPUTE]


def _collect(problem: ScheduleProblem, steps: Sequence[Step]) -> tuple[list[_Transfer], list[_Transfer]]:
    """Return page-outs and page-ins in order, with the boundaries that their values' other uses set."""
    graph, costs = problem.graph, problem.costs
    nodes = {node.name: node for node in graph.nodes}
    outs: list[_Transfer] = []
    ins: list[_Transfer] = []
    leaving: dict[str, _Transfer] = {}
    last_read: dict[str, int] = {}
    boundary, last = 0, sum(1 for step in steps if step.action is Action.COMPUTE)
    for step in steps:
        name = step.subject
        if step.action is Action.COMPUTE:
            for value in graph.reads(nodes[name]):
                last_read[value] = boundary
                if value in leaving:
                    leaving[value].held_from = boundary
            for value in graph.writes(nodes[name]):
                last_read[value] = boundary
                if value in leaving:
                    leaving.pop(value).bound = boundary
            boundary += 1
        elif step.action is Action.PAGE_OUT_START:
            size = graph.tensors[name].size_bytes
            held = last_read[name]
            leaving[name] = _Transfer(name, costs.page_out[name].seconds, size, boundary, boundary, last, held)
            outs.append(leaving[name])
        elif step.action is Action.PAGE_IN_START:
            size = graph.tensors[name].size_bytes
            bound = last_read[name] + 1
            ins.append(_Transfer(name, costs.page_in[name].seconds, size, boundary, boundary, bound=bound))
            if name in leaving:
                leaving.pop(name).bound = boundary
    return outs, ins


def _delay_ends(outs: list[_Transfer], ins: list[_Transfer], clock: list[float], room: list[float]) -> None:
    """Move each page-out's end to where its write is done, or as far as memory lets it."""
    channel = stalled = 0.0
    for out in outs:
        channel = max(channel, clock[out.start] + stalled) + out.seconds
        while out.end < out.bound and clock[out.end] + stalled < channel:
            dead = range(max(out.held_from, out.end), out.end + 1)
            if any(room[step] < out.size_bytes for step in dead):
                break
            out.end += 1
        for step in range(max(out.held_from, out.start), out.end):
            room[step] -= out.size_bytes
        stalled += max(0.0, channel - clock[out.end] - stalled)
        for arrival in ins:
            if arrival.value == out.value and arrival.start >= out.end:
                arrival.bound = max(arrival.bound, out.end)


def _advance_starts(outs: list[_Transfer], ins: list[_Transfer], clock: list[float], room: list[float]) -> None:
    """Move each page-in's start to where the channel must begin it, latest reader first."""
    channel = float("inf")
    for arrival in reversed(ins):
        begin = min(channel, clock[arrival.end]) - arrival.seconds
        while (
            arrival.start > arrival.bound
            and clock[arrival.start] > begin
            and room[arrival.start - 1] >= arrival.size_bytes
        ):
            arrival.start -= 1
            room[arrival.start] -= arrival.size_bytes
        channel = min(channel, clock[arrival.start])


def _weave(computations: Sequence[Step], outs: Sequence[_Transfer], ins: Sequence[_Transfer]) -> tuple[Step, ...]:
    """Put the halves of all transfers back between the computations; halves at one boundary stay side by side."""
    boundaries: list[list[Step]] = [[] for _ in range(len(computations) + 1)]
    for out in outs:
        boundaries[out.start].append(Step(Action.PAGE_OUT_START, out.value))
        if out.end == out.start:
            boundaries[out.end].append(Step(Action.PAGE_OUT_END, out.value))
    for out in outs:
        if out.end > out.start:
            boundaries[out.end].append(Step(Action.PAGE_OUT_END, out.value))
    for arrival in sorted(ins, key=lambda item: item.start):
        boundaries[arrival.start].append(Step(Action.PAGE_IN_START, arrival.value))
        if arrival.end == arrival.start:
            boundaries[arrival.end].append(Step(Action.PAGE_IN_END, arrival.value))
    for arrival in ins:
        if arrival.end > arrival.start:
            boundaries[arrival.end].append(Step(Action.PAGE_IN_END, arrival.value))
    steps: list[Step] = []
    for boundary, computation in zip(boundaries, [*computations, None], strict=True):
        steps.extend(boundary)
        if computation is not None:
            steps.append(computation)
    return tuple(steps)
