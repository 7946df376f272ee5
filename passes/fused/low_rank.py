"""Low-rank adapters as one node each, and one of their gradients.

Rules:
    A1. What is added to a value in two products, the first with A and the second with B, with a factor between them or
        not, becomes an AddLowRank, if A and B are trained and read there alone.
    A2. The value is made by a node, and read by the sum alone, whose place it may take. All that is between is read by
        nobody else, nor is it an output.
    A3. A constant that is added to the sum along its last axis, such as the bias of a layer, goes into the node.
    A4. Behind differentiation, terms of a gradient by x are added in the nodes that make one of them, each of what is
        there before it, and not by themselves.
    A5. Where no other adapter's gradient reads x, which is wider than the product, the gradients by A and B have a node
        of their own: x may be gone before the gradient by x, as large, is made. In a decoder, x is what the last layer
        of a feed-forward block reads, and among the largest values of the step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators import ONNX_DOMAINS, low_rank
from poet_onnx.passes.fused.reading import is_float, is_frozen, number_in, only_reader, other_input
from poet_onnx.passes.node_builder import initializer, let_stand_for
from poet_onnx.passes.views import only_maker, sizes_of

_ONE = "lora/scale/1.0"

_FLOAT_BYTES, _LARGE_BYTES = 4, 1 << 16
"""A node more takes some KiB of a session, and is written where it spares more."""


@dataclass(frozen=True)
class _Adapter:
    """What is added to a value.

    Attributes:
        base: the value.
        x: what is multiplied.
        first, second: A and B.
        scale: the factor; None for 1.
        nodes: that are replaced, last to first.
    """

    base: ir.Value
    x: ir.Value
    first: ir.Value
    second: ir.Value
    scale: ir.Value | None
    nodes: tuple[ir.Node, ...]

    @classmethod
    def of(cls, total: ir.Node, trained: Collection[str]) -> _Adapter | None:
        """Return what a node adds; None where A1 or A2 do not hold."""
        if not _is(total, "Add"):
            return None
        for base, added in (total.inputs, total.inputs[::-1]):
            if base is None or only_maker(base) is None:
                continue
            high = only_maker(added)
            second = _weight(high, trained)
            inner = only_maker(high.inputs[0]) if high is not None and second is not None else None
            scale, between = None, []
            if inner is not None and _is(inner, "Mul"):
                scale, between = inner.inputs[1], [inner]
                is_factor = is_frozen(scale, trained) and number_in(scale) is not None
                inner = only_maker(inner.inputs[0]) if is_factor else None
            first = _weight(inner, trained)
            x = inner.inputs[0] if inner is not None and first is not None else None
            if high is None or inner is None or x is None or first is None or second is None:
                continue
            found = cls(base, x, first, second, scale, (total, high, *between, inner))
            if found._fits(total.outputs[0]):
                return found
        return None

    def _fits(self, total: ir.Value) -> bool:
        values = (self.base, self.x, self.first, self.second, total)
        if not all(map(is_float, values)):
            return False
        base, x, first, second, made = (sizes_of(each) for each in values)
        is_product = len(x) >= 2 and x[-1:] == first[:1] and first[1:] == second[:1]
        return is_product and base == made == (*x[:-1], *second[1:]) and 0 not in base + x


class AddLowRank(InPlacePass):
    """Write adapters as nodes of their own (A1 to A3). Requires a graph with static shapes."""

    def __init__(self, trained: Collection[str]) -> None:
        """Set the names of initializers that are trained."""
        super().__init__()
        self._trained = frozenset(trained)

    def call(self, model: ir.Model) -> PassResult:
        """Write the nodes."""
        modified = False
        for node in list(model.graph):
            found = _Adapter.of(node, self._trained)
            if found is not None:
                self._write(model.graph, node, found)
                modified = True
        return PassResult(model, modified=modified)

    def _write(self, graph: ir.Graph, total: ir.Node, found: _Adapter) -> None:
        last, bias = self._with_bias(total)
        scale = found.scale if found.scale is not None else _one(graph)
        inputs = [found.base, found.x, found.first, found.second, scale, *([] if bias is None else [bias])]
        new = _addition(inputs, f"{found.base.name}/low", total.name, is_biased=bias is not None)
        graph.insert_after(last, new)
        let_stand_for(new.outputs[0], last.outputs[0])
        graph.remove([last, *found.nodes] if last is not total else found.nodes, safe=True)

    def _with_bias(self, total: ir.Node) -> tuple[ir.Node, ir.Value | None]:
        """Return the last node of a sum, and the bias that it adds if there is one (A3)."""
        value = total.outputs[0]
        reader = only_reader(value, "Add")
        bias = other_input(reader, value) if reader is not None else None
        if reader is None or bias is None or not is_frozen(bias, self._trained):
            return total, None
        return (reader, bias) if sizes_of(bias) == sizes_of(value)[-1:] else (total, None)


class JoinGradients(InPlacePass):
    """Add terms of gradients in the nodes of adapters' gradients (A4)."""

    def call(self, model: ir.Model) -> PassResult:
        """Remove the sums."""
        graph = model.graph
        position = {node: index for index, node in enumerate(graph)}
        modified = False
        for total in list(graph):
            terms = [value for value in total.inputs if value is not None] if _is(total, "Sum") else []
            own = [term for term in terms if _is_by_x(term)]
            if own:
                _join(graph, total, own, [term for term in terms if term not in own], position)
                modified = True
        if modified:
            graph.sort()
        return PassResult(model, modified=modified)


