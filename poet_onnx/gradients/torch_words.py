"""What torch's dynamo exporter says of the tensors that it writes: parameter, buffer, constant, or folded from such.

Words:
    W1. The graph's metadata has the signature of the traced program: a placeholder for each parameter, buffer and
        constant, with its name in the module.
    W2. A tensor's metadata has its placeholder, or the names of all that the optimizer folded into it.
    W3. A node's metadata has the call of torch that it belongs to, with the placeholders that the call reads.

The exporter's optimizer merges initializers of equal numbers, whatever they are: a bias of zeros with running means of
zeros, a parameter of 0.1 with a number that the program has. By W3 they are parted again. What it folds batch
normalizations into keeps its name, and loses W2.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from poet_onnx.description.names import STOPS_GRADIENT
from poet_onnx.gradients.evidence import RECURRENT, WEIGHTS, is_drawn
from poet_onnx.gradients.module_names import module_of, names_in
from poet_onnx.gradients.paths import REAL
from poet_onnx.gradients.torch_arguments import CALL, gone_sums, is_own, moved_names, names_of
from poet_onnx.passes.node_builder import initializer

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_PLACEHOLDER = "pkg.torch.onnx.original_node_name"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"

_ENTRY = re.compile(r"^\s*(\w+): (?:InputKind\.)?([A-Z_]+) target='([^']*)'", re.MULTILINE)
_TARGET = re.compile(r"call_function\[target=(?:torch\.ops\.)?(?:\w+\.)*?(\w+)(?:\.\w+)?\]")
_PADDED = re.compile(r"aten\.embedding\.default\]\(args = \(%(\w+), %?\w+, (\d+)")
_RESULT = re.compile(r"^\s*(\w+): (?:OutputKind\.)?USER_OUTPUT", re.MULTILINE)
_COMPUTED = re.compile(r"val_\d+")
_NUMBERED = re.compile(r"_\d+$")

_PARAMETER = "PARAMETER"
_NORMALIZES = "batch_norm"

_MOVES = frozenset(
    [
        *("permute", "transpose", "t", "numpy_t", "mT", "mH", "T", "view", "reshape", "_unsafe_view", "view_copy"),
        *("unsqueeze", "squeeze", "flatten", "unflatten", "alias", "contiguous", "clone", "lift_fresh_copy"),
        *("movedim", "swapaxes"),
    ]
)
"""Calls of torch that give each number of a tensor another place, and keep them all."""

_LAYS_OUT = frozenset(
    [
        *("linear", "addmm", "matmul", "mm", "bmm", "lstm", "gru", "rnn_tanh", "rnn_relu", "group_norm"),
        *("native_group_norm", "layer_norm", "native_layer_norm", "prelu", "conv1d", "conv2d", "conv3d"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution"),
    ]
)
"""Calls that the exporter writes as nodes that read a parameter in another layout."""


def is_of_torch(model: ir.Model) -> bool:
    """Return whether one of torch's exporters made a model."""
    return (model.producer_name or "").startswith("pytorch")


_BIASED: Mapping[str, Callable[[ir.Node, tuple[int, ...]], int]] = {
    "Gemm": lambda node, shape: shape[0 if node.attributes.get_int("transB", 0) else 1],
    "Conv": lambda _, shape: shape[0],
    "ConvTranspose": lambda node, shape: shape[1] * node.attributes.get_int("group", 1),
}
"""How many numbers the bias of an operator has, by the shape of its weight."""


@dataclass(frozen=True)
class Lost:
    """What is not in the model as torch would train it.

    Attributes:
        name: of the parameter.
        reason: what became of it, as a part of a sentence.
        value: the initializer that it concerns; None if there is none.
    """

    name: str
    reason: str
    value: ir.Value | None = None


