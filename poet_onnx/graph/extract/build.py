"""Builds the TrainingGraph: the parts of the step, who shares whose buffer, and what may be run twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.graph import (
    AttributeValue,
    Node,
    Phase,
    Residency,
    Role,
    Tensor,
    TrainingGraph,
)
from poet_onnx.graph.extract.load import check_structure
from poet_onnx.graph.extract.makers import MAKE_TRAINING, check_training, is_step
from poet_onnx.graph.extract.roles import input_roles
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, OpSpec, spec_of
from poet_onnx.graph.shapes import Inferred, infer
from poet_onnx.graph.shapes.declared import MOST_BYTES
from poet_onnx.graph.shapes.inference import has_rule


def extract(model: ir.Model, *, dims: Mapping[str, int] | None = None, trains: bool = True) -> TrainingGraph:
    """Describe a training graph: nodes in file order, every tensor's size, what is resident, what may be recomputed.

    Args:
        model: a training graph, as `onnxruntime.training.artifacts` writes it; it is not changed.
        dims: sizes of named dimensions.
        trains: False for an evaluation graph, which has a forward pass alone.

    Raises:
        InputError: the model cannot be scheduled, in one sentence that names the node or tensor.
    """
    check_structure(model)
    if trains:
        check_training(model)
    return _Extraction(model, infer(model, dims), trains=trains).run()


@dataclass
class _Draft:
    """A node while its properties are collected."""

    source: ir.Node
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, AttributeValue]
    spec: OpSpec
    aliases: tuple[tuple[int, int], ...] = ()
    written: tuple[str, ...] = ()


def _is_view(draft: _Draft) -> bool:
    """Return whether a node only looks at a buffer in another way."""
    return draft.aliases == ((0, 0),) and sum(map(bool, draft.outputs)) == 1 and not draft.written


class _Extraction:
    def __init__(self, model: ir.Model, inferred: Inferred, *, trains: bool) -> None:
        graph = model.graph
        self.graph = graph
        self.trains = trains
        self.types, self.values = inferred.types, inferred.values
        self.inputs = tuple(value.name or "" for value in graph.inputs)
        self.outputs = tuple(value.name or "" for value in graph.outputs)
        used = (name for name, value in graph.initializers.items() if value.uses() or value.is_graph_output())
        self.resident = dict.fromkeys((*self.inputs, *used))  # ONNX Runtime drops initializers that nothing uses
        self.roles = input_roles(graph)
        self.owners = {name: name for name in self.resident}
        self.drafts = [self._draft(node) for node in graph]

    def run(self) -> TrainingGraph:
        self._check_names()
        for draft in self.drafts:
            self._share(draft)
        phases = self._phases()
        changed = {owner for draft in self.drafts for owner in draft.written}
        after = self._access_order(changed)
        nodes = tuple(
            self._node(draft, phases[draft.name], changed, after[index]) for index, draft in enumerate(self.drafts)
        )
        tensors = self._tensors(changed)
        total = sum(tensor.size_bytes for tensor in tensors.values())
        if total > MOST_BYTES:
            raise InputError(
                f"The model's tensors have {total:.3g} bytes, more than a process can address: choose a smaller batch."
            )
        return TrainingGraph(
            name=self.graph.name or "",
            nodes=nodes,
            tensors=tensors,
            inputs=self.inputs,
            outputs=self.outputs,
            fingerprint=self._fingerprint(nodes, tensors),
        )

    def _draft(self, node: ir.Node) -> _Draft:
        attributes = plain_attributes(node)
        return _Draft(
            source=node,
            name=node.name or "",
            inputs=tuple(value.name or "" if value is not None else "" for value in node.inputs),
            outputs=tuple(value.name or "" for value in node.outputs),
            attributes=attributes,
            spec=spec_of(node.domain, node.op_type, attributes),
        )

    def _check_names(self) -> None:
        """Give nodes without a name one of their first output, and check that names are unique and outputs are made."""
        seen: set[str] = set()
        for draft in self.drafts:
            draft.name = draft.name or next((f"{draft.source.op_type}:{name}" for name in draft.outputs if name), "")
            if draft.name in seen:
                raise InputError(
                    f"Two nodes are named '{draft.name}': run poet_onnx.passes.normalize() on the model,"
                    " which makes names unique."
                )
            seen.add(draft.name)
        made = {name for draft in self.drafts for name in draft.outputs}
        for name in self.outputs:
            if name not in made and name not in self.resident:
                raise InputError(f"The graph output '{name}' is made by no node.")

    def _share(self, draft: _Draft) -> None:
        """Find which outputs look at an input's buffer and which buffers the node writes in place."""
        aliases = []
        for source, target in draft.spec.aliases:
            there = source < len(draft.inputs) and draft.inputs[source] and target < len(draft.outputs)
            if there and draft.outputs[target] and draft.outputs[target] not in self.outputs:
                aliases.append((source, target))
        draft.aliases = tuple(aliases)
        shared = {draft.outputs[target]: self.owners[draft.inputs[source]] for source, target in aliases}
        for name in draft.outputs:
            if name:
                self.owners[name] = shared.get(name, name)
        draft.written = tuple(
            self.owners[draft.inputs[index]]
            for index in draft.spec.writes
            if index < len(draft.inputs) and draft.inputs[index]
            if draft.spec.always_writes or any(source == index for source, _ in aliases)  # an output shares its buffer
        )

    def _phases(self) -> dict[str, Phase]:
        if not self.trains:
            return {draft.name: Phase.FORWARD for draft in self.drafts}
        makers = {name: draft for draft in self.drafts for name in draft.outputs if name}
        loss = self._loss(makers)
        forward: set[str] = set()
        stack = [makers[loss]]
        while stack:
            draft = stack.pop()
            if draft.name not in forward:
                forward.add(draft.name)
                stack += [makers[name] for name in draft.inputs if name in makers]
        phases = {}
        for draft in self.drafts:
            if draft.spec.update:
                phases[draft.name] = Phase.UPDATE
            else:
                phases[draft.name] = Phase.FORWARD if draft.name in forward else Phase.BACKWARD
        if set(phases.values()) == {Phase.FORWARD}:
            raise InputError(f"The model computes no gradients, only the forward pass: {MAKE_TRAINING}.")
        return phases

    def _loss(self, makers: Mapping[str, _Draft]) -> str:
        # A compiled step returns its loss last, behind the parameters, which may be single numbers.
        for name in reversed(self.outputs) if is_step(self.graph) else self.outputs:
            kind = self.types.get(name)
            if name not in makers or kind is None or makers[name].spec.update:
                continue
            if kind.dtype.is_floating_point() and kind.elements == 1:
                return name
        raise InputError(f"No output of the model is a loss (one floating-point number): {MAKE_TRAINING}.")

    def _access_order(self, changed: set[str]) -> list[tuple[str, ...]]:
        """Return, for each node, the nodes that a buffer written in place orders before it.

        A write follows the reads and writes that precede it in the file; a read follows the writes that precede it. A
        view reads nothing: whoever reads the view reads the buffer. Nor does who takes a buffer's shape alone.
        """
        readers: dict[str, list[str]] = {owner: [] for owner in changed}
        writers: dict[str, list[str]] = {owner: [] for owner in changed}
        after = []
        for draft in self.drafts:
            reads = self._read_numbers(draft) & changed
            before: dict[str, None] = {}
            for owner in sorted(reads):
                before.update(dict.fromkeys(writers[owner][-1:]))
                if owner in draft.written:
                    before.update(dict.fromkeys(readers[owner]))
                    writers[owner].append(draft.name)
                    readers[owner].clear()
                else:
                    readers[owner].append(draft.name)
            after.append(tuple(before))
        return after

    def _read_numbers(self, draft: _Draft) -> set[str]:
        """Return the owners of the buffers whose numbers a node reads."""
        if _is_view(draft):
            return set()
        names = enumerate(draft.inputs)
        return {self.owners[name] for index, name in names if name and not reads_shape_alone(draft.source, index)}

    def _node(self, draft: _Draft, phase: Phase, changed: set[str], after: tuple[str, ...]) -> Node:
        return Node(
            name=draft.name,
            op_type=draft.source.op_type,
            domain="" if draft.source.domain == "ai.onnx" else draft.source.domain,
            inputs=draft.inputs,
            outputs=draft.outputs,
            attributes=draft.attributes,
            phase=phase,
            recomputable=self._recomputable(draft, phase, changed),
            view=_is_view(draft),
            updates=tuple(dict.fromkeys(owner for owner in draft.written if owner in self.resident)),
            inplace=self._inplace(draft),
            after=after,
        )

    def _recomputable(self, draft: _Draft, phase: Phase, changed: set[str]) -> bool:
        """Return whether a second run of the node gives the same bits, as long as no resident it reads has changed.

        It must draw no random numbers and change nothing but state that its own outputs do not depend on (the running
        statistics of a normalisation in training), and no transient input that matters may be written in place.
        Whether a resident has changed, such as a parameter that is updated, is a matter of the plan's order. Beyond the
        forward pass only nodes that read nothing but residents qualify, such as a weight's transposition.
        """
        if draft.spec.random or draft.spec.update or not has_rule(draft.source):
            return False
        if phase is not Phase.FORWARD and not all(self.owners[name] in self.resident for name in draft.inputs if name):
            return False
        matters = {self.owners[name] for i, name in enumerate(draft.inputs) if name and i not in draft.spec.unread}
        return not (matters & changed) - self.resident.keys()

    def _inplace(self, draft: _Draft) -> tuple[tuple[int, int], ...]:
        """Return the in-place pairs the planner can use: same shape and element size, no resident, no graph output."""
        pairs = []
        for source, target in draft.spec.inplace:
            if source >= len(draft.inputs) or target >= len(draft.outputs):
                continue
            taken, made = draft.inputs[source], draft.outputs[target]
            if not taken or not made or made in self.outputs or draft.inputs.count(taken) > 1:
                continue
            owner = self.owners[taken]
            old, new = self.types[taken], self.types[made]
            if owner in self.resident or owner in self.outputs or old.shape != new.shape:
                continue
            if old.dtype.itemsize == new.dtype.itemsize:
                pairs.append((source, target))
        return tuple(pairs)

    def _tensors(self, changed: set[str]) -> dict[str, Tensor]:
        return {
            name: Tensor(
                name=name,
                dtype=self.types[name].dtype.name,
                shape=self.types[name].shape,
                size_bytes=self.types[name].size_bytes,
                buffer_owner=owner,
                residency=self._residency(name),
                role=self._role(name, changed),
            )
            for name, owner in self.owners.items()
        }

    def _residency(self, name: str) -> Residency:
        if name in self.resident:
            return Residency.RESIDENT
        return Residency.OUTPUT if name in self.outputs else Residency.TRANSIENT

    def _role(self, name: str, changed: set[str]) -> Role:
        """Return what a tensor is for; an initializer that the graph updates is a statistic."""
        if name in self.roles:
            return self.roles[name].role
        if name in self.resident:
            return Role.STATISTIC if name in changed else Role.CONSTANT
        return Role.INTERMEDIATE

    def _fingerprint(self, nodes: Iterable[Node], tensors: Mapping[str, Tensor]) -> str:
        """Return SHA-256, as hex, over all that a plan depends on; weights' values are not part of it."""
        digest = hashlib.sha256()

        def add(*parts: object) -> None:
            digest.update(json.dumps(parts, separators=(",", ":")).encode())
            digest.update(b"\n")

        add("graph", self.inputs, self.outputs)
        for node in nodes:
            add("node", node.name, node.op_type, node.domain, node.inputs, node.outputs)
            add("attributes", sorted(node.attributes.items()))
        for source in self.graph:
            for name, attribute in sorted(source.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR:
                    add("tensor", name, hashlib.sha256(attribute.as_tensor().tobytes()).hexdigest())
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.name):
            add("tensor", tensor.name, tensor.dtype, tensor.shape, tensor.buffer_owner, tensor.resident)
        for name in sorted(self.graph.initializers):
            value = self.values.get(name)
            if name in tensors and value is not None and value.dtype.kind in "iub":
                add("value", name, value.tolist())
        return digest.hexdigest()


