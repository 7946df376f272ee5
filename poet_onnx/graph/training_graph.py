"""The training graph: nodes, tensors, sizes and what lives where; extracted from an ONNX model."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

AttributeValue: TypeAlias = "int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]"


class Phase(str, enum.Enum):
    """The part of a training step that a node belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Residency(str, enum.Enum):
    """Where a tensor's bytes are before a step and after it, and whether they may leave RAM in between.

    RESIDENT: graph inputs and initializers, in RAM through the whole step.
    MOVABLE: in RAM before the step and after it; meanwhile it may be on storage.
    TRANSIENT: a node makes it for other nodes.
    OUTPUT: a node makes it, and it is in RAM after the step.
    """

    RESIDENT = "resident"
    MOVABLE = "movable"
    TRANSIENT = "transient"
    OUTPUT = "output"


class Role(str, enum.Enum):
    """What a tensor is for in a training step.

    PARAMETER: an input that is trained.
    FROZEN: an input that is a parameter and is not trained.
    MOMENT: what an optimizer keeps for a parameter, such as the mean of its gradients.
    GRADIENT_BUFFER: an input that collects the gradient of a parameter.
    STATISTIC: what the graph updates besides, such as a running mean.
    BATCH: an input that each batch fills.
    LABEL: an input of a batch that the loss holds an output against.
    FLAG: an input that says whether gradients start anew.
    RATES: an input with the numbers of an update, such as the learning rate.
    RUNS: an input that counts how often the graph has run.
    HANDLE: an input that tells which parameter in a store on disk is meant.
    CONSTANT: an initializer that nobody updates.
    INTERMEDIATE: what a node makes.
    """

    PARAMETER = "parameter"
    FROZEN = "frozen parameter"
    MOMENT = "moment"
    GRADIENT_BUFFER = "gradient buffer"
    STATISTIC = "statistic"
    BATCH = "batch"
    LABEL = "label"
    FLAG = "flag"
    RATES = "rates"
    RUNS = "runs"
    HANDLE = "handle"
    CONSTANT = "constant"
    INTERMEDIATE = "intermediate"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph.

    Attributes:
        name: its name in the model.
        dtype: ONNX element type name, such as "FLOAT".
        shape: dimensions.
        size_bytes: bytes of its elements.
        buffer_owner: name of the tensor whose buffer holds it: its own name, unless it is a view or written in place.
            Then it has no bytes of its own, and is where that tensor is.
        residency: where it is before and after the step.
        role: what it is for: inputs say it where they are made, and a node makes what is intermediate.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    buffer_owner: str
    residency: Residency = Residency.TRANSIENT
    role: Role = Role.INTERMEDIATE

    @property
    def resident(self) -> bool:
        """Return whether its bytes are in RAM through the whole step, whatever the plan."""
        return self.residency is Residency.RESIDENT

    @property
    def may_move(self) -> bool:
        """Return whether it has bytes of its own that may be on storage for a while."""
        return not self.resident and self.buffer_owner == self.name

    @property
    def is_output(self) -> bool:
        """Return whether the step makes it and must leave it in RAM."""
        return self.residency is Residency.OUTPUT


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph.

    Attributes:
        name: unique, never empty.
        op_type, domain: the operator.
        inputs, outputs: tensor names in the operator's order, "" where an optional one is absent.
        attributes: the operator's numbers, strings and lists of them by name; tensors and graphs are left out.
        phase: part of the step.
        recomputable: running it again gives the same bits and changes no state.
        view: its outputs share its first input's buffer: no bytes, no work.
        updates: resident tensors that it writes in place.
        inplace: (input index, output index) pairs of equal size of which the runtime lets the output take the buffer of
            an input that dies.
        after: names of nodes that must run before it although no tensor says so (a buffer's readers and writers).
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    phase: Phase
    recomputable: bool
    view: bool = False
    updates: tuple[str, ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingGraph:
    """A training graph with every size known; nodes in file order.

    Attributes:
        name: of the model's graph.
        nodes: in file order.
        tensors: by name; every name in `nodes` except "" is there.
        inputs, outputs: graph inputs and graph outputs, in the model's order.
        fingerprint: SHA-256 over everything a plan depends on, as hex.
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fingerprint: str

    @property
    def resident_bytes(self) -> int:
        """Return the bytes that are in RAM through the whole step, whatever the plan."""
        return sum(tensor.size_bytes for tensor in self.tensors.values() if tensor.resident)

    @property
    def gradient_buffers(self) -> frozenset[str]:
        """Return the names of the buffers that gradients are accumulated in."""
        return frozenset(name for name, tensor in self.tensors.items() if tensor.role is Role.GRADIENT_BUFFER)

    @property
    def gradient_buffer_bytes(self) -> int:
        """Return the bytes of the buffers that gradients are accumulated in, a part of the resident bytes."""
        return sum(self.tensors[name].size_bytes for name in self.gradient_buffers)

    def nodes_beyond(self, other: TrainingGraph) -> list[Node]:
        """Return the nodes that another graph does not have, by that name and the same in operator and tensors."""
        known = {node.name: other._describe(node) for node in other.nodes}
        return [node for node in self.nodes if known.get(node.name) != self._describe(node)]

    def transient_reads(self, node: Node) -> tuple[str, ...]:
        """Return the transient values that a node reads: owners that some node produces, each once."""
        return self._transient_owners(node.inputs)

    def transient_writes(self, node: Node) -> tuple[str, ...]:
        """Return the transient values that a node produces; empty for a view."""
        return () if node.view else self._transient_owners(node.outputs)

    def scratch_sizes(self, node: Node) -> tuple[int, ...]:
        """Return the bytes of each tensor that a recompute of a node gets in the place of the state it would update.

        One scratch tensor stands for all of the same type and shape.
        """
        updated = (self.tensors[name] for name in node.updates)
        return tuple({(tensor.dtype, tensor.shape): tensor.size_bytes for tensor in updated}.values())

    def scratch_bytes(self, node: Node) -> int:
        """Return the bytes of all scratch tensors of a recompute of a node."""
        return sum(self.scratch_sizes(node))

    def _describe(self, node: Node) -> tuple[object, ...]:
        names = (*node.inputs, *node.outputs)
        types = [(self.tensors[name].dtype, self.tensors[name].shape) for name in names if name]
        return (node.op_type, node.domain, node.attributes, node.inputs, node.outputs, types)

    @cached_property
    def _known_owners(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """What was found before: every replay of a plan asks for all of them."""
        return {}

    def _transient_owners(self, names: tuple[str, ...]) -> tuple[str, ...]:
        found = self._known_owners.get(names)
        if found is None:
            owners = (self.tensors[name].buffer_owner for name in names if name)
            found = tuple(dict.fromkeys(owner for owner in owners if not self.tensors[owner].resident))
            self._known_owners[names] = found
        return found
