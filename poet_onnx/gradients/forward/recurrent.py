"""Recurrent layers become standard operators, a few for each time step, whose gradients are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from poet_onnx.errors import listed
from poet_onnx.gradients.builder import NoGradientError
from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes import Inferred, infer
from poet_onnx.graph.shapes.declared import fitting
from poet_onnx.passes.node_builder import Replacement

GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
ACTIVATIONS = {"GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh"), "RNN": ("Tanh",)}
"""Of one direction, where the layer names none: of gates, of what is new, of what an LSTM gives."""

_OPERATORS = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
"""Activations that are operators, and have no numbers of their own."""


def refusal(node: ir.Node) -> str | None:
    """Return why a recurrent layer is not expanded, as the end of a sentence; None where it is."""
    given = plain_attributes(node)
    directions = 2 if given.get("direction") == "bidirectional" else 1
    if len(node.inputs) > 7 and node.inputs[7] is not None:
        return "it has peepholes"
    for name in ("clip", "input_forget", "layout"):
        if given.get(name):
            return f"it has the attribute {name}"
    given_names = given.get("activations")
    named = tuple(map(str, given_names)) if isinstance(given_names, tuple) else ()
    count = directions * len(ACTIVATIONS[node.op_type])
    if named and (len(named) != count or not set(named).issubset(_OPERATORS)):
        return f"its activations are {listed(named, 6)}, not {count} of {listed(_OPERATORS, 6)}"
    return None


def expand_recurrent(model: ir.Model, trained: Iterable[ir.Value]) -> None:
    """Replace every GRU, LSTM and RNN that gradients go through, and that can be, by the operators of its time steps.

    Args:
        model: changed in place.
        trained: parameters; a layer that none of them leads to stays as it is.
    """
    moving = set(trained)
    nodes = []
    for node in model.graph:
        if moving.intersection(value for value in node.inputs if value is not None):
            moving.update(node.outputs)
            if node.domain in ONNX_DOMAINS and node.op_type in GATES:
                nodes.append(node)
    nodes = [node for node in nodes if refusal(node) is None]
    if nodes:
        inferred = infer(model)
        for node in nodes:
            with fitting(node):
                _Layer(model.graph, node, inferred).expand()


class _Recurrence(NamedTuple):
    """What each step of a direction has: weights and biases of the past, in two parts each where a GRU parts them."""

    weights: list[ir.Value]
    biases: list[ir.Value | None]
    activations: Sequence[str]


class _Layer(Replacement):
    """A recurrent layer, and the nodes that take its place.

    Source of the equations: the operators' definitions in ONNX, whose gates lie in the order z, r, h (GRU) and i, o, f,
    c (LSTM).
    """

    refused = NoGradientError
    constants = "gradient"

    def __init__(self, graph: ir.Graph, node: ir.Node, inferred: Inferred) -> None:
        super().__init__(graph, node, inferred)
        self.gates = GATES[node.op_type]
        self.steps, self.batch, _ = self.shape(0)
        self.directions, _, self.hidden = self.shape(2)
        self.activations = self.attributes.get("activations") or ACTIVATIONS[node.op_type] * self.directions

    def expand(self) -> None:
        """Write the steps of each direction and join their results."""
        weights = [self._split(self.input(index), [1] * self.directions, 0) for index in (1, 2)]
        rest = [self._per_direction(index) for index in (3, 5, 6)]
        runs = [
            self._run(number, [part[number] for part in weights], [part[number] for part in rest])
            for number in range(self.directions)
        ]
        for index, axis in ((0, 1), (1, 0), (2, 0)):
            if self.wants(index):
                self.give(index, self.op("Concat", *(run[index] for run in runs), axis=axis))
        self.finish()

    def _run(self, number: int, weights: list[ir.Value], rest: list[ir.Value | None]) -> list[ir.Value]:
        bias, hidden, cell = rest
        width = self.gates * self.hidden
        here, again = (self.op("Transpose", self.reshape(part, width, -1), perm=[1, 0]) for part in weights)
        inputs = self.op("MatMul", self.node.inputs[0], here)
        shift: ir.Value | None = None
        if bias is not None:
            first, shift = self._split(self.reshape(bias, 2 * width), [width, width], 0)
            inputs = self.op("Add", inputs, first)
        state = self._initial(hidden)
        memory = self._initial(cell)
        again_parts = [again]
        shift_parts: list[ir.Value | None] = [shift]
        if self.node.op_type == "GRU" and not self.attributes.get("linear_before_reset"):
            sizes = [2 * self.hidden, self.hidden]
            again_parts = self._split(again, sizes, 1)
            shift_parts = list(self._split(shift, sizes, 0)) if shift is not None else [None, None]
        slices = list(enumerate(self._split(inputs, [1] * self.steps, 0)))
        backward = self.attributes.get("direction") == "reverse" or number == 1
        count = len(ACTIVATIONS[self.node.op_type])
        recurrence = _Recurrence(again_parts, shift_parts, self.activations[number * count : (number + 1) * count])
        states: list[ir.Value] = []
        for place, part in reversed(slices) if backward else slices:
            now = self.reshape(part, self.batch, width)
            old, made = (state, memory), self._step(now, state, memory, recurrence)
            result = state = made[0]
            memory = made[1]
            if self.has(4):
                state, memory, result = self._within(place, old, made)
            states.append(self.reshape(result, 1, 1, self.batch, self.hidden))
        ordered = states[::-1] if backward else states
        return [self.op("Concat", *ordered, axis=0), self._last(state), self._last(memory)]

    def _last(self, state: ir.Value) -> ir.Value:
        """Return a last state; of a row whose sequence has no step it is zeros, as ONNX Runtime gives."""
        if self.has(4):
            lengths = ir.convenience.get_const_tensor(self.input(4))
            if lengths is None or (lengths.numpy() <= 0).any():
                begun = self.op("Less", self.constant(np.array(0, np.int32)), self.input(4))
                state = self.op("Where", self.reshape(begun, self.batch, 1), state, self._initial(None))
        return self.reshape(state, 1, self.batch, self.hidden)

    def _step(
        self, now: ir.Value, state: ir.Value, memory: ir.Value, recurrence: _Recurrence
    ) -> tuple[ir.Value, ir.Value]:
        again, shift = recurrence.weights, recurrence.biases
        gate, *made = recurrence.activations
        past = self._affine(state, again[0], shift[0])
        if self.node.op_type == "RNN":
            return self.op(gate, self.op("Add", now, past)), memory
        if self.node.op_type == "LSTM":
            i, o, f, c = self._split(self.op("Add", now, past), [self.hidden] * 4, 1)
            kept = self.op("Mul", self.op(gate, f), memory)
            memory = self.op("Add", kept, self.op("Mul", self.op(gate, i), self.op(made[0], c)))
            return self.op("Mul", self.op(gate, o), self.op(made[1], memory)), memory
        sizes = [2 * self.hidden, self.hidden]
        gates, new = self._split(now, sizes, 1)
        before = None
        if len(again) == 1:
            past, before = self._split(past, sizes, 1)
        update, reset = self._split(self.op(gate, self.op("Add", gates, past)), [self.hidden] * 2, 1)
        if before is not None:
            recalled = self.op("Mul", reset, before)
        else:
            recalled = self._affine(self.op("Mul", reset, state), again[1], shift[1])
        new = self.op(made[0], self.op("Add", new, recalled))
        return self.op("Add", new, self.op("Mul", update, self.op("Sub", state, new))), memory

    def _within(
        self, place: int, old: tuple[ir.Value, ir.Value], new: tuple[ir.Value, ir.Value]
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return state, memory and result of a step: behind the end of its sequence a row stays, and gives zeros."""
        step = self.constant(np.array(place, np.int32))
        inside = self.reshape(self.op("Less", step, self.input(4)), self.batch, 1)
        state = self.op("Where", inside, new[0], old[0])
        memory = new[1] if new[1] is old[1] else self.op("Where", inside, new[1], old[1])
        return state, memory, self.op("Where", inside, new[0], self._initial(None))

    def _affine(self, value: ir.Value, weights: ir.Value, bias: ir.Value | None) -> ir.Value:
        product = self.op("MatMul", value, weights)
        return product if bias is None else self.op("Add", product, bias)

    def _per_direction(self, index: int) -> list[ir.Value | None]:
        if not self.has(index):
            return [None] * self.directions
        return list(self._split(self.input(index), [1] * self.directions, 0))

    def _initial(self, value: ir.Value | None) -> ir.Value:
        if value is not None:
            return self.reshape(value, self.batch, self.hidden)
        return self.constant(np.zeros((self.batch, self.hidden), self.type(1).dtype.numpy()))

    def _split(self, value: ir.Value, sizes: list[int], axis: int) -> list[ir.Value]:
        if len(sizes) == 1:
            return [value]
        return self.ops("Split", [value, self.ints(*sizes)], len(sizes), axis=axis)