@dataclass
class TorchWords:
    """The words of one model.

    Attributes:
        graph: of the model.
        targets: names in the module, by placeholder.
        kinds: of the placeholders.
        lost: what `part` found that it could not restore.
    """

    graph: ir.Graph
    targets: Mapping[str, str]
    kinds: Mapping[str, str]
    lost: list[Lost] = field(default_factory=list)

    @cached_property
    def _placeholders(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for placeholder, target in self.targets.items():
            found.setdefault(target, []).append(placeholder)
        return found

    @cached_property
    def _are_kept(self) -> bool:
        """Whether tensors still have metadata of their own: other tools drop them."""
        return any(_KIND in value.metadata_props for value in self.graph.initializers.values())

    @cached_property
    def _results(self) -> list[str]:
        return _RESULT.findall(self.graph.metadata_props.get(_SIGNATURE, ""))

    def owners(self, value: ir.Value) -> frozenset[str]:
        """Return the placeholders of what a tensor is, or was folded from."""
        own = value.metadata_props.get(_PLACEHOLDER)
        if own is not None and own in self.targets:
            return frozenset((own,))
        names = [value.name or "", *_folded(value)]
        return frozenset(each for name in names for each in self._placeholders.get(name, ()))

    def is_constant(self, value: ir.Value) -> bool:
        """Return whether the exporter says that a tensor is no parameter, and was folded from none."""
        owners = self.owners(value)
        if owners:
            return not any(map(self._trains, owners))
        return self._are_kept

    def is_parameter(self, value: ir.Value) -> bool:
        """Return whether a tensor is a parameter, or one that only stands in another layout."""
        return self.why_not(value) == "" and any(map(self._trains, self.owners(value)))

    def why_not(self, value: ir.Value) -> str:
        """Return why training a tensor is not what torch does; empty if it is, or the tensor is no parameter's."""
        owners = list(filter(self._trains, self.owners(value)))
        if not owners:
            return ""
        names = ", ".join(sorted(repr(self.targets[each]) for each in owners))
        if not _folded(value):
            return "" if not self._is_changed(value) else "a batch normalization was folded into its numbers"
        if not self._is_moved(value, owners):
            return f"computed of {names} by the exporter"
        if any(self._held[each] > 1 for each in owners):
            return f"one of several copies of {names}"
        return ""

    @cached_property
    def _held(self) -> Counter[str]:
        """How many tensors come of each placeholder."""
        read = (value for value in self.graph.initializers.values() if value.dtype in REAL and value.uses())
        return Counter(each for value in read for each in self.owners(value))

    def _is_changed(self, value: ir.Value) -> bool:
        if self._are_kept and _KIND not in value.metadata_props:
            return True
        readers = [node for node, _ in value.uses() if not node.op_type.endswith("Normalization")]
        return any(_NORMALIZES in _called(node) for node in readers)

    def _is_moved(self, value: ir.Value, owners: Iterable[str]) -> bool:
        """Return whether each number of some parameters is in a folded tensor once, as it was."""
        if all(node.op_type in RECURRENT and index in WEIGHTS[node.op_type] for node, index in value.uses()):
            return True  # ONNX has the gates in another order
        names = {self.targets[each] for each in owners}
        steps = [*(name for name in _folded(value) if name not in names), value.name or ""]
        if not all(_COMPUTED.fullmatch(name) or _NUMBERED.sub("", name) in _MOVES for name in steps[:-1]):
            return False
        if not _COMPUTED.fullmatch(steps[-1]):
            return _NUMBERED.sub("", steps[-1]) in _MOVES
        return all(_called(node) in _LAYS_OUT for node, _ in value.uses())

    def part(self) -> int:
        """Part what the optimizer merged because its numbers were equal, and bring biases back that it left out.

        Returns how many tensors are parted.

        What cannot be restored is in `lost` afterwards.
        """
        parted = 0
        for node in list(self.graph):
            mentioned = self._mentioned(node)
            slots = [
                (index, value)
                for index, value in enumerate(node.inputs)
                if value is not None and value.is_initializer() and value.dtype in REAL
            ]
            whole = [value for _, value in slots if self.owners(value) and not _folded(value)]
            if slots and mentioned and not _is_inside(node) and not any(map(self._is_changed, whole)):
                parted += self._part_inputs(node, slots, mentioned)
            elif not mentioned or _is_inside(node):
                self._keep_constants(node, slots)
        for node in self.graph:
            self._restore_bias(node)
        self.__dict__.pop("_held", None)
        parted += self._part_moved()
        for node in self.graph:
            absent = [each for each in self._mentioned(node) if not self._held[each] and self._trains(each)]
            self.lost += [
                Lost(self.targets[each], f"gone: the exporter folded or dropped it at '{node.name}'") for each in absent
            ]
        if gone_sums(self.graph, self._results):
            named = {each for node in self.graph for each in self._mentioned(node)}
            absent = [
                each for each in self.targets if self._trains(each) and not self._held[each] and each not in named
            ]
            self.lost += [
                Lost(self.targets[each], "gone: the exporter drops products with 1 and sums with 0") for each in absent
            ]
        self.lost = list({each.name: each for each in self.lost}.values())
        return parted

    def padded(self) -> dict[str, int]:
        """Return the embeddings with a row for padding, which torch does not train, and that row.

        Those of `poet_onnx.torch.export` are not among them: there no gradient flows to the row.
        """
        found = {}
        for node in self.graph:
            match = _PADDED.search(node.metadata_props.get(CALL, ""))
            if match is None or node.op_type != "Gather" or match[1] not in self.targets:
                continue
            after = [reader for reader, _ in node.outputs[0].uses()]
            after += [reader for each in after for output in each.outputs for reader, _ in output.uses()]
            if not any(STOPS_GRADIENT in each.metadata_props for each in after):
                found[self.targets[match[1]]] = int(match[2])
        return found

    def _trains(self, placeholder: str) -> bool:
        return self.kinds[placeholder] == _PARAMETER

    def _mentioned(self, node: ir.Node) -> list[str]:
        return [each for each in dict.fromkeys(names_of(node)) if each in self.targets]

    def _part_inputs(self, node: ir.Node, slots: list[tuple[int, ir.Value]], mentioned: list[str]) -> int:
        held = self._held
        absent = [each for each in mentioned if not held[each]]
        if len(slots) == len(mentioned):  # the node reads them in the order of the call
            pairs = list(zip(slots, mentioned, strict=True))
            owned = [(self.owners(value), each) for (_, value), each in pairs]  # what nobody owns is no parameter
            if all(owners and (each in owners or each in absent) for owners, each in owned):
                return sum(self._give_own(node, *slot, each) for slot, each in pairs if each in absent)
        strange = [(index, value) for index, value in slots if self._is_strange(value, mentioned)]
        if len(strange) == len(absent) == 1:
            return self._give_own(node, *strange[0], absent[0])
        if len(strange) == 1 and (own := self._in_place_of(strange[0][1], node, mentioned)) in absent:
            return self._give_own(node, *strange[0], own)
        for index, value in strange:
            if not absent:  # a constant of the call, such as the ones of an instance normalization
                self._give_own(node, index, value, None)
        return 0

    def _part_moved(self) -> int:
        """Part parameters that a call of another layout is between and their readers, so that no reader mentions them.

        Which they are tell the modules of the readers: each module owns its parameters.
        """
        named = {each for node in self.graph for each in self._mentioned(node)}
        gone: dict[str, list[str]] = {}
        for each, target in self.targets.items():
            if self._trains(each) and not self._held[each] and each not in named:
                gone.setdefault(target.rpartition(".")[0], []).append(each)
        values = [value for value in self.graph.initializers.values() if value.dtype in REAL] if gone else []
        parted = sum(self._part_readers(value, gone) for value in values if any(map(self._trains, self.owners(value))))
        self.__dict__.pop("_held", None)
        for node in self.graph if gone else ():
            self._doubt_parts(node, gone)
        return parted

    def _doubt_parts(self, split: ir.Node, gone: Mapping[str, Sequence[str]]) -> None:
        """Call parameters lost that were split as another one was, of which the exporter kept one Split."""
        whole = split.inputs[0] if split.op_type == "Split" else None
        if whole is None or not whole.is_initializer() or whole.const_value is None or is_drawn(whole):
            return
        owned = {self.targets[each].rpartition(".")[0] for each in self.owners(whole)}
        for part in split.outputs:
            slots = [(node, moved_names(node, index, self._made)) for node, index in part.uses()]
            calls = {name for _, names in slots for name in names}
            for node, _ in slots:
                own = gone.get(module_of(node), ())
                if own and (len(calls) > 1 or module_of(node) not in owned):
                    self._doubt(own, whole, node)

    def _part_readers(self, value: ir.Value, gone: Mapping[str, Sequence[str]]) -> int:
        """Give the readers of a tensor tensors of their own where their modules have parameters that are gone."""
        owned = {self.targets[each].rpartition(".")[0] for each in self.owners(value)}
        slots = [
            (node, index, self._mentioned(node) or moved_names(node, index, self._made)) for node, index in value.uses()
        ]
        others = [(node, index, names) for node, index, names in slots if names and not self._mentioned(node)]
        read = {(module_of(node), name) for node, _, names in others for name in names if name != value.name}
        calls = Counter(module for module, _ in read)
        if len({name for *_, names in slots for name in names}) < 2 or value.const_value is None or is_drawn(value):
            return 0
        parted = 0
        for node, index, names in others:
            module = module_of(node)
            own = gone.get(module, ()) if set(names) != {value.name} else ()
            if len(own) == calls[module] == len(names) == 1:
                parted += self._give_own(node, index, value, own[0])
            elif own or (value.name not in names and module not in owned):
                self._doubt(own or [each for all_of in gone.values() for each in all_of], value, node)
        return parted

    def _doubt(self, placeholders: Iterable[str], value: ir.Value, node: ir.Node) -> None:
        """Call parameters lost that may be merged with a tensor that a node reads."""
        owners = ", ".join(sorted(repr(self.targets[each]) for each in self.owners(value)))
        reason = f"may be merged with {owners}, read by '{node.name}'"
        self.lost += [Lost(self.targets[each], reason) for each in placeholders]

    def _in_place_of(self, value: ir.Value, node: ir.Node, mentioned: list[str]) -> str | None:
        """Return what a node's call has where a like call, to which a tensor belongs, has that tensor's owner."""
        for reader, _ in value.uses():
            others = self._mentioned(reader)
            places = [place for place, each in enumerate(others) if each in self.owners(value)]
            if len(places) == 1 and len(others) == len(mentioned) and _called(reader) == _called(node):
                return mentioned[places[0]]
        return None

    def _keep_constants(self, node: ir.Node, slots: list[tuple[int, ir.Value]]) -> None:
        """Give a node that reads a parameter, whose call mentions none, a constant of its own again."""
        for index, value in slots:
            own = self._is_strange(value, []) and (_is_inside(node) or is_own(node, value, self._made))
            if own:
                self._give_own(node, index, value, None)
            elif own is None:
                reason = f"may be merged with what the exporter computed of it, read by '{node.name}'"
                self.lost += [Lost(self.targets[each], reason) for each in self.owners(value) if self._trains(each)]

    @cached_property
    def _made(self) -> frozenset[str]:
        made = (output for node in self.graph for output in node.outputs)
        return frozenset(value.name or "" for value in (*self.graph.inputs, *made))

    def _restore_bias(self, node: ir.Node) -> None:
        """Give a node the bias again that the optimizer left out because all its numbers were zeros."""
        mentioned, weight = self._mentioned(node), node.inputs[1] if len(node.inputs) == 2 else None
        if node.op_type not in _BIASED or weight is None or not weight.is_initializer() or len(mentioned) != 2:
            return
        first, bias = mentioned
        if _called(node) == "addmm" and self.targets[first].endswith("bias"):  # by that name: it might be a matrix
            first, bias = bias, first
        if first not in self.owners(weight) or not self._trains(bias) or self._is_changed(weight):
            return
        own = self.graph.initializers.get(self.targets[bias])  # there already if a layer is called twice
        if own is None and weight.const_value is not None:
            size = _BIASED[node.op_type](node, tuple(weight.const_value.shape.numpy()))
            zeros = np.zeros(size, np.asarray(weight.const_value.numpy()).dtype)
            own = initializer(self.graph, self.targets[bias], zeros)
            own.metadata_props.update({_PLACEHOLDER: bias, _KIND: self.kinds[bias]})
        node.resize_inputs(3)
        node.replace_input_with(2, own)

    def _is_strange(self, value: ir.Value, mentioned: list[str]) -> bool:
        """Return whether a tensor belongs to another call than that of a node, which mentions others."""
        owners = self.owners(value)
        if not owners or not owners.isdisjoint(mentioned):
            return False
        return any(not owners.isdisjoint(self._mentioned(node)) for node, _ in value.uses())

    def _give_own(self, node: ir.Node, index: int, value: ir.Value, placeholder: str | None) -> int:
        """Let a node read a tensor of its own again, which is a placeholder's or a constant."""
        name = f"{value.name}/constant/{node.name}" if placeholder is None else self.targets[placeholder]
        if placeholder is not None and _folded(value):
            name = f"{name}/moved"
        known = self.graph.initializers.get(name)
        if known is None:
            taken = {output.name for each in self.graph for output in each.outputs}
            own = ir.Value(
                name=f"{name}/parted" if name in taken else name,
                type=value.type,
                shape=value.shape,
                const_value=value.const_value,
            )
            if placeholder is not None:
                own.metadata_props.update({_PLACEHOLDER: placeholder, _KIND: self.kinds[placeholder]})
            self.graph.register_initializer(own)
            known = own
        node.replace_input_with(index, known)
        return int(placeholder is not None)


def read_words(model: ir.Model) -> TorchWords | None:
    """Return what torch's dynamo exporter says of a model's tensors; None for a model of another origin."""
    entries = _ENTRY.findall(model.graph.metadata_props.get(_SIGNATURE, ""))
    if not entries:
        return None
    return TorchWords(
        model.graph, {each: target for each, _, target in entries}, {each: kind for each, kind, _ in entries}
    )


def is_folded(value: ir.Value) -> bool:
    """Return whether torch's optimizer computed a tensor."""
    return bool(_folded(value))


def _folded(value: ir.Value) -> list[str]:
    """Return the names of what a tensor was folded from; empty if it was not."""
    return names_in(value.metadata_props.get(_FOLDED, "[]"))


def _is_inside(node: ir.Node) -> bool:
    """Return whether a node is an instance normalization of ones and zeros, which the exporter makes groups of."""
    return node.op_type == "InstanceNormalization" and _called(node).endswith("group_norm")


def _called(node: ir.Node) -> str:
    """Return the function of torch that a node belongs to."""
    found = _TARGET.search(node.metadata_props.get(CALL, ""))
    return found[1] if found else ""
