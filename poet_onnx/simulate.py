"""The simulator: replays a plan step by step and says what it costs, or why it cannot run.

It is the gate that every plan passes before anybody sees it, so it shares no formula with the scheduler: it follows
versions of values through the list of steps, as the runtime's allocator will.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import Node
from poet_onnx.plan import Action, Prediction, Step
from poet_onnx.problem import ScheduleProblem

TOKEN_BYTES = 8
"""Bytes of the int64 token or ticket that ties the halves of a transfer together."""


@dataclass(eq=False)
class Version:
    """One life of a value: the buffer it occupies from `born` to `dies`, both indices of steps."""

    value: str
    size_bytes: int
    born: int
    dies: int
    ready: bool = True
    kept: bool = False
    inherits: Version | None = None


@dataclass(frozen=True)
class Replay:
    """A plan replayed.

    Attributes:
        prediction: the figures of the whole step.
        step_bytes: transient bytes while each step runs.
        peak_step: index of the step with the largest of them.
        live_at_peak: (value, bytes) of what is alive there, largest first; workspace and tokens are not in it.
    """

    prediction: Prediction
    step_bytes: tuple[int, ...]
    peak_step: int
    live_at_peak: tuple[tuple[str, int], ...]


@dataclass
class _Lives:
    """Versions of every value, found in one walk over the steps."""

    outputs: set[str]
    current: dict[str, Version] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    tokens: list[Version] = field(default_factory=list)
    runs: dict[str, list[int]] = field(default_factory=dict)
    stored: dict[str, Version] = field(default_factory=dict)
    leaving: dict[str, tuple[Version, Version]] = field(default_factory=dict)
    arriving: dict[str, Version] = field(default_factory=dict)


def simulate(problem: ScheduleProblem, steps: Sequence[Step]) -> Prediction:
    """Replay steps and return what one training step costs.

    Raises:
        CheckFailedError: if the steps are no valid plan of the graph, exceed the budget or miss the deadline.
    """
    return replay(problem, steps).prediction


def replay(problem: ScheduleProblem, steps: Sequence[Step]) -> Replay:
    """Replay steps and return the memory of every one of them.

    Raises:
        CheckFailedError: as `simulate`.
    """
    lives = _follow(problem, steps)
    _check_runs(problem, lives.runs)
    step_bytes = _memory(problem, steps, lives)
    peak_step = max(range(len(steps)), key=step_bytes.__getitem__, default=0)
    at_peak = ((live.value, live.size_bytes) for live in lives.versions if live.born <= peak_step <= live.dies)
    seconds, compute_seconds, joules = _time_and_energy(problem, steps)
    graph = problem.graph
    moved = {
        action: sum(graph.tensors[step.subject].size_bytes for step in steps if step.action is action)
        for action in (Action.PAGE_OUT_START, Action.PAGE_IN_START)
    }
    prediction = Prediction(
        resident_bytes=graph.resident_bytes,
        transient_peak_bytes=step_bytes[peak_step] if steps else 0,
        energy_joules=joules,
        seconds=seconds,
        compute_seconds=compute_seconds,
        stall_seconds=seconds - compute_seconds,
        page_out_bytes=moved[Action.PAGE_OUT_START],
        page_in_bytes=moved[Action.PAGE_IN_START],
        recomputed_nodes=sum(1 for step in steps if step.action is Action.COMPUTE and step.copy),
    )
    _check_limits(problem, prediction, steps[peak_step] if steps else None)
    return Replay(prediction, tuple(step_bytes), peak_step, tuple(sorted(at_peak, key=lambda item: -item[1])))


def _check_limits(problem: ScheduleProblem, prediction: Prediction, peak: Step | None) -> None:
    budget, deadline = problem.budget_bytes, problem.deadline_seconds
    if budget is not None and prediction.transient_peak_bytes > budget:
        raise CheckFailedError(
            f"The plan needs {prediction.transient_peak_bytes:,} bytes at {peak} but the budget is {budget:,} bytes."
        )
    if deadline is not None and prediction.seconds > deadline * (1 + 1e-9):
        raise CheckFailedError(f"The plan takes {prediction.seconds:.6f} s but the deadline is {deadline:.6f} s.")


def _follow(problem: ScheduleProblem, steps: Sequence[Step]) -> _Lives:
    """Find the versions of every value, and refuse a step that reads what is not there."""
    graph = problem.graph
    nodes = {node.name: node for node in graph.nodes if not node.view}
    lives = _Lives({graph.tensors[name].storage for name in graph.outputs})
    for index, step in enumerate(steps):
        if step.action is Action.COMPUTE:
            node = nodes.get(step.subject)
            if node is None:
                raise CheckFailedError(f"Step {index} runs node '{step.subject}', which the graph does not have.")
            _compute(problem, lives, node, step, index)
        else:
            tensor = graph.tensors.get(step.subject)
            if tensor is None or tensor.resident or tensor.storage != tensor.name:
                raise CheckFailedError(
                    f"Step {index} moves '{step.subject}', which is no transient value of the graph."
                )
            if not problem.paging:
                raise CheckFailedError(f"Step {index} moves '{step.subject}' although paging is not allowed.")
            _TRANSFERS[step.action](lives, step.subject, index, tensor.size_bytes)
    unread = (token for token in lives.tokens if token.kept)
    for version in (*unread, *(version for version in lives.versions if version.kept)):
        version.dies = len(steps) - 1
    if lives.leaving or lives.arriving:
        raise CheckFailedError(
            f"The transfer of '{next(iter(lives.leaving or lives.arriving))}' is started but never ended."
        )
    return lives


def _compute(problem: ScheduleProblem, lives: _Lives, node: Node, step: Step, index: int) -> None:
    runs = lives.runs.setdefault(node.name, [])
    if step.copy != len(runs):
        raise CheckFailedError(
            f"Step {index} runs copy {step.copy} of node '{node.name}', but copy {len(runs)} is next."
        )
    if step.copy and not (problem.recompute and node.recomputable):
        raise CheckFailedError(f"Step {index} recomputes node '{node.name}', which must run once only.")
    runs.append(index)
    for value in problem.graph.reads(node):
        _read(lives, value, index, f"node '{node.name}'")
    for value in problem.graph.writes(node):
        if value in lives.leaving or value in lives.arriving:
            raise CheckFailedError(f"Step {index} makes '{value}' anew while a transfer of it is under way.")
        kept = value in lives.outputs and step.copy == 0
        version = Version(value, problem.graph.tensors[value].size_bytes, index, index, kept=kept)
        lives.current[value] = version
        lives.versions.append(version)


def _read(lives: _Lives, value: str, index: int, reader: str) -> Version:
    version = lives.current.get(value)
    if version is None or not version.ready:
        raise CheckFailedError(f"Step {index}: {reader} reads '{value}', which is not in memory.")
    version.dies = index
    return version


def _page_out_start(lives: _Lives, value: str, index: int, _: int) -> None:
    if value in lives.leaving:
        raise CheckFailedError(f"Step {index} pages out '{value}' while it is being paged out.")
    version = _read(lives, value, index, "a page-out")
    token = Version(value, TOKEN_BYTES, index, index)
    lives.tokens.append(token)
    lives.leaving[value] = (version, token)


def _page_out_end(lives: _Lives, value: str, index: int, _: int) -> None:
    if value not in lives.leaving:
        raise CheckFailedError(f"Step {index} ends a page-out of '{value}' that was not started.")
    version, token = lives.leaving.pop(value)
    version.dies = max(version.dies, index)
    synchronous = token.born == index - 1
    if synchronous:
        # One PageOut node stands for both halves: its only token is the one it leaves behind.
        lives.tokens.remove(token)
    token.dies = index
    # The runtime frees what nobody reads only when the step is over.
    stored = Version(value, TOKEN_BYTES, index, index, kept=True)
    lives.tokens.append(stored)
    lives.stored[value] = stored


def _page_in_start(lives: _Lives, value: str, index: int, size_bytes: int) -> None:
    if value not in lives.stored:
        raise CheckFailedError(f"Step {index} pages in '{value}', which is not in storage.")
    if value in lives.arriving:
        raise CheckFailedError(f"Step {index} pages in '{value}' while it is being paged in.")
    lives.stored[value].dies = index
    lives.stored[value].kept = False
    version = Version(value, size_bytes, index, index, ready=False)
    ticket = Version(value, TOKEN_BYTES, index, index)
    lives.tokens.append(ticket)
    lives.versions.append(version)
    lives.current[value] = version
    lives.arriving[value] = ticket


def _page_in_end(lives: _Lives, value: str, index: int, _: int) -> None:
    if value not in lives.arriving:
        raise CheckFailedError(f"Step {index} ends a page-in of '{value}' that was not started.")
    ticket = lives.arriving.pop(value)
    if ticket.born == index - 1:
        lives.tokens.remove(ticket)
    ticket.dies = index
    version = lives.current[value]
    version.ready = True
    version.dies = index


_TRANSFERS = {
    Action.PAGE_OUT_START: _page_out_start,
    Action.PAGE_OUT_END: _page_out_end,
    Action.PAGE_IN_START: _page_in_start,
    Action.PAGE_IN_END: _page_in_end,
}


def _check_runs(problem: ScheduleProblem, runs: dict[str, list[int]]) -> None:
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
        for resident in (graph.tensors[name].storage for name in node.inputs if name) if copies else ():
            for updater in updaters.get(resident, ()):
                updated = runs[updater][0]
                if updater != node.name and any((copy > updated) != (original > updated) for copy in copies):
                    raise CheckFailedError(
                        f"The plan recomputes node '{node.name}' after '{updater}' has changed '{resident}'."
                    )


def _memory(problem: ScheduleProblem, steps: Sequence[Step], lives: _Lives) -> list[int]:
    """Return the bytes alive during each step."""
    nodes = {node.name: node for node in problem.graph.nodes}
    born: dict[int, list[Version]] = {}
    dying: dict[int, list[Version]] = {}
    for version in lives.versions:
        born.setdefault(version.born, []).append(version)
        dying.setdefault(version.dies, []).append(version)
    tokens = _token_bytes(lives.tokens, len(steps))
    level, step_bytes = 0, list[int]()
    for index, step in enumerate(steps):
        made = born.get(index, [])
        workspace = 0
        if step.action is Action.COMPUTE:
            node = nodes[step.subject]
            workspace = problem.costs.nodes[node.name].workspace_bytes
            workspace += problem.graph.scratch_bytes(node) if step.copy else 0
            _inherit(problem, node, made, dying.get(index, []))
        level += sum(version.size_bytes for version in made if version.inherits is None)
        step_bytes.append(level + workspace + tokens[index])
        heirs = {id(version.inherits) for version in made if version.inherits is not None}
        for version in dying.get(index, []):
            if id(version) not in heirs:
                level -= version.size_bytes
    return step_bytes


def _token_bytes(tokens: Sequence[Version], count: int) -> list[int]:
    """Return the bytes of tokens alive at each of `count` steps."""
    change = [0] * (count + 1)
    for token in tokens:
        change[token.born] += token.size_bytes
        change[token.dies + 1] -= token.size_bytes
    level, levels = 0, []
    for delta in change[:count]:
        level += delta
        levels.append(level)
    return levels


def _inherit(problem: ScheduleProblem, node: Node, made: Sequence[Version], dying: Sequence[Version]) -> None:
    """Let outputs take over the buffers of inputs that die here, as the runtime's memory planner does.

    The rule is ONNX Runtime's (`FindReusableInput` in allocation_planner.cc): the kernel permits it and both sizes are
    equal, which `Node.inplace` says, nothing else will read the input's buffer, and the caller does not own it.
    """
    if not node.inplace or not made:
        return
    tensors = problem.graph.tensors
    free = {version.value: version for version in dying if not version.kept and version not in made}
    outputs = {version.value: version for version in made}
    reads = [tensors[name].storage for name in node.inputs if name]
    for output_index, name in enumerate(node.outputs):
        heir = outputs.get(name)
        if heir is None or tensors[name].is_output:
            continue
        for source, target in node.inplace:
            if target != output_index or source >= len(node.inputs) or not node.inputs[source]:
                continue
            storage = tensors[node.inputs[source]].storage
            if reads.count(storage) == 1 and storage in free:
                heir.inherits = free.pop(storage)
                break


_ENDS = {Action.PAGE_OUT_START: Action.PAGE_OUT_END, Action.PAGE_IN_START: Action.PAGE_IN_END}


def _ends_at_once(steps: Sequence[Step], index: int) -> bool:
    """Return whether the transfer that starts at an index is one node, which the computing thread carries out."""
    start, following = steps[index], steps[index + 1]
    return following.action is _ENDS[start.action] and following.subject == start.subject


def _time_and_energy(problem: ScheduleProblem, steps: Sequence[Step]) -> tuple[float, float, float]:
    """Return seconds of the step, what of it the computing thread works, and joules; transfers queue on one channel."""
    costs = problem.costs
    views = [costs.nodes[node.name] for node in problem.graph.nodes if node.view]
    clock = working = sum(cost.seconds for cost in views)
    joules = sum(cost.joules for cost in views)
    channel = 0.0
    finish: dict[str, float] = {}
    for index, step in enumerate(steps):
        if step.action is Action.COMPUTE:
            cost = costs.nodes[step.subject]
            clock += cost.seconds
            working += cost.seconds
            joules += cost.joules
        elif step.action in (Action.PAGE_OUT_START, Action.PAGE_IN_START):
            table = costs.page_out if step.action is Action.PAGE_OUT_START else costs.page_in
            transfer = table.get(step.subject)
            if transfer is None:
                raise CheckFailedError(
                    f"The plan moves '{step.subject}', but device '{costs.device}' has no storage for it."
                )
            joules += transfer.joules
            if costs.asynchronous and not _ends_at_once(steps, index):
                clock += costs.hand_over_seconds
                working += costs.hand_over_seconds
                channel = channel if channel > clock else clock + costs.wake_seconds
                channel += transfer.seconds
                finish[step.subject] = channel
            else:
                clock = channel = max(clock, channel) + transfer.seconds
        else:
            clock = max(clock, finish.pop(step.subject, clock))
    return clock, working, joules + costs.idle_watts * clock
