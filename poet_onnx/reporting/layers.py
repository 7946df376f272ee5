"""One way to run a training step, as columns of numbers that a page draws: steps, and blocks with their addresses."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from poet_onnx.addresses import plan_region
from poet_onnx.addresses.region import Region
from poet_onnx.graph import Node, Phase
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.record import Record
from poet_onnx.simulate import Replay, replay
from poet_onnx.simulate.blocks import Block, BlockKind
from poet_onnx.simulate.clock import Lane, spans_of

_LOADS = frozenset(("LoadStored", "GatherStored"))
"""Operators that bring what a store has into RAM as it is."""


class Fate(str, enum.Enum):
    """What becomes of a block, or why it is there; the value is the name that people read."""

    KEPT = "kept"
    PASSING = "passing"
    GRADIENT = "gradient"
    DROPPED = "dropped"
    RECOMPUTED = "recomputed"
    PAGED_OUT = "paged out"
    PAGED_IN = "paged in"
    LOADED = "loaded"
    OUTPUT = "output"
    WORKSPACE = "workspace"


MEANS: Mapping[Fate, str] = {
    Fate.KEPT: "Made by the forward pass, and kept in RAM until the backward pass has read it.",
    Fate.PASSING: "Made by the forward pass and soon used up: the backward pass does not read it.",
    Fate.GRADIENT: "Made by the backward pass, on its way to the next gradient or update.",
    Fate.DROPPED: "Given up although it is needed again: its node runs once more before that.",
    Fate.RECOMPUTED: "Made again, right before it is read: that was cheaper than to keep it.",
    Fate.PAGED_OUT: "Written to storage while it is not needed, and then out of RAM.",
    Fate.PAGED_IN: "Read back from storage, before it is needed.",
    Fate.LOADED: "Read from the store, where it lives between its uses.",
    Fate.OUTPUT: "A result of the step: it stays when the step has ended, outside of the region.",
    Fate.WORKSPACE: "What a kernel takes for itself while it runs, or a few bytes that tie a transfer together.",
}


class Steps(Record):
    """The steps of a layer, each a place in every column.

    Attributes:
        actions: what is done, as a place in `ACTIONS`.
        subjects: the node that runs, or the tensor that moves, as a place in the picture's list of these.
        copies: 0 where a node runs first, k where it runs again for the k-th time.
        starts: seconds since the training step began.
        live_bytes: transient bytes while the step runs.
    """

    actions: tuple[int, ...]
    subjects: tuple[int, ...]
    copies: tuple[int, ...]
    starts: tuple[float, ...]
    live_bytes: tuple[int, ...]


class Blocks(Record):
    """The blocks of memory of a layer, ordered by birth, each a place in every column.

    Attributes:
        born, dies: first and last step in which the block is there.
        offsets: bytes from the start of the region; -1 for what is outside of it.
        sizes: bytes.
        fates: as a place in `Fate`.
        tensors: that it holds first, as a place in the picture's list; -1 for workspace.
    """

    born: tuple[int, ...]
    dies: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    fates: tuple[int, ...]
    tensors: tuple[int, ...]


class Transfers(Record):
    """What keeps the storage busy, in the order of time, each a place in every column.

    Attributes:
        steps: that moves something.
        starts, ends: seconds since the training step began.
    """

    steps: tuple[int, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]


class Layer(Record):
    """One way to run the step.

    Attributes:
        name, means: of the layer, in words.
        transient_peak_bytes, energy_joules, seconds: predicted.
        peak_step: the first with the most bytes.
        region_bytes: that its blocks take, laid out.
        page_out_bytes, page_in_bytes, recomputed_nodes: what it does besides computing once.
    """

    name: str
    means: str
    transient_peak_bytes: int
    energy_joules: float
    seconds: float
    peak_step: int
    region_bytes: int
    page_out_bytes: int
    page_in_bytes: int
    recomputed_nodes: int
    steps: Steps
    blocks: Blocks
    transfers: Transfers


ACTIONS = tuple(Action)
FATES = tuple(Fate)


@dataclass(frozen=True)
class Places:
    """Where nodes and tensors stand in the picture's lists, by name."""

    nodes: Mapping[str, int]
    tensors: Mapping[str, int]

    @classmethod
    def of(cls, nodes: Sequence[str], tensors: Sequence[str]) -> Places:
        """Return the places of names."""
        return cls(*({name: place for place, name in enumerate(names)} for names in (nodes, tensors)))


