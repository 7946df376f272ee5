"""The layout of a rewritten graph: its nodes in order, each with the versions of the values that it reads and makes.

Rules:
    L1. Nodes stand in the order of the plan's steps. Copy 0 of a node is the model's own node, under its own name.
    L2. A view is repeated for every version that somebody reads through it, right before the first such reader; the
        view of an original version keeps its names. A view that nobody reads is left out.
    L3. A recomputed node is called `<node>/recompute_<k>`, and so are its outputs.
    L4. A recomputed node that reads what an earlier run of the same node read gets one of its inputs through a Gate: no
        two runs then have the same inputs, so nothing can merge them, and the later one cannot run before the Gate's
        trigger. Gates of one value form a chain, so that no two of them are equal either.
    L5. A trigger is the newest of the versions alive across that place: reading it there lengthens no life.
    L6. A recomputed node never writes state: what it would update in place is replaced by one scratch tensor of the
        same shape, made right before it (a Neg of the gated state: its numbers do not matter, as batch statistics do
        not depend on running ones) and dead right after it.
    L7. A page-out whose two halves are adjacent is one PageOut node, otherwise PageOutStart and PageOutEnd; likewise
        PageIn, or PageInStart and PageInEnd. Each value has one slot, numbered by first use.
    L8. Every page-in of a stored value consumes the token of its page-out; where two of them have the same trigger, the
        later one gets the token through a Gate.
    L9. What a step makes and nobody reads goes into a Gate right behind it: ONNX Runtime frees a buffer behind its last
        reader, and one that has no reader only when the whole training step is over.
    L10. A normalization whose statistics are read gets its data through a Gate where it is the only reader of an Add's
        version: ONNX Runtime's SkipLayerNormFusion (onnxruntime/core/optimizer/skip_layer_norm_fusion.cc) would fuse
        the two, which it takes for inference, and leave the statistics out. In the model as given the gradient reads
        the sum too, which keeps them apart; with a plan it may read another version.
    L11. Where the runtime could not know from what is asked for that a step begins, the node before says so when it has
        ended, if it is one of ours; else a Mark does, which reads the graph's first input, for a node must read
        something, and makes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from poet_onnx.description.names import POET_DOMAIN, RECOMPUTED
from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.passes.layout_nodes import MARK, TOKEN, LayoutNode
from poet_onnx.passes.versions import Version, versions_of
from poet_onnx.plan import Action, Step

NORMALIZATIONS = frozenset(("LayerNormalization", "SimplifiedLayerNormalization"))
"""Operators that the runtime fuses with an Add before them."""


def nodes_of_plan(
    graph: TrainingGraph, steps: Sequence[Step], marks: Mapping[int, int] | None = None
) -> tuple[LayoutNode, ...]:
    """Return the nodes that carry out a list of steps.

    Args:
        graph: that is planned.
        steps: of the plan.
        marks: which step to say that begins, by the step before which to say it; default none.

    Raises:
        CheckFailedError: if the steps cannot be carried out on this graph.
    """
    return tuple(_Layout(graph, steps, marks or {}).build())


class _Names:
    """Hands out names that the graph does not use yet, always the same one for the same request."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._given: dict[tuple[str, str], str] = {}

    def of(self, base: str, suffix: str) -> str:
        if not suffix or not base:
            return base
        if (base, suffix) not in self._given:
            name = base + suffix
            while name in self._taken:
                name += "_"
            self._taken.add(name)
            self._given[base, suffix] = name
        return self._given[base, suffix]


@dataclass
class _Stored:
    """A page-out in progress or done: its newest token and the triggers of the page-ins that used it."""

    token: str
    complete: bool
    triggers: set[str] = field(default_factory=set)


