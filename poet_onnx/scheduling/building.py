"""Builds the model of `formulation` from an instance, a budget and a view of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poet_onnx.scheduling.candidates import Event, find_candidates
from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.instance import Instance
from poet_onnx.scheduling.memory import Row
from poet_onnx.scheduling.residency import TOKEN_BYTES_EACH, memory_rows
from poet_onnx.scheduling.timing import Timing, add_footprints, add_time_rows

TOKENS_SHARE = 0.05
"""Of the budget, for the tokens of all transfers that there could be, before they are counted one by one."""


def formulate(
    instance: Instance,
    budget_bytes: int,
    timing: Timing | None = None,
    *,
    may_count_all: bool = True,
) -> Formulation:
    """Build the model for a budget and a deadline.

    Room is set aside for small values, which stay in RAM, and for the tokens of all transfers that there could be.
    Where what must always be in RAM then exceeds the budget, small values are kept no longer than the graph needs them;
    then nothing is recomputed, for whatever may be recomputed later cannot give its buffer away before. Where that does
    not do either, or tokens would take TOKENS_SHARE of the budget, each value and each token is counted by itself, with
    more variables and longer rows, for which the solver takes several times as long.

    Args:
        instance: the ordered problem; its own budget and deadline are not looked at.
        budget_bytes: bound on the transient peak.
        timing: how the model sees the deadline; None for none.
        may_count_all: whether the last of these may be done.
    """
    paging = replace(instance, problem=replace(instance.problem, recompute=False))
    tokens_bytes = TOKEN_BYTES_EACH * len(instance.values) if instance.problem.paging else 0
    is_crowded = may_count_all and tokens_bytes > TOKENS_SHARE * budget_bytes
    model = _formulate(instance, budget_bytes, timing, counts_all=is_crowded)
    for counts_all in range(is_crowded, may_count_all + 1):
        for source in (instance, paging) if instance.problem.paging else (instance,):
            if model.memory.fixed_bytes <= budget_bytes:
                return model
            model = _formulate(source, budget_bytes, timing, lengthen=False, counts_all=bool(counts_all))
    return model


def _formulate(
    instance: Instance, budget_bytes: int, timing: Timing | None, *, lengthen: bool = True, counts_all: bool
) -> Formulation:
    is_timed = timing is not None and timing.limits_transfers
    candidates = find_candidates(
        instance,
        budget_bytes,
        longest_seconds=float("inf") if timing is None else timing.spare_seconds,
        # Where only the time of transfers could speak for a recompute, a model that leaves plans out leaves it out too.
        prune=not (timing is not None and is_timed and timing.leaves_none_out and instance.problem.costs.asynchronous),
        time_matters=is_timed,
        lengthen=lengthen,
        small_share=0.0 if counts_all else None,
    )
    deadline_seconds = None if timing is None else timing.deadline_seconds
    model = Formulation(candidates, budget_bytes, deadline_seconds)
    model.proves = timing is None or timing.leaves_none_out
    _add_variables(model)
    _add_supply_rows(model)
    _add_just_in_time_rows(model)
    if timing is not None:
        add_footprints(model, timing)
        add_time_rows(model, timing)
    _add_fetch_rows(model)
    model.memory = memory_rows(model, counts_tokens=counts_all)
    return model


def _add_variables(model: Formulation) -> None:
    candidates = model.candidates
    instance, costs = candidates.instance, candidates.instance.problem.costs
    idle = costs.idle_watts
    for stage, slots in enumerate(candidates.slots):
        for number in slots:
            unit = candidates.units[number]
            model.recompute[stage, number] = model.variable(unit.joules + idle * unit.seconds)
    waits = 0.0 if costs.asynchronous else idle
    for value, events in candidates.events.items():
        name = instance.values[value]
        pageable = instance.problem.paging and name in costs.page_out and name in costs.page_in
        present_at = instance.producer[value]
        for index, event in enumerate(events):
            model.retain[value, index] = model.variable()
            used = event.main or bool(event.readers)
            if pageable and used and (event.stage > present_at + 1 or candidates.slots[event.stage]):
                cost = costs.page_in[name]
                model.page_in[value, index] = model.variable(cost.joules + waits * cost.seconds)
            if event.main:
                present_at = event.stage
            elif event.readers:
                for place in range(len(event.readers)):
                    model.needed[value, index, place] = model.variable(binary=False)
        if any((value, index) in model.page_in for index in range(len(events))):
            cost = costs.page_out[name]
            model.page_out[value] = model.variable(cost.joules + waits * cost.seconds)


def _add_supply_rows(model: Formulation) -> None:
    candidates = model.candidates
    for value, events in candidates.events.items():
        for index, event in enumerate(events):
            supply = {model.retain[value, index]: 1.0}
            if (value, index) in model.page_in:
                supply[model.page_in[value, index]] = 1.0
                model.rows.append(Row({model.page_in[value, index]: 1.0, model.page_out[value]: -1.0}, high=0.0))
            own = model.own(event.stage, event)
            if own is not None:
                supply[own] = 1.0
            if event.main:
                model.rows.append(Row(supply, low=1.0, high=1.0))
                continue
            slots = candidates.slots[event.stage]
            readers = [model.recompute[event.stage, slots[slot]] for slot in event.readers]
            for reader in readers:
                model.rows.append(Row({**supply, reader: -1.0}, low=0.0))
            following = model.retain.get((value, index + 1))
            if following is not None:
                model.rows.append(Row({**supply, following: -1.0}, low=0.0))
            needed = [model.needed[value, index, place] for place in range(len(readers))]
            behind = [*needed[1:], following][: len(needed)]
            for flag, reader, later in zip(needed, readers, behind, strict=True):
                model.require(flag, reader)
                if later is not None:
                    model.require(flag, later)
            if needed and own is not None:
                model.require(needed[0], own)


def _add_fetch_rows(model: Formulation) -> None:
    """Say, for page-ins that need not come before all other slots of their stage, by which reader they have come."""
    candidates = model.candidates
    for (value, index), page_in in model.page_in.items():
        event = candidates.events[value][index]
        if (value, index) in model.arrival or not _comes_late(event):
            continue
        slots = candidates.slots[event.stage]
        needed = [model.needed.get((value, index, place)) for place in range(len(event.readers))]
        behind = [*needed[1:], model.retain.get((value, index + 1))]
        before: int | None = None
        for place, (slot, later) in enumerate(zip(event.readers, behind, strict=True)):
            here = model.fetched[value, index, place] = model.variable(binary=False)
            reader = model.recompute[event.stage, slots[slot]]
            model.rows.append(Row({here: 1.0, page_in: -1.0, reader: -1.0}, low=-1.0))
            if before is not None:
                model.require(here, before)
            if not event.main:
                # What no later slot or stage needs has come by now: where it is counted, it is not counted off.
                model.require(here, page_in, unless=() if later is None else (later,))
            before = here
        if not event.main and needed[0] is not None:
            model.require(needed[0], page_in)


def _comes_late(event: Event) -> bool:
    """Return whether a slot in which a value's page-in cannot be missing may come before that page-in."""
    if event.main or not event.readers:
        return bool(event.readers)
    return len(event.readers) > 1 or (event.own is not None and event.readers[0] > event.own + 1)


def _add_just_in_time_rows(model: Formulation) -> None:
    candidates = model.candidates
    for (stage, number), variable in model.recompute.items():
        outputs = candidates.units[number].outputs
        if any(value in candidates.instance.reads[stage] for value in outputs):
            continue
        readers = {
            model.recompute[stage, other]
            for other in candidates.slots[stage]
            if any(value in candidates.units[other].inputs for value in outputs)
        }
        if (stage, number) in candidates.ahead:
            readers |= _kept_on(model, stage, outputs)
        model.rows.append(Row({variable: -1.0, **dict.fromkeys(readers, 1.0)}, low=0.0))


def _kept_on(model: Formulation, stage: int, values: Sequence[int]) -> set[int]:
    """Return the variables that keep values in RAM from a stage on."""
    return {
        model.retain[value, index + 1]
        for value in values
        for index, event in enumerate(model.candidates.events.get(value, ()))
        if event.stage == stage and (value, index + 1) in model.retain
    }