def layer(
    problem: ScheduleProblem,
    steps: Sequence[Step],
    places: Places,
    *,
    name: str,
    means: str,
    target: str,
    known: tuple[Replay, Region | None] | None = None,
) -> Layer:
    """Return a way to run a step as a layer; of its replay and region, what is not known is made.

    Raises:
        CheckFailedError: if the steps are no valid plan of the graph.
    """
    replayed, region = known or (replay(problem, steps), None)
    region = region or plan_region(problem, steps, target)
    spans = spans_of(problem, steps)
    starts = [0.0] * len(steps)
    for span in reversed(spans):
        starts[span.step] = span.start_seconds
    moved = [span for span in spans if span.lane is Lane.STORAGE]
    for index in range(1, len(steps)):  # the end of a transfer takes no time of its own
        if steps[index].action in (Action.PAGE_OUT_END, Action.PAGE_IN_END):
            starts[index] = starts[index - 1]
    return Layer(
        name=name,
        means=means,
        **Layer.taken_over(replayed.prediction),
        peak_step=replayed.peak_step,
        region_bytes=region.region_bytes,
        steps=Steps(
            actions=tuple(ACTIONS.index(step.action) for step in steps),
            subjects=tuple(_place(step, places) for step in steps),
            copies=tuple(step.copy for step in steps),
            starts=_rounded(starts),
            live_bytes=replayed.step_bytes,
        ),
        blocks=_blocks(problem, steps, replayed, region, places),
        transfers=Transfers(
            steps=tuple(span.step for span in moved),
            starts=_rounded([span.start_seconds for span in moved]),
            ends=_rounded([span.end_seconds for span in moved]),
        ),
    )


def _place(step: Step, places: Places) -> int:
    return (places.nodes if step.action is Action.COMPUTE else places.tensors)[step.subject]


def _rounded(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return times to a nanosecond: a page of 10,000 nodes is half as long."""
    return tuple(round(each, 9) for each in seconds)


def _blocks(
    problem: ScheduleProblem, steps: Sequence[Step], replayed: Replay, region: Region, places: Places
) -> Blocks:
    fate_of = _Fates(problem, steps)
    addresses = [iter(step.blocks) for step in region.steps]
    rows = []
    for block in replayed.blocks:
        if not block.size_bytes:
            continue
        if block.kind is BlockKind.WORKSPACE:
            offset = region.steps[block.born].workspace_offset
        else:
            offset = next(addresses[block.born]).offset
        tensor = places.tensors.get(block.name, -1) if block.kind in (BlockKind.VALUE, BlockKind.TOKEN) else -1
        rows.append((block.born, block.dies, offset, block.size_bytes, FATES.index(fate_of(block)), tensor))
    columns = list(zip(*rows, strict=True)) or [()] * 6
    return Blocks(**dict(zip(Blocks.model_fields, columns, strict=True)))


class _Fates:
    """Tells what becomes of a block, by the steps that make, move and read what it holds."""

    def __init__(self, problem: ScheduleProblem, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._nodes = {node.name: node for node in problem.graph.nodes}
        self._last: dict[str, int] = {}
        """The last step that brings a value back to RAM."""
        self._outs: dict[str, int] = {}
        for index, step in enumerate(steps):
            if step.action is Action.PAGE_IN_START:
                self._last[step.subject] = index
            elif step.action is Action.PAGE_OUT_START:
                self._outs[step.subject] = index
            elif step.action is Action.COMPUTE and step.copy:
                self._last |= dict.fromkeys(problem.graph.transient_writes(self._nodes[step.subject]), index)

    def __call__(self, block: Block) -> Fate:
        if block.kind is not BlockKind.VALUE:
            return Fate.WORKSPACE
        maker = self._steps[block.born]
        if maker.action is Action.PAGE_IN_START:
            return Fate.PAGED_IN
        node = self._nodes[maker.subject]
        return next(self._made_by(block, node, is_again=maker.copy > 0))

    def _made_by(self, block: Block, node: Node, *, is_again: bool) -> Iterator[Fate]:
        """Yield what a computed block is, the most telling first."""
        if node.op_type in _LOADS:
            yield Fate.LOADED
        if block.leaves:
            yield Fate.OUTPUT
        if block.born <= self._outs.get(block.name, -1) <= block.dies:
            yield Fate.PAGED_OUT
        if is_again:
            yield Fate.RECOMPUTED
        if self._last.get(block.name, -1) > block.dies:
            yield Fate.DROPPED
        if node.phase is not Phase.FORWARD:
            yield Fate.GRADIENT
        reader = self._steps[block.dies]
        is_backward = reader.action is Action.COMPUTE and self._nodes[reader.subject].phase is not Phase.FORWARD
        yield Fate.KEPT if is_backward else Fate.PASSING
