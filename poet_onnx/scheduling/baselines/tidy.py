"""Drop what nothing reads: methods that work by stages or layers leave such recomputes and transfers behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem


def tidied(problem: ScheduleProblem, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return steps without recomputes and transfers whose result no later step reads.

    Args:
        problem: with the graph.
        steps: with both halves of each transfer side by side.
    """
    graph = problem.graph
    nodes = {node.name: node for node in graph.nodes}
    wanted: set[str] = set()
    wanted_in_storage: set[str] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        value = step.subject
        if step.action is Action.COMPUTE:
            node = nodes[value]
            writes = graph.transient_writes(node)
            if step.copy and not wanted.intersection(writes):
                continue
            wanted.difference_update(writes)
            wanted.update(graph.transient_reads(node))
        elif step.action is Action.PAGE_IN_END:
            if value not in wanted:
                continue
        elif step.action is Action.PAGE_IN_START:
            if not kept or kept[-1] != Step(Action.PAGE_IN_END, value):
                continue
            wanted.discard(value)
            wanted_in_storage.add(value)
        elif value not in wanted_in_storage:
            continue
        elif step.action is Action.PAGE_OUT_START:
            wanted_in_storage.discard(value)
            wanted.add(value)
        kept.append(step)
    return _numbered(reversed(kept))


def _numbered(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps with the copies of every node counted from 0 without a hole."""
    runs: Counter[str] = Counter()
    numbered = []
    for step in steps:
        copy = 0
        if step.action is Action.COMPUTE:
            copy = runs[step.subject]
            runs[step.subject] += 1
        numbered.append(replace(step, copy=copy))
    return tuple(numbered)
