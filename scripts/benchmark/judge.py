"""The judge: every method's plan goes through the same clean-up, the same transfer placement and the same simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import Action, Prediction, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.transfers import overlap
from poet_onnx.simulate import simulate


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the simulator says of a plan.

    Attributes:
        verdict: "holds", "late" (only the deadline is missed), "over budget" or "invalid".
        prediction: its figures, without the limit that it breaks; None if it is invalid.
        steps: the plan after clean-up.
    """

    verdict: str
    prediction: Prediction | None
    steps: tuple[Step, ...]


def judge(problem: ScheduleProblem, limits: Limits, steps: Sequence[Step]) -> Verdict:
    """Clean a plan up, let its transfers run beside compute where the device can, and simulate it."""
    tidied = tidy(problem, steps)
    for trial, verdict in (
        (limits, "holds"),
        (limits.without_deadline(), "late"),
        (limits.without_deadline().within(None), "over budget"),
    ):
        for candidate in (_overlapped(problem, limits, tidied), tidied):
            try:
                return Verdict(verdict, simulate(problem, candidate, trial), candidate)
            except CheckFailedError:
                continue
    return Verdict("invalid", None, tidied)


def _overlapped(problem: ScheduleProblem, limits: Limits, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    try:
        return overlap(problem, limits, steps)
    except CheckFailedError:  # the simulator will say the same of the steps as they are
        return steps


def tidy(problem: ScheduleProblem, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Drop what nothing reads: a solver that stops within its gap leaves such recomputes and transfers.

    Transfers must be synchronous, their halves side by side.
    """
    kept = list(steps)
    while True:
        useless = _useless(problem, kept)
        if not useless:
            return _renumbered(kept)
        kept = [step for index, step in enumerate(kept) if index not in useless]


def _useless(problem: ScheduleProblem, steps: Sequence[Step]) -> set[int]:
    """Return indices of recomputes and transfers whose result no later step reads."""
    graph = problem.graph
    nodes = {node.name: node for node in graph.nodes}
    wanted: set[str] = set()
    wanted_in_storage: set[str] = set()
    useless: set[int] = set()
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if step.action is Action.COMPUTE:
            node = nodes[step.subject]
            writes = graph.writes(node)
            if step.copy and not wanted.intersection(writes):
                useless.add(index)
                continue
            wanted.difference_update(writes)
            wanted.update(graph.reads(node))
        elif step.action is Action.PAGE_IN_END:
            if step.subject in wanted:
                wanted.discard(step.subject)
                wanted_in_storage.add(step.subject)
            else:
                useless.update((index - 1, index))
        elif step.action is Action.PAGE_OUT_END:
            if step.subject in wanted_in_storage:
                wanted_in_storage.discard(step.subject)
                wanted.add(step.subject)
            else:
                useless.update((index - 1, index))
    return useless


def _renumbered(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with copies of every node counted from 0 without a hole."""
    runs: dict[str, int] = {}
    numbered = []
    for step in steps:
        if step.action is Action.COMPUTE:
            copy = runs.get(step.subject, 0)
            runs[step.subject] = copy + 1
            step = Step(step.action, step.subject, copy)  # noqa: PLW2901 (the renumbered one takes its place)
        numbered.append(step)
    return tuple(numbered)
