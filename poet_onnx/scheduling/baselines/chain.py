"""The forward pass as a chain of stages, for methods that were published for chains.

The order is cut behind a forward node where one value alone crosses, that is, where some later forward node reads it:
the articulation points of Chen et al. (2016) and of the "AP" baselines of Checkmate (Jain et al. 2020, section 5). A
value that is read over more than half of the forward pass, such as an attention mask, is not counted: it stays in RAM.
Nor is one that is made of resident tensors alone, such as a transposed weight: it is made again where it is missing.
Where such cuts leave more than half of the nodes in one stage (a U-Net), every node is a stage, and all that crosses
is its checkpoint: Checkmate's "linearized" baselines. The forward pass ends with the loss; an update that stands before
it belongs to the stage where it stands. The backward pass keeps its order. Before a node of it that misses a value, the
value's stage is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from poet_onnx.graph import Phase
from poet_onnx.scheduling.baselines.horizon import find_horizon
from poet_onnx.scheduling.baselines.outcome import CannotError
from poet_onnx.scheduling.baselines.tape import Tape
from poet_onnx.scheduling.liveness import Instance

LARGEST_SHARE = 0.5
"""A stage may hold this share of the forward nodes; where one would hold more, every node is a stage.

A value that lives for a larger share of the forward pass is not counted.
"""


@dataclass(frozen=True)
class Chain:
    """A training graph as a chain.

    Attributes:
        instance: the graph, in its order.
        stages: positions of the forward nodes of each stage, neighbours in the order.
        crossing: by stage, the values from it or earlier ones that later stages read.
        boundary: those of them that a checkpoint holds.
        saved: by stage, the values that it makes and the backward pass reads.
        stays: values that are never dropped: they cannot be made again wherever they are needed, or are not counted.
        last_need: by value, the position behind which nothing may read it.
    """

    instance: Instance
    stages: tuple[range, ...]
    crossing: tuple[frozenset[int], ...]
    boundary: tuple[frozenset[int], ...]
    saved: tuple[tuple[int, ...], ...]
    stays: frozenset[int]
    last_need: tuple[int, ...]

    @property
    def turn(self) -> int:
        """Return the position of the first node behind the forward pass."""
        return self.stages[-1].stop

    def seconds(self, stage: int) -> float:
        """Return the time of a stage's forward nodes."""
        return sum(self.instance.seconds[position] for position in self.stages[stage])

    def bytes_of(self, values: frozenset[int] | tuple[int, ...]) -> int:
        """Return the bytes of values."""
        return sum(self.instance.sizes[value] for value in values)

    def grouped(self, groups: Sequence[range]) -> Chain:
        """Return the chain whose stages are neighbouring stages of this one, taken together."""
        return replace(
            self,
            stages=tuple(range(self.stages[group[0]].start, self.stages[group[-1]].stop) for group in groups),
            crossing=tuple(self.crossing[group[-1]] for group in groups),
            boundary=tuple(self.boundary[group[-1]] for group in groups),
            saved=tuple(tuple(value for stage in group for value in self.saved[stage]) for group in groups),
        )

    def sweep(self, tape: Tape, stages: range, keep: frozenset[int]) -> None:
        """Run stages, again what is needed of them, and drop what is neither to keep nor read by the stage behind."""
        for stage in stages:
            made = {value for position in self.stages[stage] for value in self.instance.writes[position]}
            if tape.has_run(self.stages[stage][0]):
                wanted = made & (self.crossing[stage] | keep)
                tape.restore(sorted(value for value in wanted if self.last_need[value] >= tape.place))
            else:
                for position in self.stages[stage]:
                    tape.run(position)
            before = self.crossing[stage - 1] if stage else frozenset()
            tape.drop((made | before) - self.crossing[stage] - keep - self.stays)

    def run_backward(self, tape: Tape, bring: Callable[[int, int], None]) -> None:
        """Run the nodes behind the forward pass.

        Args:
            tape: with the forward pass.
            bring: has in RAM what a stage saves, being told of the last stage that this node or a later one reads.
        """
        stage_of = {value: stage for stage, values in enumerate(self.saved) for value in values}
        positions = range(self.turn, len(self.instance.nodes))
        read = [max((stage_of.get(v, 0) for v in self.instance.reads[p]), default=0) for p in positions]
        furthest = list(accumulate(reversed(read), max))[::-1]
        for position in positions:
            for value in self.instance.reads[position]:
                if value not in tape.ram and value in stage_of:
                    bring(stage_of[value], furthest[position - self.turn])
            tape.run(position)


def chain_of(instance: Instance) -> Chain:
    """Return a graph as a chain.

    Raises:
        CannotError: if the forward pass is less than two nodes.
    """
    turn = 1 + max((p for p, node in enumerate(instance.nodes) if node.phase is Phase.FORWARD), default=0)
    if turn < 2:
        raise CannotError("The forward pass is less than two nodes, and no chain.")
    last_read = [max((use for use in uses if use < turn), default=-1) for uses in instance.uses]
    apart = frozenset(
        value
        for value, maker in enumerate(instance.producer)
        if maker < turn and (last_read[value] - maker > LARGEST_SHARE * turn or not instance.reads[maker])
    )
    crossing: list[frozenset[int]] = []
    alive: frozenset[int] = frozenset()
    for position in range(turn):
        alive = frozenset(v for v in (*alive, *instance.writes[position]) if last_read[v] > position)
        crossing.append(alive)
    stages = _between([p for p in range(turn - 1) if len(crossing[p] - apart) <= 1], turn)
    if max(map(len, stages)) > LARGEST_SHARE * turn:
        stages = _between(list(range(turn - 1)), turn)
    horizon = find_horizon(instance)
    made = [value for position in range(turn) for value in instance.writes[position]]
    fixed = {value for value in made if not horizon.may_leave(instance, value)}
    masks = {value for value in apart if instance.reads[instance.producer[value]]}
    saved = tuple(
        tuple(v for p in stage for v in instance.writes[p] if instance.uses[v] and instance.uses[v][-1] >= turn)
        for stage in stages
    )
    behind = tuple(crossing[stage.stop - 1] for stage in stages)
    boundary = tuple(values - apart for values in behind)
    return Chain(instance, stages, behind, boundary, saved, frozenset(fixed | masks), horizon.last_need)


def _between(cuts: list[int], turn: int) -> tuple[range, ...]:
    """Return the positions between cuts, each cut behind its position."""
    edges = [0, *(cut + 1 for cut in cuts), turn]
    return tuple(range(first, last) for first, last in pairwise(edges))
