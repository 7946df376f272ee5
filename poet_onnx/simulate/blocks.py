"""The blocks of memory that a plan's steps allocate: who is born when, who takes over whose buffer, who dies when."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, Protocol

from poet_onnx.costing.workspace import allocation_order, workspace_parts
from poet_onnx.graph import Node
from poet_onnx.graph.operators import BUFFER
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate.versions import BufferLife, BufferLives


class BlockKind(str, enum.Enum):
    """What a block of memory holds.

    Scratch is a tensor of which nothing but its room is needed: what a recomputed node is given for its state, or a
    buffer of which it is known when the kernel asks for it. Workspace is all that a kernel takes besides, however many
    blocks it is.
    """

    VALUE = "value"
    TOKEN = "token"
    SCRATCH = "scratch"
    WORKSPACE = "workspace"


class Block(NamedTuple):
    """A piece of memory that the runtime allocates in one step and frees after a later one.

    Attributes:
        born, dies: first and last step in which it is there, as indices.
        size_bytes: as the allocator is asked for it.
        kind: what it holds.
        name: of the value (of the first one, where others take over the buffer), of the value that a token stands for,
            or of the node whose scratch or workspace it is.
        leaves: it is a graph output, which outlives the steps and belongs to the caller.
    """

    born: int
    dies: int
    size_bytes: int
    kind: BlockKind
    name: str
    leaves: bool = False


def find_blocks(problem: ScheduleProblem, steps: Sequence[Step], liveness: BufferLives) -> tuple[Block, ...]:
    """Return the blocks of all steps, ordered by birth, those of one step as its kernel asks for them, workspace last.

    An output that takes over the buffer of an input is no block of its own: it lengthens the life of that one.
    """
    nodes = {node.name: node for node in problem.graph.nodes}
    made = _by_step(liveness.versions, attrgetter("born"))
    dying = _by_step(liveness.versions, attrgetter("dies"))
    tokens = _by_step(liveness.tokens, attrgetter("born"))
    blocks: list[Block] = []
    place: dict[BufferLife, int] = {}
    for index, step in enumerate(steps):
        if step.action is not Action.COMPUTE:
            blocks += (_block_of(version, BlockKind.VALUE) for version in made[index])
            place.update((version, len(blocks) - 1) for version in made[index])  # of a page-in, the only one
            blocks += (_block_of(token, BlockKind.TOKEN) for token in tokens[index])
            continue
        node = nodes[step.subject]
        heirs = _heirs(problem, node, made[index], dying[index])
        for heir, source in heirs.items():
            place[heir] = place[source]
            blocks[place[heir]] = blocks[place[heir]]._replace(dies=heir.dies)
        for asked in _asked(problem, node, step, [version for version in made[index] if version not in heirs]):
            if isinstance(asked, BufferLife):
                place[asked] = len(blocks)
                blocks.append(_block_of(asked, BlockKind.VALUE))
            else:
                kind, size_bytes = asked
                blocks.append(Block(index, index, size_bytes, kind, node.name))
    return tuple(blocks)


class Living(Protocol):
    """What takes memory from one step to another."""

    @property
    def born(self) -> int:
        """First step, as an index."""

    @property
    def dies(self) -> int:
        """Last step."""

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes."""


def live_bytes(blocks: Iterable[Living], steps: int) -> tuple[int, ...]:
    """Return the bytes of the blocks that are there in each of so many steps."""
    change = [0] * (steps + 1)
    for block in blocks:
        change[block.born] += block.size_bytes
        change[block.dies + 1] -= block.size_bytes
    return tuple(accumulate(change[:steps]))


def _by_step(
    versions: Sequence[BufferLife], step_of: Callable[[BufferLife], int]
) -> defaultdict[int, list[BufferLife]]:
    found: defaultdict[int, list[BufferLife]] = defaultdict(list)
    for version in versions:
        found[step_of(version)].append(version)
    return found


def _block_of(version: BufferLife, kind: BlockKind) -> Block:
    leaves = kind is BlockKind.VALUE and version.kept
    return Block(version.born, version.dies, version.size_bytes, kind, version.value, leaves)


def _asked(
    problem: ScheduleProblem, node: Node, step: Step, made: Sequence[BufferLife]
) -> Iterator[BufferLife | tuple[BlockKind, int]]:
    """Yield what a node makes, scratch and workspace (with their bytes) in the order in which memory is asked for."""
    workspace_bytes = problem.costs.nodes[node.name].workspace_bytes
    for size_bytes in problem.graph.scratch_sizes(node) if step.copy else ():
        yield BlockKind.SCRATCH, size_bytes
    buffers = workspace_parts(problem.graph, node)
    if sum(buffers) > workspace_bytes:  # which was measured
        buffers = ()
    workspace_bytes -= sum(buffers)
    if order := allocation_order(node):
        asked, left = {version.value: version for version in made}, iter(buffers)
        for place in order:
            name = node.outputs[place] if BUFFER != place < len(node.outputs) else ""
            size_bytes = next(left, 0) if place == BUFFER else 0
            if size_bytes:
                yield BlockKind.SCRATCH, size_bytes
            elif name in asked:
                yield asked.pop(name)
        made = tuple(asked.values())
    yield from made
    if workspace_bytes:
        yield BlockKind.WORKSPACE, workspace_bytes


def _heirs(
    problem: ScheduleProblem, node: Node, made: Sequence[BufferLife], dying: Sequence[BufferLife]
) -> dict[BufferLife, BufferLife]:
    """Return which outputs take over the buffer of an input that dies here, as the runtime's memory planner does it.

    The rule is ONNX Runtime's (`FindReusableInput` in allocation_planner.cc): the kernel permits it and both sizes are
    equal, which `Node.inplace` says, nothing else will read the input's buffer, and the caller does not own it.
    """
    heirs: dict[BufferLife, BufferLife] = {}
    if not node.inplace or not made:
        return heirs
    tensors = problem.graph.tensors
    free = {version.value: version for version in dying if not version.kept and version not in made}
    outputs = {version.value: version for version in made}
    reads = [tensors[name].buffer_owner for name in node.inputs if name]
    for output_index, name in enumerate(node.outputs):
        heir = outputs.get(name)
        if heir is None or tensors[name].is_output:
            continue
        for source, target in node.inplace:
            if target != output_index or source >= len(node.inputs) or not node.inputs[source]:
                continue
            owner = tensors[node.inputs[source]].buffer_owner
            if reads.count(owner) == 1 and owner in free:
                heirs[heir] = free.pop(owner)
                break
    return heirs
