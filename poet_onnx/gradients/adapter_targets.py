"""Which weights can have adapters: those of matrix products, convolutions and look-ups, whatever their names are.

Rules:
    T1. A weight is followed through Identity and Transpose, as exporters put them, and through the DequantizeLinear of
        one of a few bits, to the nodes that read it. One adapter serves them all: what is tied stays tied.
    T2. A weight goes by its own name, that of an Identity of it, and what its module's weight is called. Of a weight
        that an exporter computed and named itself, the module is read from the node that reads it: torch's older
        exporter names the node by it, the newer one writes it into the node's metadata.
       The name of a bias tells it better.
    T3. Nodes of other operators must not read the weight: the adapter would not reach them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from poet_onnx.adapters.lora import CONVOLUTION, EMBEDDING, LINEAR, WEIGHT
from poet_onnx.adapters.shared import Shared
from poet_onnx.gradients.module_names import ANONYMOUS, module_of
from poet_onnx.gradients.paths import REAL
from poet_onnx.graph.operators import ONNX_DOMAINS

BIAS = ".bias"
"""How the name of a torch module's bias ends."""

PLACES = {("MatMul", 1): LINEAR, ("Gemm", 1): LINEAR, ("Gather", 0): EMBEDDING, ("Conv", 1): CONVOLUTION}
"""What reads a weight, by operator and input."""

_NUMBERS = REAL | {
    *(ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4),
    *(ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2),
}
"""Weights have these element types, some of them quantized. Tables of larger integers and of flags are no weights."""


@dataclass(frozen=True)
class Reader:
    """A node that reads a weight.

    Attributes:
        node: the node.
        kind: what it does with the weight.
        transposed: whether it reads the transposed of what is stored.
    """

    node: ir.Node
    kind: str
    transposed: bool


@dataclass(frozen=True)
class Weight:
    """A weight that may get an adapter.

    Attributes:
        value: the initializer.
        shape: its sizes.
        names: by which it goes (T2).
        module: name of its torch module; empty if nothing tells.
        tied: names of the modules of linear layers that share an embedding's weight.
        alike: names of other modules that share it and do the same with it.
        readers: nodes that an adapter reaches; look-ups come first.
        others: nodes that it does not.
    """

    value: ir.Value
    shape: tuple[int, ...]
    names: tuple[str, ...]
    module: str
    tied: tuple[str, ...]
    alike: tuple[str, ...]
    readers: tuple[Reader, ...]
    others: tuple[ir.Node, ...]

    @property
    def name(self) -> str:
        """Its name in the model."""
        return self.value.name or ""

    @property
    def is_tied(self) -> bool:
        """Whether it is an embedding's and a linear layer's."""
        return len({reader.kind for reader in self.readers}) > 1

    @property
    def is_quantized(self) -> bool:
        """Whether the numbers are integers, of which nodes make floats."""
        return all(_dequantizes(node, index) for node, index in self.value.uses())

    @property
    def groups(self) -> int:
        """Number of groups of a convolution; 1 for a product of matrices."""
        return self.readers[0].node.attributes.get_int("group", 1)


def find_weights(graph: ir.Graph) -> list[Weight]:
    """Return the weights of a graph in its order."""
    found = [weight for value in graph.initializers.values() if (weight := _weight(value)) is not None]
    around = _containers(graph)
    told = [_told(weight, around) for weight in found]
    taken = Counter(module for modules in told for module in modules)
    taken.update(weight.module for weight in found if weight.module)
    return [
        _named(weight, modules) if all(_is_sure(each, weight, taken) for each in modules) else weight
        for weight, modules in zip(found, told, strict=True)
    ]


def find_shared(graph: ir.Graph, weights: Iterable[Weight]) -> Iterator[Shared]:
    """Yield those of the weights that several modules share.

    A container that reads a weight, outside of the modules in it, gets it from the module that has it.
    """
    around = _containers(graph)
    for weight in weights:
        modules = tuple(name for name in (weight.module, *weight.tied, *weight.alike) if name and name not in around)
        if len(modules) > 1 and weight.name.endswith(WEIGHT):
            added = ((_module_of(reader.node), _bias_of(reader.node)) for reader in weight.readers)
            biases = {module: bias for module, bias in added if bias and module in modules}
            yield Shared(weight.name, modules, weight.is_tied and not weight.alike, biases)


def _containers(graph: ir.Graph) -> set[str]:
    """Return the names of modules in which others are."""
    found: set[str] = set()
    for name in graph.initializers:
        module = (name or "").rpartition(".")[0]
        while module := module.rpartition(".")[0]:
            found.add(module)
    return found


def _bias_of(node: ir.Node) -> str:
    """Return the name of what a linear layer adds; empty if it adds nothing."""
    adding = [node] if node.op_type == "Gemm" else [other for other, _ in node.outputs[0].uses()]
    read = [value for each in adding if each.op_type in ("Add", "Gemm") for value in each.inputs if value is not None]
    return next((value.name or "" for value in read if value.is_initializer() and len(value.shape or ()) == 1), "")


def _is_sure(module: str, weight: Weight, taken: Mapping[str, int]) -> bool:
    """Return whether a weight is a module's: no other one is, not even under the name of another call of it."""
    first = _first_call(module)
    return module == weight.module or (taken[module] == 1 and (first == module or first not in taken))


