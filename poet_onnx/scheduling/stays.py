"""What is in RAM only because of its transfer: values that wait to be written, buffers of page-ins that began early.

The variable of a stage stands for all between it and the next one that tells: what is not written at some stage was not
written before, and what has begun to arrive is there from then on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby, pairwise

from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.memory import Row, Stay


def add_stays(model: Formulation) -> None:
    """Add what the bytes of transfers under way, as the model's variables tell of them, keep in RAM."""
    for value, unwritten in groupby(sorted(model.unwritten), key=lambda key: key[0]):
        _add_unwritten(model, value, {stage: index for _, index, stage in unwritten})
    for (value, index), early in groupby(sorted(model.early), key=lambda key: key[:2]):
        _add_early(model, value, index, [stage for _, _, stage in early])


def _add_unwritten(model: Formulation, value: int, waits: dict[int, int]) -> None:
    """Keep a value in RAM from when it is made, besides what is retained of it, while it is not written.

    Args:
        model: takes the rows.
        value: what is written.
        waits: by stages that tell, ascending, the event that the value waits for.
    """
    told = list(waits)
    flags = [model.unwritten[value, index, stage] for stage, index in waits.items()]
    pending = _pending(model, value, waits, flags)
    for index, event in enumerate(model.candidates.events[value]):
        # What is read back or made anew was written before.
        for supply in (model.page_in.get((value, index)), model.own(event.stage, event)):
            if supply is not None and event.stage <= told[-1]:
                model.rows.append(Row({pending[bisect_left(told, event.stage)]: 1.0, supply: 1.0}, high=1.0))
    for number, index, span in _pieces(model, value, told):
        event = model.candidates.events[value][index]
        if event.main and (value, index) not in model.page_in and event.own is None:
            continue  # retained for certain
        kept = flags[number]
        if waits[told[number]] != index:
            kept = model.variable(binary=False)
            model.require(kept, pending[number], unless=(model.retain[value, index],))
        model.stays.append(Stay(kept, model.candidates.instance.sizes[value], *span))


def _pending(model: Formulation, value: int, waits: dict[int, int], flags: list[int]) -> dict[int, int]:
    """Return variables that say whether a value is still to be written, retained or not, and link the flags by them.

    There is one for the first stage that tells of each event that the value may wait for, by its number among those
    stages: where the event stays the same, so does whether the value is retained.
    """
    events = list(waits.values())
    changes = [number for number in range(1, len(events)) if events[number] != events[number - 1]]
    if not changes:
        pending = {0: flags[0]}
    else:
        pending = {number: model.variable(binary=False) for number in (0, *changes)}
        for number, level in pending.items():
            model.require(level, flags[number])
        for earlier, later in pairwise(pending.values()):
            model.require(earlier, later)
    for number in range(1, len(events)):
        if number in pending:
            model.require(flags[number - 1], pending[number], unless=(model.retain[value, events[number - 1]],))
        else:
            model.require(flags[number - 1], flags[number])
    return pending


_Span = tuple[int, int, int | None, int | None]


def _pieces(model: Formulation, value: int, told: list[int]) -> Iterator[tuple[int, int, _Span]]:
    """Yield, for each event and stage that tells of what leads up to it, their numbers and where a value is meanwhile.

    That is from the node of the event before, which needs it anyway if it reads it, to the slots of the event itself.
    """
    begin = max(model.candidates.instance.producer[value] + 1, model.leaving_until.get(value, 0))
    node: int | None = None
    number = 0
    for index, event in enumerate(model.candidates.events[value]):
        since = begin if node is None else node
        number = bisect_left(told, since)
        while number < len(told) and since <= event.stage:
            until = min(event.stage, told[number])
            first, end = max(begin, since), min(event.stage, until + 1)
            here = node if node is not None and since <= node else None
            there = event.stage if until == event.stage else None
            if first < end or here is not None or there is not None:
                yield number, index, (first, max(first, end), here, there)
            since, number = until + 1, number + 1
        begin, node = event.stage + 1, None if event.main else event.stage


def _add_early(model: Formulation, value: int, index: int, told: list[int]) -> None:
    """Keep a page-in's buffer in RAM from the node at which it is there until it is certainly there."""
    due = model.arrival.get((value, index), model.candidates.events[value][index].stage)
    flags = [model.early[value, index, stage] for stage in told]
    for before, after in pairwise(flags):
        model.require(after, before)
    size = model.candidates.instance.sizes[value]
    for flag, stage, following in zip(flags, told, told[1:], strict=False):
        model.stays.append(Stay(flag, size, stage + 1, following, node_stage=stage, slots_stage=following))
    model.stays.append(Stay(flags[-1], size, told[-1] + 1, due, node_stage=told[-1]))
