"""Writers of plain ONNX in the place of an operator that models for generation have."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.graph.shapes import Array, Inferred
from poet_onnx.passes.node_builder import Replacement

_HIDDEN = float(np.finfo(np.float32).min)
"""What torch's exporters add to the score of a token that is not to be seen."""


class Constants:
    """Numbers that the nodes of a graph share, each in a Constant node: so nobody takes them for parameters.

    Attributes:
        graph: that they are written into.
        tokens: how many a sequence has.
    """

    def __init__(self, graph: ir.Graph, tokens: int) -> None:
        self.graph, self.tokens = graph, tokens
        self._made: dict[str, ir.Value] = {}

    def value(self, array: Array) -> ir.Value:
        """Return a constant, which is written once."""
        digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]
        if digest not in self._made:
            name = f"poet/constant/{digest}"
            tensor = ir.AttrTensor("value", ir.tensor(array, name=name))
            node = ir.Node("", "Constant", [], [tensor], num_outputs=1, name=name)
            made = node.outputs[0]
            made.name, made.type, made.shape = name, ir.TensorType(tensor.value.dtype), ir.Shape(array.shape)
            self.graph.insert_before(self.graph[0], node)
            self._made[digest] = made
        return self._made[digest]

    def causal_mask(self, window: int) -> ir.Value:
        """Return what is added to scores [.., tokens, tokens], so that each token sees itself and those before it.

        Args:
            window: how many it sees, with itself; 0 for all.
        """
        place = np.arange(self.tokens)
        distance = place[:, None] - place
        hidden = (distance < 0) | ((distance >= window) if window else False)
        return self.value(np.where(hidden, np.float32(_HIDDEN), np.float32(0))[None, None])


class Expansion(Replacement):
    """A node of a model for generation, and those that take its place."""

    refused = InputError

    def __init__(self, constants: Constants, node: ir.Node) -> None:
        super().__init__(constants.graph, node, Inferred())
        self.shared = constants

    def constant(self, array: Array) -> ir.Value:
        """Return a constant."""
        return self.shared.value(array)

    def number(self, number: float) -> ir.Value:
        """Return a constant of one float."""
        return self.constant(np.array(number, np.float32))

    def refusal(self, reason: str) -> InputError:
        """Return why the node cannot be trained, of which the reason is a part of a sentence."""
        return InputError(
            f"'{self.node.name}' ({self.node.op_type}) cannot be trained: {reason}. Build the model with other options,"
            " or give the model as torch exports it, without a cache, and quantize it by --quantize 4bit."
        )

    def refuse(self, index: int, reason: str) -> None:
        """Refuse an input, if it is there."""
        if self.has(index):
            raise self.refusal(reason)

    def table(self, index: int) -> Array:
        """Return the numbers of an input that must be an initializer."""
        value = self.node.inputs[index] if self.has(index) else None
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is None:
            raise self.refusal(f"its input {index} is no constant")
        return np.asarray(tensor.numpy())

    def columns(self, index: int) -> int:
        """Return how many numbers a row of an input has."""
        found = columns_of(self.node.inputs[index] if self.has(index) else None)
        if found is None:
            raise self.refusal(f"the file does not say how wide its input {index} is")
        return found

    def slice(self, value: ir.Value, start: int, end: int, step: int = 1) -> ir.Value:
        """Return some numbers of each row."""
        return self.op("Slice", value, *(self.ints(number) for number in (start, end, -1, step)))

    def normalized(self, x: ir.Value, scale: ir.Value, epsilon: float) -> ir.Value:
        """Return rows by their root mean square, times a scale."""
        square = self.op("Pow", x, self.number(2.0))
        mean = self.op("ReduceMean", square, self.ints(-1), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.number(epsilon)))
        return self.op("Mul", self.op("Mul", x, self.op("Reciprocal", root)), scale)


def columns_of(value: ir.Value | None) -> int | None:
    """Return how many numbers the rows of a value have, by what the file says of it or of what makes it."""
    seen = {value}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        maker = each.producer() if each is not None else None
        last = each.shape[-1] if each is not None and each.shape is not None and len(each.shape) else None
        if isinstance(last, int):
            return last
        if maker is not None and maker.op_type == "MatMulNBits" and maker.domain == MICROSOFT_DOMAIN:
            if columns := maker.attributes.get_int("N", 0):
                return columns
        elif maker is not None and maker.op_type in ("MatMul", "Add") and maker.domain in ONNX_DOMAINS:
            sources = maker.inputs[1 if maker.op_type == "MatMul" else 0 :]
            waiting += [source for source in reversed(sources) if source not in seen]
            seen.update(sources)
    return None
