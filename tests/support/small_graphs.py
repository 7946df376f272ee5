"""Graphs and plans that a person can read, for tests of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.plan import Action, Step


def small_graph(nodes: Sequence[tuple[str, str, dict[str, int]]], outputs: Sequence[str]) -> TrainingGraph:
    """Return a graph of (name, what it reads, bytes of what it makes); a name with a star may be recomputed."""
    tensors = {"x": Tensor("x", "FLOAT", (16,), 64, "x", Residency.RESIDENT)}
    for _, _, made in nodes:
        for name, size in made.items():
            residency = Residency.OUTPUT if name in outputs else Residency.TRANSIENT
            tensors[name] = Tensor(name, "FLOAT", (size // 4,), size, name, residency)
    found = tuple(
        Node(name.strip("*"), "Op", "", tuple(reads.split()), tuple(made), {}, Phase.FORWARD, name.endswith("*"))
        for name, reads, made in nodes
    )
    return TrainingGraph("small", found, tensors, ("x",), tuple(outputs), "small")


def steps_of(plan: str) -> tuple[Step, ...]:
    """Return the steps of a plan in short: >v starts and v> ends a page-out, <v and v< a page-in, n* recomputes."""
    steps = []
    for word in plan.split():
        if word.startswith((">", "<")):
            steps.append(Step(Action.PAGE_OUT_START if word[0] == ">" else Action.PAGE_IN_START, word[1:]))
        elif word.endswith((">", "<")):
            steps.append(Step(Action.PAGE_OUT_END if word[-1] == ">" else Action.PAGE_IN_END, word[:-1]))
        else:
            steps.append(Step(Action.COMPUTE, word, 0) if word[-1] != "*" else Step(Action.COMPUTE, word[:-1], 1))
    return tuple(steps)
