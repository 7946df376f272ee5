"""From the solver's decisions to the steps of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poet_onnx.plan import Action, Step
from poet_onnx.scheduling.formulation import Formulation


def to_steps(model: Formulation, x: Sequence[float]) -> tuple[Step, ...]:
    """Return the steps that an assignment describes, each transfer's halves side by side.

    A value is paged out right after it is made, and paged in right before its first reader of the stage.
    """
    instance, candidates = model.candidates.instance, model.candidates
    leaving: dict[int, list[int]] = {}
    for value, variable in model.page_out.items():
        if x[variable] > 0.5:
            leaving.setdefault(instance.producer[value], []).append(value)
    arriving: dict[int, list[int]] = {}
    for (value, index), variable in model.page_in.items():
        if x[variable] > 0.5:
            arriving.setdefault(candidates.events[value][index].stage, []).append(value)
    copies = [0] * len(instance.nodes)
    steps: list[Step] = []
    for stage, node in enumerate(instance.nodes):
        pending = sorted(arriving.get(stage, []))
        for number in candidates.slots[stage]:
            if x[model.recompute[stage, number]] < 0.5:
                continue
            unit = candidates.units[number]
            steps.extend(_page_in(model, [value for value in pending if value in unit.inputs]))
            pending = [value for value in pending if value not in unit.inputs]
            for position in unit.nodes:
                copies[position] += 1
                steps.append(Step(Action.COMPUTE, instance.nodes[position].name, copies[position]))
        steps.extend(_page_in(model, pending))
        steps.append(Step(Action.COMPUTE, node.name))
        for value in leaving.get(stage, ()):
            name = instance.values[value]
            steps.extend((Step(Action.PAGE_OUT_START, name), Step(Action.PAGE_OUT_END, name)))
    return tuple(steps)


def _page_in(model: Formulation, values: Sequence[int]) -> Iterator[Step]:
    for value in values:
        name = model.candidates.instance.values[value]
        yield Step(Action.PAGE_IN_START, name)
        yield Step(Action.PAGE_IN_END, name)