def _told(weight: Weight, containers: Collection[str]) -> dict[str, str]:
    """Return the modules that the readers tell, with what each does with the weight (T2).

    They are asked for a weight without a name, or with several modules, or read by a module that is called otherwise
    than the one that it is named by. The older exporter gives the second call of a module the name of the first with a
    number.
    """
    told: dict[str, str] = {}
    for reader in weight.readers:
        told.setdefault(_module_of(reader.node), reader.kind)
    told = {name: kind for name, kind in told.items() if _first_call(name) == name or _first_call(name) not in told}
    if len(told) > 1 or weight.is_tied or weight.name.startswith(ANONYMOUS):
        return told
    own, last = weight.module, weight.module.rpartition(".")[2]
    others = {name: kind for name, kind in told.items() if name and name not in containers}
    others = {name: kind for name, kind in others.items() if last not in _first_call(name).split(".")[-1:]}
    return {own: weight.readers[0].kind} | others if own and others else {}


def _first_call(module: str) -> str:
    return re.sub(r"_\d+$", "", module)


def _module_of(node: ir.Node) -> str:
    """Return the module of a node; its bias tells a container on the way to it, which the older exporter leaves out."""
    module = module_of(node)
    biased = [other for other, _ in node.outputs[0].uses() if other.op_type == "Add" and node.op_type == "MatMul"]
    read = [value for each in (node, *biased) for value in each.inputs if value is not None and value.is_initializer()]
    owners = {(value.name or "").removesuffix(BIAS) for value in read if (value.name or "").endswith(BIAS)}
    last = module.rpartition(".")[2]
    ends = [owner for owner in owners if owner.rpartition(".")[2] in (last, _first_call(last))]
    return ends[0] if len(owners) == len(ends) == 1 else module


def _named(weight: Weight, modules: Mapping[str, str]) -> Weight:
    """Return a weight with the names of modules; that of an embedding comes first, else that of the weight.

    A weight of several modules has none where one of them is not known: its adapter would serve that, too.
    """
    if not modules or (len(modules) == 1 and "" in modules):
        return weight
    names = dict.fromkeys([*weight.names, *(f"{module}{WEIGHT}" for module in modules if module)])
    if not all(modules):
        return replace(weight, names=tuple(names), module="")
    kind = weight.readers[0].kind
    same = [module for module in modules if modules[module] == kind]
    first = weight.module if weight.module in same else same[0]
    tied = tuple(module for module in modules if modules[module] != kind)
    alike = tuple(module for module in same if module != first)
    return replace(weight, names=tuple(names), module=first, tied=tied, alike=alike)


def _weight(value: ir.Value) -> Weight | None:
    """Return an initializer as a weight, or None if it is none."""
    tensor = value.const_value
    if tensor is None or tensor.dtype not in _NUMBERS or len(tensor.shape) < 2:
        return None
    shape = tuple(tensor.shape.numpy())
    aliases = [value.name or ""]
    readers: list[Reader] = []
    others: list[ir.Node] = []
    for node, index, transposed in _uses(value, aliases):
        kind = PLACES.get((node.op_type, index), "") if node.domain in ONNX_DOMAINS else ""
        matches = (len(shape) == 2) != (kind == CONVOLUTION) and (kind == LINEAR or not transposed)
        if not kind or not matches or (kind == EMBEDDING and node.attributes.get_int("axis", 0) != 0):
            others.append(node)
            continue
        turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
        readers.append(Reader(node, kind, transposed != turned))
    if not readers:
        return None
    readers.sort(key=lambda reader: reader.kind != EMBEDDING)
    first = aliases[0]
    module = first.removesuffix(WEIGHT) if first.endswith(WEIGHT) else ""
    return Weight(value, shape, tuple(aliases), module, (), (), tuple(readers), tuple(others))


def _uses(value: ir.Value, aliases: list[str]) -> Iterator[tuple[ir.Node, int, bool]]:
    """Yield what reads a value (T1), and whether it is transposed there; collect what else it is called."""
    pending = [(value, False)]
    while pending:
        read, transposed = pending.pop()
        for node, index in sorted(read.uses(), key=lambda use: (use.node.name or "", use.idx)):
            if node.domain in ONNX_DOMAINS and node.op_type == "Identity":
                if (node.outputs[0].name or "").endswith(WEIGHT):
                    aliases.append(node.outputs[0].name or "")
                pending.append((node.outputs[0], transposed))
            elif _dequantizes(node, index):
                pending.append((node.outputs[0], transposed))
            elif node.domain in ONNX_DOMAINS and node.op_type == "Transpose" and _turns_a_matrix(node):
                pending.append((node.outputs[0], not transposed))
            elif node.op_type != "Shape":
                yield node, index, transposed


def _dequantizes(node: ir.Node, index: int) -> bool:
    return node.domain in ONNX_DOMAINS and node.op_type == "DequantizeLinear" and index == 0


def _turns_a_matrix(node: ir.Node) -> bool:
    perm = node.attributes.get_ints("perm", None)
    source = node.inputs[0]
    if perm is not None:
        return list(perm) == [1, 0]
    return source is not None and source.shape is not None and len(source.shape) == 2
