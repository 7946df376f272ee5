"""Follow the versions of every value through the steps of a plan, and refuse a step that cannot be done.

A node that updates a value in place makes another version of it in the same buffer. What was paged out before is then
a copy of the older one. Example: a weight is paged out, updated, and paged in: that would undo the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import Node, Residency
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem

TOKEN_BYTES = 8
"""Bytes of the int64 token or ticket that ties the halves of a transfer together."""


@dataclass(eq=False)
class BufferLife:
    """One life of a buffer that holds a value: from `born` to `dies`, both indices of steps."""

    value: str
    size_bytes: int
    born: int
    dies: int
    ready: bool = True
    kept: bool = False


@dataclass
class BufferLives:
    """Versions of every value, found in one walk over the steps."""

    outputs: set[str]
    current: dict[str, BufferLife] = field(default_factory=dict)
    versions: list[BufferLife] = field(default_factory=list)
    tokens: list[BufferLife] = field(default_factory=list)
    runs: dict[str, list[int]] = field(default_factory=dict)
    stored: dict[str, BufferLife] = field(default_factory=dict)
    outdated: dict[str, str] = field(default_factory=dict)
    """The node that has updated a value since its copy in storage was made; only values with such a copy are in it."""
    leaving: dict[str, tuple[BufferLife, BufferLife]] = field(default_factory=dict)
    arriving: dict[str, BufferLife] = field(default_factory=dict)


def trace_buffers(problem: ScheduleProblem, steps: Sequence[Step]) -> BufferLives:
    """Find the versions of every value, and refuse a step that reads what is not there."""
    graph = problem.graph
    nodes = {node.name: node for node in graph.nodes if not node.view}
    liveness = BufferLives({graph.tensors[name].buffer_owner for name in graph.outputs})
    movable = [tensor for tensor in graph.tensors.values() if tensor.residency is Residency.MOVABLE]
    for tensor in movable:
        liveness.current[tensor.name] = BufferLife(tensor.name, tensor.size_bytes, 0, 0)
        liveness.versions.append(liveness.current[tensor.name])
    for index, step in enumerate(steps):
        if step.action is Action.COMPUTE:
            node = nodes.get(step.subject)
            if node is None:
                raise CheckFailedError(f"Step {index} runs node '{step.subject}', which the graph does not have.")
            _compute(problem, liveness, node, step, index)
        else:
            moved = graph.tensors.get(step.subject)
            if moved is None or not moved.may_move:
                raise CheckFailedError(
                    f"Step {index} moves '{step.subject}', which is no transient value of the graph."
                )
            if not problem.paging:
                raise CheckFailedError(f"Step {index} moves '{step.subject}' although paging is not allowed.")
            _TRANSFERS[step.action](liveness, step.subject, index, moved.size_bytes)
    for tensor in movable:
        liveness.current[tensor.name].kept = True
    unread = (token for token in liveness.tokens if token.kept)
    for version in (*unread, *(version for version in liveness.versions if version.kept)):
        version.dies = len(steps) - 1
    if liveness.leaving or liveness.arriving:
        raise CheckFailedError(
            f"The transfer of '{next(iter(liveness.leaving or liveness.arriving))}' is started but never ended."
        )
    return liveness


def _compute(problem: ScheduleProblem, liveness: BufferLives, node: Node, step: Step, index: int) -> None:
    runs = liveness.runs.setdefault(node.name, [])
    if step.copy != len(runs):
        raise CheckFailedError(
            f"Step {index} runs copy {step.copy} of node '{node.name}', but copy {len(runs)} is next."
        )
    if step.copy and not (problem.recompute and node.recomputable):
        raise CheckFailedError(f"Step {index} recomputes node '{node.name}', which must run once only.")
    runs.append(index)
    for value in problem.graph.transient_reads(node):
        _read(liveness, value, index, f"node '{node.name}'")
    for value in node.updates:
        if not problem.graph.tensors[value].resident:
            _update(liveness, value, index, node)
    for value in problem.graph.transient_writes(node):
        if value in node.updates:
            continue
        if value in liveness.leaving or value in liveness.arriving:
            raise CheckFailedError(f"Step {index} makes '{value}' anew while a transfer of it is under way.")
        kept = value in liveness.outputs and step.copy == 0
        version = BufferLife(value, problem.graph.tensors[value].size_bytes, index, index, kept=kept)
        liveness.current[value] = version
        liveness.versions.append(version)


def _update(liveness: BufferLives, value: str, index: int, node: Node) -> None:
    """Make another version of a value in its buffer; copies in storage are of the older one."""
    _read(liveness, value, index, f"node '{node.name}'")
    if value in liveness.leaving:
        raise CheckFailedError(f"Step {index} updates '{value}' while it is being paged out.")
    if value in liveness.stored:
        stored = liveness.stored.pop(value)
        stored.kept = False
        liveness.outdated[value] = node.name


def _read(liveness: BufferLives, value: str, index: int, reader: str) -> BufferLife:
    version = liveness.current.get(value)
    if version is None or not version.ready:
        raise CheckFailedError(f"Step {index}: {reader} reads '{value}', which is not in memory.")
    version.dies = index
    return version


def _page_out_start(liveness: BufferLives, value: str, index: int, _: int) -> None:
    if value in liveness.leaving:
        raise CheckFailedError(f"Step {index} pages out '{value}' while it is being paged out.")
    version = _read(liveness, value, index, "a page-out")
    token = BufferLife(value, TOKEN_BYTES, index, index)
    liveness.tokens.append(token)
    liveness.leaving[value] = (version, token)


def _page_out_end(liveness: BufferLives, value: str, index: int, _: int) -> None:
    if value not in liveness.leaving:
        raise CheckFailedError(f"Step {index} ends a page-out of '{value}' that was not started.")
    version, token = liveness.leaving.pop(value)
    version.dies = max(version.dies, index)
    synchronous = token.born == index - 1
    if synchronous:
        # One PageOut node stands for both halves: its only token is the one it leaves behind.
        liveness.tokens.remove(token)
    token.dies = index
    # The runtime frees what nobody reads only when the step is over.
    stored = BufferLife(value, TOKEN_BYTES, index, index, kept=True)
    liveness.tokens.append(stored)
    liveness.stored[value] = stored
    liveness.outdated.pop(value, None)


def _page_in_start(liveness: BufferLives, value: str, index: int, size_bytes: int) -> None:
    if value in liveness.outdated:
        raise CheckFailedError(
            f"Step {index} pages in '{value}', whose copy in storage is older than its update by node "
            f"'{liveness.outdated[value]}'."
        )
    if value not in liveness.stored:
        raise CheckFailedError(f"Step {index} pages in '{value}', which is not in storage.")
    if value in liveness.arriving:
        raise CheckFailedError(f"Step {index} pages in '{value}' while it is being paged in.")
    liveness.stored[value].dies = index
    liveness.stored[value].kept = False
    version = BufferLife(value, size_bytes, index, index, ready=False)
    ticket = BufferLife(value, TOKEN_BYTES, index, index)
    liveness.tokens.append(ticket)
    liveness.versions.append(version)
    liveness.current[value] = version
    liveness.arriving[value] = ticket


def _page_in_end(liveness: BufferLives, value: str, index: int, _: int) -> None:
    if value not in liveness.arriving:
        raise CheckFailedError(f"Step {index} ends a page-in of '{value}' that was not started.")
    ticket = liveness.arriving.pop(value)
    if ticket.born == index - 1:
        liveness.tokens.remove(ticket)
    ticket.dies = index
    version = liveness.current[value]
    version.ready = True
    version.dies = index


_TRANSFERS = {
    Action.PAGE_OUT_START: _page_out_start,
    Action.PAGE_OUT_END: _page_out_end,
    Action.PAGE_IN_START: _page_in_start,
    Action.PAGE_IN_END: _page_in_end,
}


def check_runs(problem: ScheduleProblem, runs: dict[str, list[int]]) -> None:
    """Refuse plans that leave a node out or break an order that no tensor shows."""
    graph = problem.graph
    updaters: dict[str, list[str]] = {}
    for node in graph.nodes:
        for resident in node.updates:
            updaters.setdefault(resident, []).append(node.name)
    nodes = [node for node in graph.nodes if not node.view]
    for node in nodes:
        if node.name not in runs:
            raise CheckFailedError(f"The plan never runs node '{node.name}'.")
    for node in nodes:
        original, *copies = runs[node.name]
        for earlier in node.after:
            # A view follows what it looks at, and runs at no time of its own.
            if earlier in runs and runs[earlier][0] > original:
                raise CheckFailedError(f"The plan runs node '{node.name}' before '{earlier}', which it must follow.")
        for resident in (graph.tensors[name].buffer_owner for name in node.inputs if name) if copies else ():
            for updater in updaters.get(resident, ()):
                updated = runs[updater][0]
                if updater != node.name and any((copy > updated) != (original > updated) for copy in copies):
                    raise CheckFailedError(
                        f"The plan recomputes node '{node.name}' after '{updater}' has changed '{resident}'."
                    )