class _Layout:
    def __init__(self, graph: TrainingGraph, steps: Sequence[Step], marks: Mapping[int, int]) -> None:
        self._graph = graph
        self._steps = steps
        self._marks = marks
        self._nodes = {node.name: node for node in graph.nodes}
        self._places = {node.name: place for place, node in enumerate(graph.nodes)}
        self._producer = {name: node for node in graph.nodes for name in node.outputs if name}
        self._lives = versions_of(graph, steps)
        self._values = _Names(graph.tensors)
        self._node_names = _Names(self._nodes)
        self._placed: list[LayoutNode] = []
        self._views: dict[str, dict[str, int]] = {}
        self._runs: dict[str, set[tuple[str, ...]]] = {}
        self._gates: dict[str, list[str]] = {}
        self._slots: dict[str, int] = {}
        self._page_outs: dict[str, int] = {}
        self._stored: dict[str, _Stored] = {}
        self._newest: dict[str, Version] = {}

    def build(self) -> list[LayoutNode]:
        for index, step in enumerate(self._steps):
            self._mark(index)
            if step.action is Action.COMPUTE:
                self._compute(index, step)
            elif step.action is Action.PAGE_OUT_START:
                self._page_out_start(index, step.subject)
            elif step.action is Action.PAGE_OUT_END:
                self._page_out_end(index, step.subject)
            elif step.action is Action.PAGE_IN_START:
                self._page_in_start(index, step.subject)
            else:
                self._page_in_end(index, step.subject)
            self._newest.update(self._lives.writes[index])
        self._output_views()
        self._mark(len(self._steps))
        return self._placed

    def _mark(self, index: int) -> None:
        """Let the node before say that a step begins, or a Mark (L11)."""
        begins = self._marks.get(index)
        last = self._placed[-1] if self._placed else None
        if begins is not None and last is not None and last.source and last.domain == POET_DOMAIN:
            self._placed[-1] = replace(last, begins=begins)
        elif begins is not None and self._graph.inputs:
            name = self._node_names.of("mark", f"/{begins}")
            self._placed.append(LayoutNode(name, MARK, POET_DOMAIN, self._graph.inputs[:1], (), (), begins=begins))

    def _name(self, tensor: str, version: Version) -> str:
        return self._values.of(tensor, version.suffix)

    def _compute(self, index: int, step: Step) -> None:
        node = self._nodes[step.subject]
        versions = self._lives.reads[index]
        inputs = [self._reference(name, versions) for name in node.inputs]
        suffix = f"{RECOMPUTED}{step.copy}" if step.copy else ""
        earlier, read = self._runs.setdefault(node.name, set()), tuple(inputs)
        if read in earlier:
            self._gate_input(index, step, node, inputs)
        elif self._would_be_fused(index, node):
            gate = self._node_names.of(node.name, f"/apart_{step.copy}")
            inputs[0] = self._gate(gate, inputs[0], node.inputs[0], None)
        earlier.add(read)
        if step.copy:
            self._replace_state(step, node, inputs)
        outputs = tuple(self._values.of(name, suffix) for name in node.outputs)
        name = self._node_names.of(node.name, suffix)
        if step.copy and name != node.name + suffix:
            raise CheckFailedError(f"The model already has a node named '{node.name}{suffix}'; rename that node.")
        self._placed.append(
            LayoutNode(name, node.op_type, node.domain, tuple(inputs), outputs, node.outputs, source=node.name)
        )
        self._release(index, node.name, step.copy)

    def _release(self, index: int, maker: str, number: int | str) -> None:
        """Place a reader of what nobody else reads (L9)."""
        versions = self._lives.writes[index].values()
        unread = [version for version in versions if version.ready == version.last_read == index]
        if unread:
            inputs = tuple(self._name(version.value, version) for version in unread)
            output = self._values.of(inputs[0], "/released")
            name = self._node_names.of(maker, f"/release_{number}")
            self._placed.append(LayoutNode(name, "Gate", POET_DOMAIN, inputs, (output,), (unread[0].value,)))

    def _reference(self, name: str, versions: Mapping[str, Version]) -> str:
        """Return the name under which a tensor is read, placing the views that lead to it (L2)."""
        for view in self._missing_views(name, versions):
            self._place_view(view, versions)
        return self._read_name(name, versions)

    def _missing_views(self, name: str, versions: Mapping[str, Version]) -> list[Node]:
        """Return the views that lead to a tensor and are not placed for its version, first ones first."""
        missing: dict[str, Node] = {}
        names = [name]
        for each in names:
            view = self._producer.get(each)
            if view is None or not view.view or view.name in missing:
                continue
            if self._suffix(each, versions) not in self._views.get(view.name, {}):
                missing[view.name] = view
                names += view.inputs
        return sorted(missing.values(), key=lambda view: self._places[view.name])

    def _place_view(self, view: Node, versions: Mapping[str, Version]) -> None:
        suffix = self._suffix(next(filter(None, view.outputs)), versions)
        done = self._views.setdefault(view.name, {})
        copies = sum(1 for placed in done if placed)
        done[suffix] = copies + 1
        inputs = tuple(self._read_name(name, versions) for name in view.inputs)
        name = self._node_names.of(view.name, f"/view_{copies + 1}" if suffix else "")
        outputs = tuple(self._values.of(output, suffix) for output in view.outputs)
        self._placed.append(
            LayoutNode(name, view.op_type, view.domain, inputs, outputs, view.outputs, source=view.name)
        )

    def _read_name(self, name: str, versions: Mapping[str, Version]) -> str:
        return self._values.of(name, self._suffix(name, versions)) if name else ""

    def _suffix(self, name: str, versions: Mapping[str, Version]) -> str:
        """Return how the names of a tensor's version end: of one that a node reads, else of the newest."""
        owner = self._graph.tensors[name].buffer_owner
        version = versions.get(owner) or self._newest.get(owner)
        return "" if version is None else version.suffix

    def _output_views(self) -> None:
        """Place the views that are graph outputs and that nobody read before (L2, V4)."""
        originals = {version.value: version for version in self._lives.versions if not version.suffix}
        for name in self._graph.outputs:
            self._reference(name, originals)

    def _gate_input(self, index: int, step: Step, node: Node, inputs: list[str]) -> None:
        """Send one input of a recomputed node through a Gate (L4, L5)."""
        versions = self._lives.reads[index]
        present = [place for place, name in enumerate(node.inputs) if name]
        transient = [place for place in present if self._graph.tensors[node.inputs[place]].buffer_owner in versions]
        place = next(iter(transient + present), None)
        if place is None:
            return
        owner = self._graph.tensors[node.inputs[place]].buffer_owner
        own = [versions[owner]] if owner in versions else []
        gate = self._node_names.of(node.name, f"/gate_{step.copy}")
        inputs[place] = self._gate(gate, inputs[place], node.inputs[place], self._trigger(index, own))

    def _would_be_fused(self, index: int, node: Node) -> bool:
        """Return whether the runtime would fuse a normalization with the Add that makes what it reads (L10)."""
        if node.op_type not in NORMALIZATIONS or not any(node.outputs[1:]):
            return False
        owner = self._graph.tensors[node.inputs[0]].buffer_owner
        version = self._lives.reads[index].get(owner)
        maker = self._producer.get(owner)
        if version is None or maker is None or maker.op_type != "Add":
            return False
        return sum(1 for reads in self._lives.reads if reads.get(owner) is version) == 1

    def _gate(self, node_name: str, value: str, like: str, trigger: str | None) -> str:
        """Place a Gate and return its output; gates of one value form a chain (L4)."""
        chain = self._gates.setdefault(value, [value])
        output = self._values.of(value, f"/gate_{len(chain)}")
        inputs = (chain[-1],) if trigger is None else (chain[-1], trigger)
        self._placed.append(LayoutNode(node_name, "Gate", POET_DOMAIN, inputs, (output,), (like,)))
        chain.append(output)
        return output

    def _trigger(self, index: int, other_than: Iterable[Version] = ()) -> str | None:
        version = self._lives.newest_live(index, other_than)
        return None if version is None else self._name(version.value, version)

    def _replace_state(self, step: Step, node: Node, inputs: list[str]) -> None:
        """Give a recomputed node scratch tensors for the state it would update (L6)."""
        tensors = self._graph.tensors
        read = [name for name, own in zip(inputs, node.inputs, strict=True) if own and own not in node.updates]
        trigger = next(iter(read), None)
        scratch: dict[tuple[str, tuple[int, ...]], str] = {}
        for place, name in enumerate(node.inputs):
            if name not in node.updates:
                continue
            kind = (tensors[name].dtype, tensors[name].shape)
            if kind not in scratch:
                number = f"{step.copy}_{len(scratch)}" if scratch else f"{step.copy}"
                gated = self._gate(self._node_names.of(node.name, f"/state_gate_{number}"), name, name, trigger)
                output = self._values.of(gated, "/scratch")
                scratch_name = self._node_names.of(node.name, f"/scratch_{number}")
                self._placed.append(LayoutNode(scratch_name, "Neg", "", (gated,), (output,), (name,)))
                scratch[kind] = output
            inputs[place] = scratch[kind]

    def _synchronous(self, index: int, end: Action) -> bool:
        follower = self._steps[index + 1] if index + 1 < len(self._steps) else None
        return follower is not None and follower.action is end and follower.subject == self._steps[index].subject

    def _transfer(self, op_type: str, value: str, name: str, inputs: Sequence[str], outputs: Mapping[str, str]) -> None:
        named = self._node_names.of(value, name)
        made, like = tuple(outputs), tuple(outputs.values())
        self._placed.append(
            LayoutNode(named, op_type, POET_DOMAIN, tuple(inputs), made, like, slot=self._slots[value], value=value)
        )

    def _page_out_start(self, index: int, value: str) -> None:
        self._slots.setdefault(value, len(self._slots))
        number = self._page_outs[value] = self._page_outs.get(value, 0) + 1
        source = self._name(value, self._lives.reads[index][value])
        synchronous = self._synchronous(index, Action.PAGE_OUT_END)
        op_type, word = ("PageOut", "page_out") if synchronous else ("PageOutStart", "page_out_start")
        token = self._values.of(value, f"/token_{number}" if synchronous else f"/started_{number}")
        self._transfer(op_type, value, f"/{word}_{number}", [source], {token: TOKEN})
        self._stored[value] = _Stored(token, complete=synchronous)

    def _page_out_end(self, index: int, value: str) -> None:
        if self._synchronous(index - 1, Action.PAGE_OUT_END) and self._steps[index - 1].action is Action.PAGE_OUT_START:
            return
        number = self._page_outs[value]
        stored = self._stored[value]
        source = self._name(value, self._lives.reads[index][value])
        token = self._values.of(value, f"/token_{number}")
        self._transfer("PageOutEnd", value, f"/page_out_end_{number}", [stored.token, source], {token: TOKEN})
        stored.token, stored.complete = token, True

    def _page_in_start(self, index: int, value: str) -> None:
        stored = self._stored.get(value)
        if stored is None or not stored.complete:
            raise CheckFailedError(f"Step {index} of the plan pages in '{value}', which is not in storage then.")
        version = self._lives.writes[index][value]
        number = version.suffix.rpartition("_")[2]
        trigger = self._trigger(index)
        token = stored.token
        if (trigger or "") in stored.triggers:
            token = self._gate(self._node_names.of(value, f"/token_gate_{number}"), token, TOKEN, trigger)
        stored.triggers.add(trigger or "")
        inputs = [token] if trigger is None else [token, trigger]
        result = self._name(value, version)
        if self._synchronous(index, Action.PAGE_IN_END):
            self._transfer("PageIn", value, f"/page_in_{number}", inputs, {result: value})
            return
        raw, ticket = self._values.of(result, "/raw"), self._values.of(result, "/ticket")
        self._transfer("PageInStart", value, f"/page_in_start_{number}", inputs, {raw: value, ticket: TOKEN})

    def _page_in_end(self, index: int, value: str) -> None:
        version = self._lives.reads[index][value]
        if self._steps[index - 1].action is Action.PAGE_IN_START and self._synchronous(index - 1, Action.PAGE_IN_END):
            self._release(index, value, version.suffix.rpartition("_")[2])
            return
        result = self._name(value, version)
        raw, ticket = self._values.of(result, "/raw"), self._values.of(result, "/ticket")
        number = version.suffix.rpartition("_")[2]
        self._transfer("PageInEnd", value, f"/page_in_end_{number}", [raw, ticket], {result: value})
        self._release(index, value, number)