def plain_attributes(node: ir.Node) -> dict[str, AttributeValue]:
    """Return a node's attributes that are numbers, strings or lists of them, by name."""
    kinds = ir.AttributeType
    plain: dict[str, AttributeValue] = {}
    for name, attribute in node.attributes.items():
        if attribute.type in (kinds.INT, kinds.FLOAT, kinds.STRING):
            plain[name] = attribute.value
        elif attribute.type in (kinds.INTS, kinds.FLOATS, kinds.STRINGS):
            plain[name] = tuple(attribute.value)
    return plain


def reads_shape_alone(node: ir.Node, index: int) -> bool:
    """Return whether a node's results do not depend on the numbers of one of its inputs.

    A ConvGrad that computes no data gradient takes the shape of the weight alone, and so does one of a weight's parts.
    """
    reads = [(node, index)]
    for reader, place in reads:
        if reader.op_type == "Slice" and place == 0 and not reader.outputs[0].is_graph_output():
            reads += reader.outputs[0].uses()
        elif not _reads_filter_shape(reader, place):
            return False
    return True


def _reads_filter_shape(node: ir.Node, index: int) -> bool:
    if node.domain != MICROSOFT_DOMAIN or node.op_type != "ConvGrad" or index != 2:
        return False
    data = node.outputs[0]
    return not data.name or not (data.uses() or data.is_graph_output())
