"""Projections that a builder of models for generation packs into one product, apart again, under torch's names.

Rules:
    U1. Of a product whose rows are queries, keys and values (qkv_proj), or a gate and what it gates (gate_up_proj),
        three or two products are made: each has the same numbers as its part had, and an adapter of its own.
    U2. Targets that name the packed weight, and none of its parts, keep it: some decoders have it so in torch, too.
    U3. A head whose transposed weight is the table of the embedding is stored as that table, and reads its transposed.
    U4. The names of weights and biases become those of the modules in transformers. What is not known stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.files.embedded import Elsewhere
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.passes.generation.expansion import columns_of
from poet_onnx.passes.node_builder import initializer, let_stand_for, tensor_initializer
from poet_onnx.passes.views import only_maker

PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""What builders call packed projections, and what these are packed of."""

_LAYER = r"(?P<layer>(?:model\.)?layers\.\d+)\."
_NAMES = (
    (
        re.compile(rf"{_LAYER}attn\.(?P<module>\w+)\.(?:MatMul|Add)\.(?P<rest>\w+)"),
        r"\g<layer>.self_attn.\g<module>.\g<rest>",
    ),
    (re.compile(rf"{_LAYER}mlp\.(?P<module>\w+)\.(?:MatMul|Add)\.(?P<rest>\w+)"), r"\g<layer>.mlp.\g<module>.\g<rest>"),
    (re.compile(r"lm_head\.(?:MatMul|Add)\.(?P<rest>\w+)"), r"lm_head.\g<rest>"),
)
"""Names of weights that the builder of onnxruntime-genai gives (`make_matmul` in its builders/base.py), and torch's."""

_PARALLEL = re.compile(r"/(?P<layer>(?:model/)?layers\.\d+)/residual_add/Add")
"""A node that the builder writes for Phi alone, whose o_proj is called dense in transformers (its builders/phi.py)."""

_CODED = re.compile(r"_(?:Q[48]|scales|zero_points)$")


def torch_name(name: str) -> str:
    """Return what a weight is called in transformers (U4)."""
    for pattern, other in _NAMES:
        if pattern.fullmatch(name):
            return pattern.sub(other, name)
    return name


def give_torch_names(graph: ir.Graph) -> None:
    """Rename initializers where the other name is free (U4); changes the graph."""
    phi = {match["layer"].replace("/", ".") for node in graph if (match := _PARALLEL.fullmatch(node.name or ""))}
    taken = {value.name for node in graph for value in node.outputs} | {value.name for value in graph.inputs}
    for name, value in list(graph.initializers.items()):
        other = torch_name(name)
        layer, _, rest = other.partition(".self_attn.o_proj.")
        if rest and layer in phi:
            other = f"{layer}.self_attn.dense.{rest}"
        if other != name and other not in taken and other not in graph.initializers and not value.is_graph_input():
            del graph.initializers[name]
            value.name = other
            graph.register_initializer(value)


def store_tables(graph: ir.Graph) -> None:
    """Store what an embedding and a head have in common as the embedding reads it (U3); changes the graph."""
    for node in list(graph):
        weight = node.inputs[0] if node.op_type == "Transpose" and node.domain in ONNX_DOMAINS else None
        tensor = None if weight is None else weight.const_value
        if weight is None or tensor is None or not weight.is_initializer() or len(tensor.shape) != 2:
            continue
        products = [use for use in weight.uses() if use.node is not node]
        look_ups = [use.node for use in node.outputs[0].uses()]
        is_tied = all(use.node.op_type == "MatMul" and use.idx == 1 for use in products) and products
        if not is_tied or not all(each.op_type == "Gather" for each in look_ups) or node.outputs[0].is_graph_output():
            continue
        name = weight.name or ""
        del graph.initializers[name]
        table = initializer(graph, name, np.ascontiguousarray(tensor.numpy().T))
        node.outputs[0].replace_all_uses_with(table)
        graph.remove(node)
        for number, use in enumerate(products):
            perm = [ir.AttrInt64s("perm", [1, 0])]
            turned = ir.Node("", "Transpose", [table], perm, num_outputs=1, name=f"{name}/transposed_{number}")
            turned.outputs[0].name = f"{name}/transposed_{number}"
            graph.insert_before(use.node, turned)
            use.node.replace_input_with(use.idx, turned.outputs[0])


def part_projections(graph: ir.Graph, targets: Sequence[str]) -> None:
    """Part packed projections whose results are split (U1); changes the graph.

    Args:
        graph: in which what is packed is split by a Split.
        targets: patterns of names of weights that are to have adapters (U2).
    """
    for node in list(graph):
        found = _Packed.before(node)
        if found is not None and not found.is_kept(targets):
            _part(graph, found)


@dataclass(frozen=True)
class _Packed:
    """A product, and perhaps a bias behind it, whose result a Split parts.

    Attributes:
        split: the node behind it.
        sizes: columns of each part.
        product: the product.
        bias: node that adds a bias, if there is one.
        name: what the projection is called, a key of `PACKED`.
    """

    split: ir.Node
    sizes: tuple[int, ...]
    product: ir.Node
    bias: ir.Node | None
    name: str

    @classmethod
    def before(cls, split: ir.Node) -> _Packed | None:
        """Return what a node splits; None where it is no packed projection."""
        if split.op_type != "Split" or split.domain not in ONNX_DOMAINS or split.attributes.get_int("axis", 0) != -1:
            return None
        maker, bias = only_maker(split.inputs[0]), None
        if maker is not None and maker.op_type == "Add" and maker.domain in ONNX_DOMAINS:
            bias, constants = maker, [value for value in maker.inputs if value is not None and value.is_initializer()]
            others = [value for value in maker.inputs if value not in constants]
            if len(constants) != 1 or len(_shape(constants[0])) != 1:
                return None
            maker = only_maker(others[0])
        if maker is None or not _is_product(maker):
            return None
        weight = maker.inputs[1]
        name = next((each for each in PACKED if weight is not None and each in (weight.name or "")), "")
        columns = columns_of(maker.outputs[0])
        sizes = _sizes(split, columns)
        if not name or len(PACKED[name]) != len(sizes) or columns != sum(sizes):
            return None
        return cls(split, sizes, maker, bias, name)

    def is_kept(self, targets: Sequence[str]) -> bool:
        """Return whether targets name it, and none of its parts."""
        weight = self.product.inputs[1]
        assert weight is not None
        whole = _CODED.sub("", torch_name(weight.name or ""))
        names = [whole, *(whole.replace(self.name, part) for part in PACKED[self.name])]
        named = [any(fnmatchcase(name, pattern) for pattern in targets) for name in names]
        return named[0] and not any(named[1:])


