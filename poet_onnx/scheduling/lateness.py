"""Where the step of a placed plan waits for its channel, and since when the channel has been busy then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.plan import Action, Step
from poet_onnx.scheduling.formulation import Formulation
from poet_onnx.scheduling.instance import Instance

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Wait:
    """A wait of the step for a transfer.

    Attributes:
        seconds: how long.
        leaves: the transfer is a page-out.
        busy_since: the stage before whose node the channel began to be busy without a break.
        stage: the stage before whose node the step waits.
    """

    seconds: float
    leaves: bool
    busy_since: int
    stage: int


def late_transfers(model: Formulation, steps: Sequence[Step], *, most: int = 6) -> tuple[Pairs, Pairs]:
    """Return the departures and arrivals, as `Timing` knows them, that the longest waits of a plan suggest."""
    instance = model.candidates.instance
    waits = sorted(_waits(instance, steps), key=lambda wait: -wait.seconds)[:most]
    last = len(instance.nodes) - 1
    departures = {(wait.busy_since, min(wait.stage, last)) for wait in waits if wait.leaves}
    arrivals = {(wait.busy_since - 1, min(wait.stage, last)) for wait in waits if not wait.leaves and wait.busy_since}
    return tuple(sorted(departures)), tuple(sorted(arrivals))


def _waits(instance: Instance, steps: Sequence[Step]) -> list[_Wait]:
    costs = instance.problem.costs
    stage_of = {node.name: stage for stage, node in enumerate(instance.nodes)}
    stage, clock, channel, busy_since = 0, 0.0, 0.0, 0
    done: dict[str, tuple[float, bool, int]] = {}
    waits = []
    for step in steps:
        if step.action is Action.COMPUTE:
            clock += costs.nodes[step.subject].seconds
            stage = stage if step.copy else stage_of[step.subject] + 1
        elif step.subject in done:
            finish, leaves, since = done.pop(step.subject)
            if finish > clock + 1e-9 * instance.base_seconds:
                waits.append(_Wait(finish - clock, leaves, since, stage))
                clock = finish
        else:
            leaves = step.action is Action.PAGE_OUT_START
            if clock >= channel:
                busy_since = stage
            seconds = (costs.page_out if leaves else costs.page_in)[step.subject].seconds
            channel = max(clock, channel) + seconds
            done[step.subject] = (channel, leaves, busy_since)
    return waits
