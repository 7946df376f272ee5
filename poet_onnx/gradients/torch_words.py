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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from poet_onnx.description.names import STOPS_GRADIENT
from poet_onnx.gradients.evidence import RECURRENT, WEIGHTS
from poet_onnx.gradients.module_names import names_in
from poet_onnx.gradients.paths import REAL
from poet_onnx.gradients.torch_arguments import CALL, names_of

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
PLACEHOLDER = "pkg.torch.onnx.original_node_name"
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


@dataclass
class TorchWords:
    """The words of one model.

    Attributes:
        graph: of the model.
        targets: names in the module, by placeholder.
        kinds: of the placeholders.
    """

    graph: ir.Graph
    targets: Mapping[str, str]
    kinds: Mapping[str, str]

    @cached_property
    def _placeholders(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for placeholder, target in self.targets.items():
            found.setdefault(target, []).append(placeholder)
        return found

    @cached_property
    def _are_kept(self) -> bool:
        """Whether tensors still have metadata of their own: other tools drop them."""
        return any(KIND in value.metadata_props for value in self.graph.initializers.values())

    @cached_property
    def results(self) -> list[str]:
        """The names of what the traced program returns."""
        return _RESULT.findall(self.graph.metadata_props.get(_SIGNATURE, ""))

    def owners(self, value: ir.Value) -> frozenset[str]:
        """Return the placeholders of what a tensor is, or was folded from."""
        own = value.metadata_props.get(PLACEHOLDER)
        if own is not None and own in self.targets:
            return frozenset((own,))
        names = [value.name or "", *folded_from(value)]
        return frozenset(each for name in names for each in self._placeholders.get(name, ()))

    def is_constant(self, value: ir.Value) -> bool:
        """Return whether the exporter says that a tensor is no parameter, and was folded from none."""
        owners = self.owners(value)
        if owners:
            return not any(map(self.trains, owners))
        return self._are_kept

    def is_parameter(self, value: ir.Value) -> bool:
        """Return whether a tensor is a parameter, or one that only stands in another layout."""
        return self.why_not(value) == "" and any(map(self.trains, self.owners(value)))

    def why_not(self, value: ir.Value) -> str:
        """Return why training a tensor is not what torch does; empty if it is, or the tensor is no parameter's."""
        owners = list(filter(self.trains, self.owners(value)))
        if not owners:
            return ""
        names = ", ".join(sorted(repr(self.targets[each]) for each in owners))
        if not folded_from(value):
            return "" if not self.is_changed(value) else "a batch normalization was folded into its numbers"
        if not self._is_moved(value, owners):
            return f"computed of {names} by the exporter"
        if any(self.held[each] > 1 for each in owners):
            return f"one of several copies of {names}"
        return ""

    @cached_property
    def held(self) -> Counter[str]:
        """How many tensors come of each placeholder."""
        read = (value for value in self.graph.initializers.values() if value.dtype in REAL and value.uses())
        return Counter(each for value in read for each in self.owners(value))

    def count_again(self) -> None:
        """Forget how many tensors come of each placeholder, for readers have changed."""
        self.__dict__.pop("held", None)

    def is_changed(self, value: ir.Value) -> bool:
        """Return whether a batch normalization was folded into a tensor's numbers, as far as can be told."""
        if self._are_kept and KIND not in value.metadata_props:
            return True
        readers = [node for node, _ in value.uses() if not node.op_type.endswith("Normalization")]
        return any(_NORMALIZES in called_by(node) for node in readers)

    def _is_moved(self, value: ir.Value, owners: Iterable[str]) -> bool:
        """Return whether each number of some parameters is in a folded tensor once, as it was."""
        if all(node.op_type in RECURRENT and index in WEIGHTS[node.op_type] for node, index in value.uses()):
            return True  # ONNX has the gates in another order
        names = {self.targets[each] for each in owners}
        steps = [*(name for name in folded_from(value) if name not in names), value.name or ""]
        if not all(_COMPUTED.fullmatch(name) or is_moved(name) for name in steps[:-1]):
            return False
        if not _COMPUTED.fullmatch(steps[-1]):
            return is_moved(steps[-1])
        return all(called_by(node) in _LAYS_OUT for node, _ in value.uses())

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

    def trains(self, placeholder: str) -> bool:
        """Return whether a placeholder is a parameter's."""
        return self.kinds[placeholder] == _PARAMETER

    def is_gone(self, placeholder: str) -> bool:
        """Return whether a placeholder is that of a parameter of which no tensor comes."""
        return self.trains(placeholder) and not self.held[placeholder]

    def module_owning(self, placeholder: str) -> str:
        """Return the name of the module that owns what a placeholder stands for."""
        return self.targets[placeholder].rpartition(".")[0]

    def mentioned(self, node: ir.Node) -> list[str]:
        """Return the placeholders that the call of a node reads."""
        return [each for each in dict.fromkeys(names_of(node)) if each in self.targets]


def read_words(model: ir.Model) -> TorchWords | None:
    """Return what torch's dynamo exporter says of a model's tensors; None for a model of another origin."""
    entries = _ENTRY.findall(model.graph.metadata_props.get(_SIGNATURE, ""))
    if not entries:
        return None
    return TorchWords(
        model.graph, {each: target for each, _, target in entries}, {each: kind for each, kind, _ in entries}
    )


def is_moved(name: str) -> bool:
    """Return whether torch's dynamo exporter names so what a tensor becomes in another layout, as `permute_1`."""
    return _NUMBERED.sub("", name) in _MOVES


def folded_from(value: ir.Value) -> list[str]:
    """Return the names of what a tensor was folded from; empty if it was not."""
    return names_in(value.metadata_props.get(_FOLDED, "[]"))


def called_by(node: ir.Node) -> str:
    """Return the function of torch that a node belongs to."""
    found = _TARGET.search(node.metadata_props.get(CALL, ""))
    return found[1] if found else ""