class PartGradients(InPlacePass):
    """Part the gradients by A and B from that by what is multiplied with them (A5). Requires static shapes."""

    def call(self, model: ir.Model) -> PassResult:
        """Write two nodes in place of one."""
        found = [node for node in model.graph if _is_gradient(node) and _is_worth_parting(node)]
        for node in found:
            _part(model.graph, node)
        return PassResult(model, modified=bool(found))


def _is_worth_parting(node: ir.Node) -> bool:
    """Return whether A5 holds for a node that adds one term."""
    if node.attributes["added"].as_int() != 1:
        return False
    d_y, x = (value for value in node.inputs[1:3] if value is not None)
    readers = [each for each in x.consumers() if _is_gradient(each) or each.op_type == low_rank.WEIGHT_GRADIENT]
    is_large = _FLOAT_BYTES * math.prod(sizes_of(x)) >= _LARGE_BYTES
    return is_large and readers == [node] and sizes_of(x)[-1] > sizes_of(d_y)[-1]


def _part(graph: ir.Graph, node: ir.Node) -> None:
    """Write a node for the gradients of A and B, and one that adds to the gradient by x."""
    added, d_y, x, low, first, second, scale = node.inputs
    inputs = [d_y, x, low, second, scale]
    weights = ir.Node(POET_DOMAIN, low_rank.WEIGHT_GRADIENT, inputs, num_outputs=2, name=node.name)
    total = _addition([added, d_y, first, second, scale], f"{node.name}/low", f"{node.name}/x", is_transposed=True)
    graph.insert_after(node, [weights, total])
    for new, old in zip((total.outputs[0], *weights.outputs), node.outputs, strict=True):
        let_stand_for(new, old)
    graph.remove(node, safe=True)


def _addition(
    inputs: Sequence[ir.Value | None],
    low: str,
    name: str | None,
    *,
    is_biased: bool = False,
    is_transposed: bool = False,
) -> ir.Node:
    """Return an AddLowRank of these inputs, whose second output has a name."""
    x, first = inputs[1], inputs[2]
    assert x is not None
    assert first is not None
    rank = sizes_of(first)[1]
    attributes = {"biased": int(is_biased), "rank": rank, "transposed": int(is_transposed)}
    numbers = [ir.AttrInt64(key, number) for key, number in attributes.items()]
    new = ir.Node(POET_DOMAIN, low_rank.ADD, inputs, numbers, num_outputs=2, name=name)
    made = new.outputs[1]
    made.name, made.type, made.shape = low, x.type, ir.Shape((*sizes_of(x)[:-1], rank))
    return new


def _join(
    graph: ir.Graph, total: ir.Node, own: list[ir.Value], others: list[ir.Value], position: dict[ir.Node, int]
) -> None:
    """Let the nodes that make some terms of a sum add the others: each what there is before the next one."""

    def place(value: ir.Value) -> int:
        maker = value.producer()
        return -1 if maker is None else position[maker]

    own.sort(key=place)
    ends = [*(place(term) for term in own[1:]), len(position)]
    before: list[ir.Value] = []
    for term, end in zip(own, ends, strict=True):
        added = [*before, *(other for other in others if place(other) < end)]
        others = [other for other in others if other not in added]
        node = term.producer()
        assert node is not None
        _add_terms(node, sorted(added, key=lambda each: len(each.uses()) != 1))
        before = [term]
    let_stand_for(own[-1], total.outputs[0])
    graph.remove(total, safe=True)


def _add_terms(node: ir.Node, terms: Sequence[ir.Value]) -> None:
    """Let a node of a gradient add terms; of the first one it may take the buffer, if nobody else reads it."""
    inputs = [*terms, *node.inputs]
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)
    node.attributes["added"] = ir.AttrInt64("added", len(terms))


def _is_by_x(value: ir.Value) -> bool:
    """Return whether a value that one node alone reads is the gradient by what an adapter multiplies."""
    maker = only_maker(value)
    return maker is not None and _is_gradient(maker) and value.index() == 0


def _is_gradient(node: ir.Node) -> bool:
    return node.op_type == low_rank.GRADIENT and node.domain == POET_DOMAIN


def _is(node: ir.Node, operator: str) -> bool:
    return node.op_type == operator and node.domain in ONNX_DOMAINS


def _weight(node: ir.Node | None, trained: Collection[str]) -> ir.Value | None:
    """Return the trained matrix that a node multiplies with, and nobody else reads."""
    value = node.inputs[1] if node is not None and _is(node, "MatMul") else None
    is_trained = value is not None and value.is_initializer() and value.name in trained
    is_alone = value is not None and len(value.uses()) == 1 and not value.is_graph_output()
    return value if is_trained and is_alone else None


def _one(graph: ir.Graph) -> ir.Value:
    """Return the factor of adapters without one."""
    known = graph.initializers.get(_ONE)
    return initializer(graph, _ONE, np.array(1, np.float32)) if known is None else known
