"""The blocks of memory that a plan's steps allocate: who is born when, who takes over whose buffer, who dies when."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from poet_onnx.graph import Node
from poet_onnx.operators import ALLOCATION_ORDERS, KNOWN_DOMAINS
from poet_onnx.plan import Action, Step
from poet_onnx.problem import ScheduleProblem
from poet_onnx.simulate.versions import Lives, Version


class BlockKind(str, enum.Enum):
    """What a block of memory holds."""

    VALUE = "value"
    TOKEN = "token"
    WORKSPACE = "workspace"


class Block(NamedTuple):
    """A piece of memory that the runtime allocates in one step and frees after a later one.

    Attributes:
        born, dies: first and last step in which it is there, as indices.
        size_bytes: as the allocator is asked for it.
        kind: what it holds.
        name: of the value (of the first one, where others take over the buffer), of the value that a token stands for,
            or of the node whose workspace it is.
        leaves: it is a graph output, which outlives the steps and belongs to the caller.
    """

    born: int
    dies: int
    size_bytes: int
    kind: BlockKind
    name: str
    leaves: bool = False


def find_blocks(problem: ScheduleProblem, steps: Sequence[Step], lives: Lives) -> tuple[Block, ...]:
    """Return the blocks of all steps, ordered by birth, those of one step in the order in which its kernel asks for them.

    An output that takes over the buffer of an input is no block of its own: it lengthens the life of that one. The
    workspace of a step comes last; the scratch that a recomputed node is given for its state belongs to it.
    """
    nodes = {node.name: node for node in problem.graph.nodes}
    made = _by_step(lives.versions, len(steps), lambda version: version.born)
    dying = _by_step(lives.versions, len(steps), lambda version: version.dies)
    tokens = _by_step(lives.tokens, len(steps), lambda token: token.born)
    blocks: list[Block] = []
    place: dict[Version, int] = {}
    for index, step in enumerate(steps):
        heirs: dict[Version, Version] = {}
        workspace = 0
        if step.action is Action.COMPUTE:
            node = nodes[step.subject]
            workspace = problem.costs.nodes[node.name].workspace_bytes
            workspace += problem.graph.scratch_bytes(node) if step.copy else 0
            heirs = _heirs(problem, node, made[index], dying[index])
            made[index] = _as_allocated(node, made[index])
        for version in made[index]:
            if version in heirs:
                place[version] = at = place[heirs[version]]
                blocks[at] = blocks[at]._replace(dies=version.dies)
                continue
            place[version] = len(blocks)
            kind, leaves = BlockKind.VALUE, version.kept
            blocks.append(Block(index, version.dies, version.size_bytes, kind, version.value, leaves))
        for token in tokens[index]:
            blocks.append(Block(index, token.dies, token.size_bytes, BlockKind.TOKEN, token.value))
        if workspace:
            blocks.append(Block(index, index, workspace, BlockKind.WORKSPACE, step.subject))
    return tuple(blocks)


def live_bytes(blocks: Sequence[Block], steps: int) -> tuple[int, ...]:
    """Return the bytes of the blocks that are there in each of so many steps."""
    change = [0] * (steps + 1)
    for block in blocks:
        change[block.born] += block.size_bytes
        change[block.dies + 1] -= block.size_bytes
    return tuple(accumulate(change[:steps]))


def _by_step(versions: Sequence[Version], steps: int, step_of: Callable[[Version], int]) -> list[list[Version]]:
    found: list[list[Version]] = [[] for _ in range(steps)]
    for version in versions:
        found[step_of(version)].append(version)
    return found


def _as_allocated(node: Node, made: list[Version]) -> list[Version]:
    """Return what a node makes in the order in which its kernel asks for the buffers."""
    order = ALLOCATION_ORDERS.get(node.op_type)
    if order is None or node.domain not in KNOWN_DOMAINS:
        return made
    names = [node.outputs[index] for index in order if index < len(node.outputs)]
    return sorted(made, key=lambda version: names.index(version.value))


def _heirs(
    problem: ScheduleProblem, node: Node, made: Sequence[Version], dying: Sequence[Version]
) -> dict[Version, Version]:
    """Return which outputs take over the buffer of an input that dies here, as the runtime's memory planner does it.

    The rule is ONNX Runtime's (`FindReusableInput` in allocation_planner.cc): the kernel permits it and both sizes are
    equal, which `Node.inplace` says, nothing else will read the input's buffer, and the caller does not own it.
    """
    heirs: dict[Version, Version] = {}
    if not node.inplace or not made:
        return heirs
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
                heirs[heir] = free.pop(storage)
                break
    return heirs
