"""What is in RAM at each slot and each node: the terms of the memory rows (4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poet_onnx.scheduling.candidates import Candidates
from poet_onnx.scheduling.memory import MemoryBuilder, MemoryRows

if TYPE_CHECKING:
    from poet_onnx.scheduling.formulation import Formulation

TOKEN_BYTES_EACH = 16
"""Bytes set aside for the tokens of each value that is large enough to be paged."""


def memory_rows(model: Formulation, *, counts_tokens: bool = False) -> MemoryRows:
    """Return a row for each slot and node of each stage, but for those that can never bind or that another implies.

    Args:
        model: its variables.
        counts_tokens: count the tokens of values that are paged; otherwise those of all that could be are set aside.
    """
    candidates = model.candidates
    instance = candidates.instance
    always = _always_bytes(candidates, 0 if counts_tokens or not model.page_out else candidates.large_values)
    builder = MemoryBuilder(model.budget_bytes)
    at: list[list[tuple[int, int]]] = [[] for _ in instance.nodes]
    for value, events in candidates.events.items():
        _wait(model, builder, value)
        if counts_tokens and value in model.page_out:
            # They are there while the value leaves, right behind the node that makes it.
            builder.wait(model.page_out[value], TOKEN_BYTES_EACH, instance.producer[value], events[-1].stage + 1)
        for index, event in enumerate(events):
            at[event.stage].append((value, index))
    at_node: list[dict[int, float]] = [{} for _ in instance.nodes]
    for (value, index), stage in model.arrival.items():
        at_node[stage][model.page_in[value, index]] = instance.sizes[value]
    for stage, here in enumerate(at):
        builder.begin_stage()
        before, during = always[stage]
        for slot in range(len(candidates.slots[stage])):
            builder.add(_slot_terms(model, stage, slot, here), before)
        terms, own = _node_terms(model, stage, here)
        builder.add({**terms, **at_node[stage]}, during + own)
    return builder.finish()


def _wait(model: Formulation, builder: MemoryBuilder, value: int) -> None:
    """Count a value through the stages between its events: while it is retained, leaves for storage or arrives."""
    instance = model.candidates.instance
    size, begin = instance.sizes[value], instance.producer[value] + 1
    for index, event in enumerate(model.candidates.events[value]):
        if index == 0 and value in model.leaving:
            end = model.leaving_until[value]
            builder.wait(model.leaving[value], size, begin, end)
            begin = max(begin, end)
        builder.wait(model.retain[value, index], size, begin, event.stage)
        if (value, index) in model.arrival:
            # It begins while the node of that stage runs, maybe behind the stage's recomputes.
            builder.wait(model.page_in[value, index], size, model.arrival[value, index] + 1, event.stage)
        begin = event.stage + 1


def _slot_terms(model: Formulation, stage: int, slot: int, here: list[tuple[int, int]]) -> dict[int, float]:
    """Return what else may be in RAM while a unit is recomputed in a slot."""
    instance = model.candidates.instance
    number = model.candidates.slots[stage][slot]
    terms: dict[int, float] = {}
    extra = model.candidates.units[number].extra_bytes + _unread_bytes(model.candidates, stage, number, here)
    if extra:
        terms[model.recompute[stage, number]] = extra
    for value, index in here:
        for variable, share in _present(model, value, index, slot):
            terms[variable] = terms.get(variable, 0.0) + share * instance.sizes[value]
    return terms


def _unread_bytes(candidates: Candidates, stage: int, number: int, here: list[tuple[int, int]]) -> int:
    """Return the bytes of what a unit makes again although nothing reads it any more."""
    at_event = {value for value, _ in here}
    unread = (
        value
        for value in candidates.units[number].outputs
        if value not in at_event and candidates.last_alive.get(value, -1) < stage
    )
    return sum(candidates.instance.sizes[value] for value in unread)


def _node_terms(model: Formulation, stage: int, here: list[tuple[int, int]]) -> tuple[dict[int, float], int]:
    """Return what else may be in RAM while a stage's node runs, and the bytes of managed values that must be."""
    candidates = model.candidates
    instance = candidates.instance
    terms: dict[int, float] = {}
    own = instance.workspace[stage] - _shared_bytes(candidates, stage)
    own += sum(instance.sizes[value] for value in instance.writes[stage] if value in candidates.events)
    for value, index in here:
        if candidates.events[value][index].main:
            own += instance.sizes[value]
        elif (value, index + 1) in model.retain:
            terms[model.retain[value, index + 1]] = instance.sizes[value]
    return terms, own


def _present(model: Formulation, value: int, index: int, slot: int) -> list[tuple[int, int]]:
    """Return variables, each with its sign, whose sum is 1 while a value is in RAM at a slot of one of its events."""
    event = model.candidates.events[value][index]
    arrived = [(model.retain[value, index], 1)]
    if (value, index) in model.arrival:
        arrived.append((model.page_in[value, index], 1))
    own = model.own(event.stage, event)
    following = model.retain.get((value, index + 1))
    fetchable = (value, index, 0) in model.fetched
    fetched = [model.fetched[value, index, place] for place in _places_by(model, value, index, slot)]
    if event.main:
        if own is not None and event.own is not None and slot >= event.own:
            arrived.append((own, 1))
        return arrived + [(variable, 1) for variable in fetched]
    start = event.own if event.own is not None else (event.readers[0] if event.readers else None)
    if start is not None and slot < start:
        return arrived
    if own is not None and slot == event.own and (not event.readers or fetchable):
        # What its unit makes is there for a moment, even where a page-in brings it again for a later reader.
        return [*arrived, (own, 1)]
    for place, reader in enumerate(event.readers):
        if reader >= slot:
            counted = [(model.needed[value, index, place], 1)]
            if fetchable:
                counted.append((model.page_in[value, index], -1))
            return counted + [(variable, 1) for variable in fetched]
    return [] if following is None else [(following, 1)]


def _places_by(model: Formulation, value: int, index: int, slot: int) -> list[int]:
    """Return the place of the last reader at or before a slot, if the model says what is fetched by then."""
    readers = model.candidates.events[value][index].readers
    places = [place for place, reader in enumerate(readers) if reader <= slot]
    return places[-1:] if (value, index, 0) in model.fetched else []


def _always_bytes(candidates: Candidates, tokens: int) -> list[tuple[int, int]]:
    """Return, for each stage, the bytes of unmanaged values and tokens: before its node, and while it runs."""
    instance = candidates.instance
    count = len(instance.nodes)
    before = [0] * (count + 1)
    during = [0] * (count + 1)
    for value, last in candidates.last_alive.items():
        made, end = instance.producer[value], min(last, count - 1)
        during[made] += instance.sizes[value]
        during[end + 1] -= instance.sizes[value]
        if end > made:
            before[made + 1] += instance.sizes[value]
            before[end + 1] -= instance.sizes[value]
    levels, now_before, now_during = [], TOKEN_BYTES_EACH * tokens, TOKEN_BYTES_EACH * tokens
    for stage in range(count):
        now_before += before[stage]
        now_during += during[stage]
        levels.append((now_before, now_during))
    return levels


def _shared_bytes(candidates: Candidates, stage: int) -> int:
    """Return what a node's outputs certainly save by taking over inputs: those that no later event can need."""
    instance = candidates.instance
    last_use = [-1] * len(instance.values)
    for value in instance.reads[stage]:
        events = candidates.events.get(value)
        last_use[value] = events[-1].stage if events else candidates.last_alive[value]
    return instance.shared_bytes(stage, last_use)