def _sizes(split: ir.Node, columns: int | None) -> tuple[int, ...]:
    """Return the columns of each part that a node makes; nothing where they are not known."""
    given = split.inputs[1] if len(split.inputs) > 1 else None
    if given is None:
        count = len(split.outputs)
        return () if columns is None or columns % count else (columns // count,) * count
    tensor = ir.convenience.get_const_tensor(given)
    return () if tensor is None else tuple(int(size) for size in tensor.numpy())


def _is_product(node: ir.Node) -> bool:
    """Return whether a node multiplies with constants that it alone reads."""
    is_quantized = node.op_type == "MatMulNBits" and node.domain == MICROSOFT_DOMAIN
    if not is_quantized and (node.op_type != "MatMul" or node.domain not in ONNX_DOMAINS):
        return False
    own = [value for value in node.inputs[1:] if value is not None]
    if is_quantized and len(node.inputs) > 4 and node.inputs[4] is not None:
        return False  # columns in another order are refused elsewhere
    return all(value.is_initializer() and value.const_value is not None and len(value.uses()) == 1 for value in own)


def _shape(value: ir.Value) -> tuple[int, ...]:
    return () if value.const_value is None else tuple(value.const_value.shape.numpy())


def _part(graph: ir.Graph, found: _Packed) -> None:
    ends = list(accumulate(found.sizes))
    read = [value for node in (found.product, found.bias) if node is not None for value in node.inputs[1:]]
    for name, size, end, output in zip(PACKED[found.name], found.sizes, ends, found.split.outputs, strict=True):
        part = _Part(graph, found, name, end - size, size)
        made = part.product()
        if found.bias is not None:
            made = part.biased(made)
        let_stand_for(made, output)
    gone = [found.split, *([] if found.bias is None else [found.bias]), found.product]
    graph.remove(gone, safe=True)
    for value in read:
        if value is not None and value.is_initializer() and not value.uses():
            graph.initializers.pop(value.name or "", None)


@dataclass(frozen=True)
class _Part:
    """One of the projections that are packed: so many columns of the result, from one on."""

    graph: ir.Graph
    of: _Packed
    name: str
    first: int
    size: int

    def product(self) -> ir.Value:
        """Write its product."""
        packed = self.of.product
        is_quantized = packed.op_type == "MatMulNBits"
        weights = [self._rows(value) if is_quantized else self._columns(value) for value in packed.inputs[1:]]
        attributes = [attribute for name, attribute in packed.attributes.items() if name != "N"]
        attributes += [ir.AttrInt64("N", self.size)] if is_quantized else []
        return self._written(packed, [packed.inputs[0], *weights], attributes)

    def biased(self, made: ir.Value) -> ir.Value:
        """Write the sum with its bias."""
        adding = self.of.bias
        assert adding is not None
        inputs = [self._columns(value) if value and value.is_initializer() else made for value in adding.inputs]
        return self._written(adding, inputs, [])

    def _written(self, old: ir.Node, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr]) -> ir.Value:
        node = ir.Node(old.domain, old.op_type, inputs, attributes, num_outputs=1, name=self._named(old.name))
        value, whole = node.outputs[0], old.outputs[0]
        value.name, value.type = self._named(whole.name), whole.type
        value.shape = None if whole.shape is None else ir.Shape([*whole.shape[:-1], self.size])
        self.graph.insert_before(old, node)
        return value

    def _named(self, name: str | None) -> str:
        other = (name or "").replace(self.of.name, self.name)
        return other if other != name else f"{name}/{self.name}"

    def _rows(self, value: ir.Value | None) -> ir.Value | None:
        """Return its part of codes, scales or zeros, of which a row of the weight has as many as any other one."""
        if value is None:
            return None
        tensor, rows = value.const_value, sum(self.of.sizes)
        assert tensor is not None  # as `_is_product` found
        shape = tuple(tensor.shape.numpy())
        per_row = tensor.size // rows
        sizes = (self.size, *shape[1:]) if shape[0] == rows else (self.size * per_row,)
        name = self._named(value.name)
        if isinstance(tensor, Elsewhere) and tensor.dtype.itemsize >= 1:
            return tensor_initializer(self.graph, tensor.part(self.first * per_row, sizes, name))
        flat = tensor.numpy().reshape(-1)[self.first * per_row : (self.first + self.size) * per_row]
        return initializer(self.graph, name, np.ascontiguousarray(flat).reshape(sizes))

    def _columns(self, value: ir.Value | None) -> ir.Value | None:
        """Return its part of a matrix of floats, or of a bias."""
        if value is None or value.const_value is None:
            return None
        array: npt.NDArray[Any] = value.const_value.numpy()
        part = np.ascontiguousarray(array[..., self.first : self.first + self.size])
        return initializer(self.graph, self._named(value.name), part)
