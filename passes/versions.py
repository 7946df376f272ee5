"""Versions of values: which buffer every step of a plan reads and writes, and how long each of them lives.

Rules:
    V1. A Compute step makes a new version of every value that its node produces; a page-in makes one at its start.
    V2. A read sees the newest version that began before it; a version in flight (between the two halves of its page-in)
        cannot be read.
    V3. A version lives until its last read. Reads are: inputs of a Compute, both halves of a page-out, the second half
        of a page-in.
    V4. A graph output lives to the end of the step in its original version (copy 0), whatever else is made later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from poet_onnx.description.names import RECOMPUTED
from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan import Action, Step


@dataclass(eq=False)
class Version:
    """One life of a value.

    Attributes:
        value: name of the tensor that owns the buffer.
        suffix: what distinguishes its name from the original's: "", "/recompute_1", "/page_in_2" ...
        ready: index of the step after which it can be read; None while it is in flight.
        last_read: index of the last step that reads it.
    """

    value: str
    suffix: str
    ready: int | None
    last_read: int


@dataclass
class Lives:
    """Every version that a list of steps makes.

    Attributes:
        versions: in the order they come to life.
        reads: per step, the version that it sees of every value it reads, by value.
        writes: per step, the versions that it makes (at its start, for a page-in; also at its end), by value.
    """

    versions: list[Version] = field(default_factory=list)
    reads: list[dict[str, Version]] = field(default_factory=list)
    writes: list[dict[str, Version]] = field(default_factory=list)

    def newest_live(self, index: int, other_than: Iterable[Version] = ()) -> Version | None:
        """Return the version produced last of those that are alive before and after the start of a step, or None.

        All versions are known by then: it is asked often, and looks through them from the last one that was ready.
        """
        excluded = set(map(id, other_than))
        versions, ready = self._by_ready
        for place in range(bisect_left(ready, index) - 1, -1, -1):
            if index <= versions[place].last_read and id(versions[place]) not in excluded:
                return versions[place]
        return None

    @cached_property
    def _by_ready(self) -> tuple[list[Version], list[int]]:
        """Return the versions that are ready at some time, and when, the latest last; of one step the first last."""
        found = [(version.ready, version) for version in reversed(self.versions) if version.ready is not None]
        found.sort(key=lambda pair: pair[0])
        return [version for _, version in found], [ready for ready, _ in found]


def versions_of(graph: TrainingGraph, steps: Sequence[Step]) -> Lives:
    """Find the version that every step reads and writes.

    Raises:
        CheckFailedError: if a step reads a value that is not in memory, or does not belong to the graph.
    """
    nodes = {node.name: node for node in graph.nodes if not node.view}
    kept = {graph.tensors[name].buffer_owner for name in graph.outputs}
    lives = Lives()
    current: dict[str, Version] = {}
    leaving: dict[str, Version] = {}
    page_ins: dict[str, int] = {}
    for index, step in enumerate(steps):
        reads: dict[str, Version] = {}
        writes: dict[str, Version] = {}
        if step.action is Action.COMPUTE:
            if step.subject not in nodes:
                raise CheckFailedError(
                    f"Step {index} of the plan runs '{step.subject}', which is no node of the graph."
                )
            node = nodes[step.subject]
            reads = {value: _read(current, value, index) for value in graph.transient_reads(node)}
            suffix = f"{RECOMPUTED}{step.copy}" if step.copy else ""
            for value in graph.transient_writes(node):
                last_read = len(steps) if value in kept and not step.copy else index
                writes[value] = Version(value, suffix, index, last_read)
        elif step.action is Action.PAGE_OUT_START:
            reads[step.subject] = leaving[step.subject] = _read(current, step.subject, index)
        elif step.action is Action.PAGE_OUT_END:
            if step.subject not in leaving:
                raise CheckFailedError(
                    f"Step {index} of the plan ends a page-out of '{step.subject}' that never started."
                )
            reads[step.subject] = leaving.pop(step.subject)
        elif step.action is Action.PAGE_IN_START:
            page_ins[step.subject] = page_ins.get(step.subject, 0) + 1
            version = Version(step.subject, f"/page_in_{page_ins[step.subject]}", None, index)
            writes[step.subject] = version
        else:
            in_flight = current.get(step.subject)
            if in_flight is None or in_flight.ready is not None:
                raise CheckFailedError(
                    f"Step {index} of the plan ends a page-in of '{step.subject}' that never started."
                )
            in_flight.ready = index
            reads[step.subject] = writes[step.subject] = in_flight
        for version in reads.values():
            version.last_read = max(version.last_read, index)
        current.update(writes)
        lives.versions.extend(version for version in writes.values() if step.action is not Action.PAGE_IN_END)
        lives.reads.append(reads)
        lives.writes.append(writes)
    return lives


def _read(current: dict[str, Version], value: str, index: int) -> Version:
    version = current.get(value)
    if version is None or version.ready is None:
        raise CheckFailedError(f"Step {index} of the plan reads '{value}', which is not in memory then.")
    return version
