"""Rows of time that are likely to matter.

Those that a placed plan shows to be missing, by where its step waits for the channel; and, before there is a plan,
those between and beside the nodes that need most RAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poet_onnx.plan import Action, Step
from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.instance import Instance
from poet_onnx.scheduling.timing import Timing

MOST_PEAKS = 12
"""Nodes between which transfers are placed before any plan has shown where they are late."""

MOST_BOTTLENECKS, BOTTLENECK_SHARE = 8, 0.75
"""Nodes that leave hardly any RAM for other values, and how much of the budget such a node needs by itself."""

MOST_BESIDE = 4
"""Nodes next to a bottleneck whose transfers are to fit between them and it, on either side."""


@dataclass(frozen=True, slots=True)
class _Move:
    """A transfer of a plan.

    Attributes:
        value: what moves.
        leaves: it is a page-out.
        stage: the stage before whose node a page-out can begin at the earliest, or a page-in must have ended.
        seconds: how long the channel is busy with it.
    """

    value: int
    leaves: bool
    stage: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Wait:
    """A wait of the step for a transfer.

    Attributes:
        seconds: how long.
        stage: before whose node.
        busy_since: the stage before whose node the channel began to be busy without a break.
        move: the transfer.
        ahead: what the channel has moved before it since then.
    """

    seconds: float
    stage: int
    busy_since: int
    move: _Move
    ahead: tuple[_Move, ...]


def rows_between_peaks(instance: Instance, budget_bytes: int, timing: Timing) -> Timing:
    """Return a view of the deadline with rows between the nodes that need most RAM, beside which little can move."""
    levels, last = instance.step_bytes(), len(instance.nodes) - 1
    peaks = [
        stage
        for stage, level in enumerate(levels)
        if level > budget_bytes and level == max(levels[max(0, stage - 1) : stage + 2])
    ]
    highest = sorted(sorted(peaks, key=lambda stage: -levels[stage])[:MOST_PEAKS])
    begins, ends = (0, *(stage + 1 for stage in highest if stage < last)), (*highest, last)
    return timing.with_rows(begins, ends, highest, highest)


def rows_beside_bottlenecks(instance: Instance, budget_bytes: int, timing: Timing) -> Timing:
    """Return a view of the deadline with rows next to the nodes that need most of the budget by themselves.

    While such a node runs hardly anything else is in RAM: what is read soon behind it is fetched in between, and what
    was made shortly before it and is read behind is stored in between; or it is made again.
    """
    made, read = _pageable_spans(instance)
    bottlenecks = _bottlenecks(instance, budget_bytes)
    begins, ends, departures, arrivals = set[int](), set[int](), set[int](), set[int]()
    for before, stage, behind in zip(
        (0, *bottlenecks), bottlenecks, (*bottlenecks[1:], len(instance.nodes) - 1), strict=False
    ):
        reads = [other for other in range(stage + 1, behind + 1) if made.get(other, stage) < stage][:MOST_BESIDE]
        if reads:
            begins.add(stage + 1)
            ends.update(reads)
            arrivals.add(stage)
        makes = [other for other in range(stage - 1, before - 1, -1) if read.get(other, stage) > stage][:MOST_BESIDE]
        if makes:
            begins.update(other + 1 for other in makes)
            ends.add(stage)
            departures.add(stage)
    return timing.with_rows(begins, ends, departures, arrivals)


def _bottlenecks(instance: Instance, budget_bytes: int) -> tuple[int, ...]:
    """Return the stages of the nodes that need most by themselves, where not all that is alive fits."""
    needs = [instance.smallest_node_bytes(stage) for stage in range(len(instance.nodes))]
    levels = instance.step_bytes()
    least = BOTTLENECK_SHARE * budget_bytes
    narrow = [stage for stage, need in enumerate(needs) if need > least and levels[stage] > budget_bytes]
    return tuple(sorted(sorted(narrow, key=lambda stage: -needs[stage])[:MOST_BOTTLENECKS]))


def _pageable_spans(instance: Instance) -> tuple[dict[int, int], dict[int, int]]:
    """Return where the earliest value that a stage reads was made, and where the last one that it makes is read.

    Of stages that read or make values that can be paged, and of these only.
    """
    made: dict[int, int] = {}
    read: dict[int, int] = {}
    problem = instance.problem
    pageable = [problem.paging and name in problem.costs.page_in for name in instance.values]
    for stage, values in enumerate(instance.reads):
        for value in filter(pageable.__getitem__, values):
            maker = instance.producer[value]
            made[stage] = min(maker, made.get(stage, maker))
            read[maker] = stage
    return made, read


def late_transfers(model: Formulation, steps: Sequence[Step], timing: Timing, *, most: int = 6) -> Timing:
    """Return a view of the deadline with the rows that the longest waits of a plan show to be missing, and no others.

    Args:
        model: what the plan was found with.
        steps: the plan, its transfers placed.
        timing: the rows of time that there are.
        most: waits whose rows are added.
    """
    missing = replace(timing, begins=(), ends=(), departures=(), arrivals=())
    found = 0
    for wait in sorted(_waits(model.candidates.instance, steps), key=lambda wait: -wait.seconds):
        missed = _rows_of(model, wait, timing)
        if missed.with_rows_of(timing) != timing:
            missing, found = missing.with_rows_of(missed), found + 1
        if found == most:
            break
    return missing


def _rows_of(model: Formulation, wait: _Wait, timing: Timing) -> Timing:
    """Return a view of the deadline with those rows only that a wait is part of."""
    moves = (*wait.ahead, wait.move)
    begins, ends = {wait.busy_since}, {wait.stage}
    departures, arrivals = set(), set()
    if any(move.leaves for move in moves):
        ends.add(_last_end(model, wait))
        departures = ends
    if not all(move.leaves for move in moves):
        begins.add(_first_start(model, wait))
        arrivals = {begin - 1 for begin in begins if begin}
    return replace(
        timing,
        begins=tuple(sorted(begins)),
        ends=tuple(sorted(ends)),
        departures=tuple(sorted(departures)),
        arrivals=tuple(sorted(arrivals)),
    )


def _last_end(model: Formulation, wait: _Wait) -> int:
    """Return the stage up to which page-outs before a wait certainly last, or that of the wait.

    What is certainly under way is no part of a row for an earlier stage, although the channel is busy with it.
    """
    moves = (*wait.ahead, wait.move)
    ends = [model.leaving_until.get(move.value, 0) for move in moves if move.leaves]
    return min(max([wait.stage, *ends]), len(model.candidates.instance.nodes) - 1)


def _first_start(model: Formulation, wait: _Wait) -> int:
    """Return since which stage page-ins before a wait are certainly under way, or the channel is busy."""
    due = {(move.value, move.stage) for move in (*wait.ahead, wait.move) if not move.leaves}
    events = model.candidates.events
    starts = [start for (value, index), start in model.arrival.items() if (value, events[value][index].stage) in due]
    return min([wait.busy_since, *starts])


def _waits(instance: Instance, steps: Sequence[Step]) -> list[_Wait]:
    moves = _moves(instance, steps)
    last = len(instance.nodes) - 1
    stage, clock, channel, busy_since = 0, 0.0, 0.0, 0
    ahead: tuple[_Move, ...] = ()
    under_way: dict[str, tuple[float, int, _Move, tuple[_Move, ...]]] = {}
    waits = []
    for number, step in enumerate(steps):
        if step.action is Action.COMPUTE:
            clock += instance.problem.costs.nodes[step.subject].seconds
            stage += not step.copy
        elif number in moves:
            if clock >= channel:
                busy_since, ahead = min(stage, last), ()
            channel = max(clock, channel) + moves[number].seconds
            under_way[step.subject] = (channel, busy_since, moves[number], ahead)
            ahead = (*ahead, moves[number])
        else:
            finish, since, move, before = under_way.pop(step.subject)
            if finish > clock + 1e-9 * instance.base_seconds:
                waits.append(_Wait(finish - clock, min(stage, last), since, move, before))
                clock = finish
    return waits


def _moves(instance: Instance, steps: Sequence[Step]) -> dict[int, _Move]:
    """Return the transfers of a plan by the positions of the steps that start them."""
    number = {name: value for value, name in enumerate(instance.values)}
    costs = instance.problem.costs
    stage = 0
    moves: dict[int, _Move] = {}
    started: dict[str, int] = {}
    for position, step in enumerate(steps):
        if step.action is Action.COMPUTE:
            stage += not step.copy
        elif step.action is Action.PAGE_OUT_START:
            value = number[step.subject]
            moves[position] = _Move(value, True, instance.producer[value] + 1, costs.page_out[step.subject].seconds)
        elif step.action is Action.PAGE_IN_START:
            started[step.subject] = position
        elif step.action is Action.PAGE_IN_END:
            value, seconds = number[step.subject], costs.page_in[step.subject].seconds
            moves[started.pop(step.subject)] = _Move(value, False, min(stage, len(instance.nodes) - 1), seconds)
    return moves
