"""Parts what torch's dynamo exporter merged because its numbers were equal, and brings biases back that it left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.evidence import is_drawn
from poet_onnx.gradients.module_names import module_of
from poet_onnx.gradients.paths import REAL
from poet_onnx.gradients.torch_arguments import gone_sums, is_own, moved_names, names_of
from poet_onnx.gradients.torch_words import KIND, PLACEHOLDER, TorchWords, called_by, folded_from
from poet_onnx.passes.node_builder import initializer

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


class Parting:
    """Parts the tensors of one model.

    Attributes:
        lost: what `part` found that it could not restore.
    """

    def __init__(self, words: TorchWords) -> None:
        """Set out with what is said of the model."""
        self._words = words
        self.lost: list[Lost] = []

    def part(self) -> int:
        """Part all that can be, and return how many tensors are parted."""
        parted = 0
        for node in list(self._words.graph):
            mentioned = self._words.mentioned(node)
            slots = [
                (index, value)
                for index, value in enumerate(node.inputs)
                if value is not None and value.is_initializer() and value.dtype in REAL
            ]
            whole = [value for _, value in slots if self._words.owners(value) and not folded_from(value)]
            if slots and mentioned and not _is_inside(node) and not any(map(self._words.is_changed, whole)):
                parted += self._part_inputs(node, slots, mentioned)
            elif not mentioned or _is_inside(node):
                self._keep_constants(node, slots)
        for node in self._words.graph:
            self._restore_bias(node)
        self._words.count_again()
        parted += self._part_moved()
        for node in self._words.graph:
            absent = filter(self._words.is_gone, self._words.mentioned(node))
            self._lose(absent, f"gone: the exporter folded or dropped it at '{node.name}'")
        if gone_sums(self._words.graph, self._words.results):
            self._lose(
                self._unmentioned(), "gone: shared, unread, or 1 or 0 in a product or sum that the exporter dropped"
            )
        self.lost = list({each.name: each for each in self.lost}.values())
        return parted

    def _unmentioned(self) -> list[str]:
        """Return the parameters that no tensor comes of, and no node mentions."""
        named = {each for node in self._words.graph for each in self._words.mentioned(node)}
        return [each for each in self._words.targets if self._words.is_gone(each) and each not in named]

    def _lose(self, placeholders: Iterable[str], reason: str) -> None:
        self.lost += [Lost(self._words.targets[each], reason) for each in placeholders]

    def _part_inputs(self, node: ir.Node, slots: list[tuple[int, ir.Value]], mentioned: list[str]) -> int:
        held = self._words.held
        absent = [each for each in mentioned if not held[each]]
        # What another call made of a parameter, as `w.t()`, is none of those that are mentioned.
        slots = [(index, value) for index, value in slots if not moved_names(node, index, self._made)]
        if len(slots) == len(mentioned):  # the node reads them in the order of the call
            pairs = list(zip(slots, mentioned, strict=True))
            # What nobody owns is no parameter.
            owned = [(self._words.owners(value), each) for (_, value), each in pairs]
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
        gone: dict[str, list[str]] = {}
        for each in self._unmentioned():
            gone.setdefault(self._words.module_owning(each), []).append(each)
        values = [value for value in self._words.graph.initializers.values() if value.dtype in REAL] if gone else []
        owned = [value for value in values if any(map(self._words.trains, self._words.owners(value)))]
        parted = sum(self._part_readers(value, gone) for value in owned)
        self._words.count_again()
        for node in self._words.graph if gone else ():
            self._doubt_parts(node, gone)
        return parted

    def _doubt_parts(self, split: ir.Node, gone: Mapping[str, Sequence[str]]) -> None:
        """Call parameters lost that were split as another one was, of which the exporter kept one Split."""
        whole = split.inputs[0] if split.op_type == "Split" else None
        if whole is None or not whole.is_initializer() or whole.const_value is None or is_drawn(whole):
            return
        owned = set(map(self._words.module_owning, self._words.owners(whole)))
        for part in split.outputs:
            slots = [(node, moved_names(node, index, self._made)) for node, index in part.uses()]
            calls = {name for _, names in slots for name in names}
            for node, _ in slots:
                own = gone.get(module_of(node), ())
                if own and (len(calls) > 1 or module_of(node) not in owned):
                    self._doubt(own, whole, node)

    def _part_readers(self, value: ir.Value, gone: Mapping[str, Sequence[str]]) -> int:
        """Give the readers of a tensor tensors of their own where their modules have parameters that are gone."""
        owned = set(map(self._words.module_owning, self._words.owners(value)))
        slots = [
            (node, index, self._words.mentioned(node) or moved_names(node, index, self._made))
            for node, index in value.uses()
        ]
        others = [(node, index, names) for node, index, names in slots if names and not self._words.mentioned(node)]
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
        owners = ", ".join(sorted(repr(self._words.targets[each]) for each in self._words.owners(value)))
        reason = f"may be merged with {owners}, read by '{node.name}'"
        self._lose(placeholders, reason)

    def _in_place_of(self, value: ir.Value, node: ir.Node, mentioned: list[str]) -> str | None:
        """Return what a node's call has where a like call, to which a tensor belongs, has that tensor's owner."""
        for reader, _ in value.uses():
            others = self._words.mentioned(reader)
            places = [place for place, each in enumerate(others) if each in self._words.owners(value)]
            if len(places) == 1 and len(others) == len(mentioned) and called_by(reader) == called_by(node):
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
                self._lose(filter(self._words.trains, self._words.owners(value)), reason)

    @cached_property
    def _made(self) -> frozenset[str]:
        made = (output for node in self._words.graph for output in node.outputs)
        return frozenset(value.name or "" for value in (*self._words.graph.inputs, *made))

    def _restore_bias(self, node: ir.Node) -> None:
        """Give a node the bias again that the optimizer left out because all its numbers were zeros."""
        weight = node.inputs[1] if len(node.inputs) == 2 else None
        if node.op_type not in _BIASED or weight is None or not weight.is_initializer():
            return
        bias = self._bias_of(node, weight)
        if bias is None:
            return
        if called_by(node) == "addmm" and not self._words.targets[bias].endswith("bias"):  # it might be a matrix
            self._lose([bias], f"gone: the exporter left its zeros out at '{node.name}'")
            return
        own = self._words.graph.initializers.get(self._words.targets[bias])  # there already if a layer is called twice
        if own is None and weight.const_value is not None:
            size = _BIASED[node.op_type](node, tuple(weight.const_value.shape.numpy()))
            zeros = np.zeros(size, np.asarray(weight.const_value.numpy()).dtype)
            own = initializer(self._words.graph, self._words.targets[bias], zeros)
            own.metadata_props.update({PLACEHOLDER: bias, KIND: self._words.kinds[bias]})
        node.resize_inputs(3)
        node.replace_input_with(2, own)

    def _bias_of(self, node: ir.Node, weight: ir.Value) -> str | None:
        """Return the placeholder of the bias that a call is given, for which its node has no input."""
        names = names_of(node)
        if len(names) != 3:
            return None
        given, bias = (names[2], names[0]) if called_by(node) == "addmm" else names[1:]
        if bias not in self._words.targets or not self._words.trains(bias):
            return None
        if given not in self._words.targets:  # what another call made of the weight, as `w.t()`
            return bias
        return bias if given in self._words.owners(weight) and not self._words.is_changed(weight) else None

    def _is_strange(self, value: ir.Value, mentioned: list[str]) -> bool:
        """Return whether a tensor belongs to another call than that of a node, which mentions others."""
        owners = self._words.owners(value)
        if not owners or not owners.isdisjoint(mentioned):
            return False
        return any(not owners.isdisjoint(self._words.mentioned(node)) for node, _ in value.uses())

    def _give_own(self, node: ir.Node, index: int, value: ir.Value, placeholder: str | None) -> int:
        """Let a node read a tensor of its own again, which is a placeholder's or a constant."""
        name = f"{value.name}/constant/{node.name}" if placeholder is None else self._words.targets[placeholder]
        if placeholder is not None and folded_from(value):
            name = f"{name}/moved"
        known = self._words.graph.initializers.get(name)
        if known is None:
            taken = {output.name for each in self._words.graph for output in each.outputs}
            own = ir.Value(
                name=f"{name}/parted" if name in taken else name,
                type=value.type,
                shape=value.shape,
                const_value=value.const_value,
            )
            if placeholder is not None:
                own.metadata_props.update({PLACEHOLDER: placeholder, KIND: self._words.kinds[placeholder]})
            self._words.graph.register_initializer(own)
            known = own
        node.replace_input_with(index, known)
        return int(placeholder is not None)


def _is_inside(node: ir.Node) -> bool:
    """Return whether a node is an instance normalization of ones and zeros, which the exporter makes groups of."""
    return node.op_type == "InstanceNormalization" and called_by(node).endswith("group_norm")
