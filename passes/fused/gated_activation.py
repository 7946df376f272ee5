"""A product whose one factor is activated, as of SwiGLU and GeGLU, in one node.

Rules:
    G1. A product of two values of one shape, one of which is an activation of a gate, becomes one node of the gate and
        the other factor. The nodes between are known ones, read the gate and constants alone, and nobody else reads
        what they make.
    G2. Which activation it is follows from its numbers: exporters and their versions write each in several ways. The
        nodes are taken for the one whose values are theirs, within what rounded constants make, on both sides of 0,
        near it and far.
    G3. All are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.graph.operators import KNOWN_DOMAINS, ONNX_DOMAINS
from poet_onnx.graph.operators.activations import ACTIVATIONS, GATED_ACTIVATE
from poet_onnx.passes.fused.reading import is_float, number_in, only_reader
from poet_onnx.passes.panel_layers import remove_unread
from poet_onnx.passes.views import replace_node, sizes_of

Numbers = npt.NDArray[np.float64]

_MOST_NODES = 12
"""Of an activation that is written out."""

_NEAR = 1e-6
"""By how much values may differ, as a part of the gate's own size and 1."""

_SAMPLE: Numbers = np.concatenate([np.linspace(-11.3, 11.7, 47), np.linspace(-1.01, 1.03, 17)])


def _sigmoid(x: Numbers) -> Numbers:
    return np.asarray(1 / (1 + np.exp(-x)))


def _erf(x: Numbers) -> Numbers:
    return np.array([math.erf(number) for number in np.ravel(x)]).reshape(np.shape(x))


def _gelu(x: Numbers) -> Numbers:
    return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))))


def _gelu_tanh(x: Numbers) -> Numbers:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


_ACTIVATIONS: dict[str, Callable[[Numbers], Numbers]] = {
    "silu": lambda x: np.asarray(x * _sigmoid(x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}

_PARTS: dict[str, Callable[..., Numbers]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Neg": np.negative,
    "Exp": np.exp,
    "Reciprocal": np.reciprocal,
    "Tanh": np.tanh,
    "Erf": _erf,
    "Sigmoid": _sigmoid,
}
"""Operators of which activations are made."""

_SINGLE = ("Gelu", "FastGelu", "Swish")
"""Operators that are activations."""


@dataclass(frozen=True)
class _Gated:
    """A product as it was found: of an activation, which one, of a gate, and another factor."""

    product: ir.Node
    activation: str
    activated: ir.Value
    gate: ir.Value
    up: ir.Value


class UseGatedActivation(InPlacePass):
    """Write the nodes (G1 to G3). Requires a graph with static shapes, without casts that do nothing."""

    def call(self, model: ir.Model) -> PassResult:
        """Write them."""
        graph = model.graph
        modified = False
        for node in list(graph):
            found = _found(node) if node.op_type == "Mul" and node.domain in ONNX_DOMAINS else None
            if found is None:
                continue
            number = ir.AttrInt64("activation", ACTIVATIONS.index(found.activation))
            replace_node(node, GATED_ACTIVATE, [found.gate, found.up], [number], [node.outputs[0]])
            remove_unread(graph, [found.activated], (*_PARTS, *_SINGLE))
            modified = True
        return PassResult(model, modified=modified)


def _found(product: ir.Node) -> _Gated | None:
    first, second = product.inputs
    if first is None or second is None or first is second or not (is_float(first) and is_float(second)):
        return None
    if sizes_of(first) != sizes_of(second):
        return None
    for activated, up in ((first, second), (second, first)):
        maker = activated.producer()
        if maker is None or maker.op_type not in (*_PARTS, *_SINGLE) or only_reader(activated, "Mul") is not product:
            continue
        for gate in _candidates(activated):
            if gate is not up and (activation := _activation(activated, gate)) is not None:
                return _Gated(product, activation, activated, gate, up)
    return None


def _candidates(activated: ir.Value) -> Iterator[ir.Value]:
    """Yield values that an activation may be of, next ones first."""
    seen: list[ir.Value] = []
    behind = [activated]
    for value in behind:
        maker = value.producer()
        if maker is None or maker.op_type not in (*_PARTS, *_SINGLE) or len(seen) > _MOST_NODES:
            continue
        for each in maker.inputs:
            if each is not None and number_in(each) is None and each not in seen:
                seen.append(each)
                behind.append(each)
                yield each


def _activation(activated: ir.Value, gate: ir.Value) -> str | None:
    """Return which activation of a gate a value is, by its numbers."""
    if not is_float(gate) or sizes_of(gate) != sizes_of(activated):
        return None
    nodes: set[ir.Node] = set()
    with np.errstate(all="ignore"):
        made = _evaluate(activated, gate, nodes)
        if made is None or len(nodes) > _MOST_NODES or not _are_alone(nodes, activated):
            return None
        for name, function in _ACTIVATIONS.items():
            if np.all(np.abs(made - function(_SAMPLE)) <= _NEAR * (1 + np.abs(_SAMPLE))):
                return name
    return None


def _are_alone(nodes: set[ir.Node], activated: ir.Value) -> bool:
    """Return whether nobody else reads what nodes make, the last of it aside."""
    inside = [value for node in nodes for value in node.outputs if value is not activated]
    return all(not value.is_graph_output() and {use.node for use in value.uses()} <= nodes for value in inside)


def _evaluate(value: ir.Value, gate: ir.Value, nodes: set[ir.Node]) -> Numbers | None:
    """Return a value's numbers where the gate has those of the sample; None where it is made of something else.

    Args:
        value: to evaluate.
        gate: whose numbers are known.
        nodes: gets those that make it.
    """
    if value is gate:
        return _SAMPLE
    number = number_in(value)
    if number is not None:
        return np.array(number)
    maker = value.producer()
    if maker is None or maker.domain not in KNOWN_DOMAINS or len(nodes) > _MOST_NODES:
        return None
    nodes.add(maker)
    given = [_evaluate(each, gate, nodes) for each in maker.inputs if each is not None]
    known = [each for each in given if each is not None]
    if not known or len(known) < len(given):
        return None
    if maker.op_type in _PARTS and maker.domain in ONNX_DOMAINS:
        return np.asarray(_PARTS[maker.op_type](*known))
    return _of_single(maker, known)


def _of_single(maker: ir.Node, given: list[Numbers]) -> Numbers | None:
    if len(given) > 1:
        return None
    if maker.op_type == "Swish":
        return np.asarray(given[0] * _sigmoid(maker.attributes.get_float("alpha", 1.0) * given[0]))
    if maker.op_type == "Gelu":
        is_exact = maker.attributes.get_string("approximate", "none") == "none"
        return _gelu(given[0]) if is_exact else _gelu_tanh(given[0])
    return _gelu_tanh(given[0]) if maker.op_type == "FastGelu" else None
