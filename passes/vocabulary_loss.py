"""The loss of a language model out of its last hidden states, in place of scores of all words.

Rules:
    V1. A SoftmaxCrossEntropyLoss, the mean of labels that count alike, of a product's scores becomes one node that
        makes them of some words at a time, and the gradient by what is multiplied, too, where that is asked for. Views
        of the scores may be between, a constant bias, a soft cap, c * tanh(score / c), or a factor, which what is
        multiplied gets instead.
    V2. Nothing else reads the scores, nor are they an output; and the matrix is a constant of floats, or what a
        DequantizeLinear makes of constants, as it is or transposed.
    V3. The number of words that are taken at a time follows from the matrix alone: so the bits are the same in all
        plans.
    V4. For evaluation the node has the name of the scores, which an exported model makes of what it reads; where it
        returns others, the loss stays as it is. The nodes that made them stay, with no reader.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.operators.vocabulary import FLOAT_BITS, LOSS, WITH_GRADIENT, vocabulary_rows
from poet_onnx.passes.fused.reading import is_frozen, number_in
from poet_onnx.passes.matrix_products import Product, product_of
from poet_onnx.passes.node_builder import initializer, let_stand_for
from poet_onnx.passes.panel_comparison import ACROSS, OPERATORS
from poet_onnx.passes.panel_layers import remove_unread
from poet_onnx.passes.views import VIEWS, only_maker, sizes_of

_BEHIND, _TRANSPOSE = ("Add", "Mul", "Div", "Tanh"), "Transpose"
"""Operators behind a product."""

_ROUNDED = 1e-6
"""By how much a number times its reciprocal may differ from 1."""


@dataclass(frozen=True)
class _Scores:
    """How scores are made.

    Attributes:
        product: with the matrix.
        matrix: that it reads, behind all transpositions.
        bias: that is added to the product; None for none.
        scale: by which it is multiplied, where there is no bias.
        cap: of the scores; None for none.
        values: the scores and what they are made of, first to last.
    """

    product: Product
    matrix: ir.Value
    bias: ir.Value | None
    scale: float
    cap: float | None
    values: tuple[ir.Value, ...]

    @classmethod
    def of(cls, scores: ir.Value, trained: Collection[str]) -> _Scores | None:
        """Return how scores [tokens, words] are made; None where V1 or V2 do not hold."""
        found = _Behind.of(scores, trained)
        maker = only_maker(found.values[0])
        is_product = maker is not None and maker.op_type in OPERATORS
        matrix, is_transposed = _behind_transposes(maker.inputs[1] if maker is not None and is_product else None)
        if maker is None or matrix is None or not _is_frozen_matrix(matrix, trained):
            return None
        product = product_of(maker, 1, is_transposed=is_transposed)
        if product is None or (found.bias is not None and product.bias is not None):
            return None
        bias = product.bias if found.bias is None else found.bias
        if bias is not None and not is_frozen(bias, trained):
            return None
        if any(_words_of(value) != _words_of(scores) for value in found.values):
            return None
        match found.steps:
            case []:
                scale, cap = 1.0, None
            case [float(scale)] if bias is None:
                cap = None
            case [float(cap), "Tanh", float(share)] if cap > 0 and abs(cap * share - 1) <= _ROUNDED:
                scale = 1.0
            case _:
                return None
        return cls(product, matrix, bias, scale, cap, tuple(found.values))

    @property
    def names(self) -> set[str]:
        """Names of all values."""
        return {value.name or "" for value in self.values}

    @property
    def name(self) -> str:
        """Name of the scores as what is multiplied has its tokens."""
        whole = (*sizes_of(self.product.operand)[:-1], *_words_of(self.values[-1]))
        return next((value.name or "" for value in reversed(self.values) if sizes_of(value) == whole), "")


@dataclass
class _Behind:
    """What is between a product and the loss, found from the loss on.

    Attributes:
        values: all that is made there, first to last.
        steps: factors by which all is multiplied and "Tanh", last to first.
        bias: that is added before them.
    """

    values: list[ir.Value]
    steps: list[float | str]
    bias: ir.Value | None = None

    @classmethod
    def of(cls, scores: ir.Value, trained: Collection[str]) -> _Behind:
        """Go back from the scores as far as nodes are known."""
        found = cls([scores], [])
        while (maker := only_maker(found.values[0])) is not None and maker.domain in ONNX_DOMAINS:
            source = found._before(maker, trained)
            if source is None:
                break
            found.values.insert(0, source)
        return found

    def _before(self, maker: ir.Node, trained: Collection[str]) -> ir.Value | None:
        """Return what a node changes, having noted how; None where it is another node."""
        if maker.op_type in VIEWS or maker.op_type == "Tanh":
            self.steps += ["Tanh"] if maker.op_type == "Tanh" else []
            return maker.inputs[0]
        if maker.op_type not in ("Add", "Mul", "Div"):
            return None
        first, second = maker.inputs
        assert first is not None  # these operators have both
        assert second is not None
        source, other = (second, first) if maker.op_type != "Div" and is_frozen(first, trained) else (first, second)
        if not is_frozen(other, trained):
            return None
        if maker.op_type == "Add":
            is_first = self.bias is None and sizes_of(other) == _words_of(source)
            self.bias = other if is_first else self.bias
            return source if is_first else None
        number = None if self.bias is not None else number_in(other)
        if not number:
            return None
        self.steps.append(number if maker.op_type == "Mul" else 1 / number)
        return source


class UseVocabularyLoss(InPlacePass):
    """Make losses without scores of all words (V1 to V4). Requires a graph with static shapes."""

    def __init__(self, *, with_gradient: bool, trained: Collection[str] = (), returned: Collection[str] = ()) -> None:
        """Set what is written.

        Args:
            with_gradient: make the gradient, too; else the model is one for evaluation.
            trained: names of initializers that are trained.
            returned: names of what the exported model returns.
        """
        super().__init__()
        self._with_gradient = with_gradient
        self._trained, self._returned = frozenset(trained), frozenset(returned)

    def call(self, model: ir.Model) -> PassResult:
        """Write the nodes."""
        graph = model.graph
        modified = False
        for node in list(graph):
            if not _is_plain_mean(node):
                continue
            assert node.inputs[0] is not None
            found = _Scores.of(node.inputs[0], self._trained)
            if found is not None and self._returned.isdisjoint(found.names - {found.name}):
                self._write(graph, node, found)
                modified = True
        if modified:
            graph.opset_imports[POET_DOMAIN] = POET_VERSION
        return PassResult(model, modified=modified)

    def _write(self, graph: ir.Graph, old: ir.Node, scores: _Scores) -> None:
        product, has_rows = scores.product, scores.product.way == ACROSS
        matrix = sizes_of(scores.matrix) if has_rows else sizes_of(scores.matrix)[::-1]
        ignored = old.attributes.get("ignore_index")
        numbers = {
            "panel_rows": vocabulary_rows(*matrix),
            "transposed": has_rows,
            "biased": scores.bias is not None,
            "capped": scores.cap is not None,
            "ignoring": ignored is not None,
            "ignore_index": 0 if ignored is None else ignored.as_int(),
            "bits": FLOAT_BITS,
        }
        attributes: list[ir.Attr] = [ir.AttrInt64s("matrix", matrix)]
        attributes += [ir.AttrInt64(name, int(number)) for name, number in numbers.items()]
        if not self._with_gradient:
            attributes.append(ir.AttrString("scores", scores.name))
        inputs = [_scaled(graph, old, product.operand, scores.scale), old.inputs[1], scores.matrix]
        inputs += [] if scores.bias is None else [scores.bias]
        inputs += [] if scores.cap is None else [_number(graph, f"{old.name}/cap", scores.cap)]
        operator = WITH_GRADIENT if self._with_gradient else LOSS
        new = ir.Node(POET_DOMAIN, operator, inputs, attributes, num_outputs=1 + self._with_gradient, name=old.name)
        if self._with_gradient:
            made = new.outputs[1]
            made.name, made.type, made.shape = f"{old.name}/dX", product.operand.type, product.operand.shape
        graph.insert_after(old, new)
        let_stand_for(new.outputs[0], old.outputs[0])
        graph.remove(old, safe=True)
        if self._with_gradient:
            remove_unread(graph, [scores.values[-1]], (*VIEWS, *_BEHIND, _TRANSPOSE, *OPERATORS))


def _scaled(graph: ir.Graph, before: ir.Node, operand: ir.Value, scale: float) -> ir.Value:
    """Return a value times a number, which a new node in front of another one makes."""
    if scale == 1.0:
        return operand
    name = f"{before.name}/scaled"
    made = ir.Value(name=name, type=operand.type, shape=operand.shape)
    factor = _number(graph, f"{before.name}/scale", scale)
    graph.insert_before(before, ir.Node("", "Mul", [operand, factor], outputs=[made], name=name))
    return made


def _number(graph: ir.Graph, name: str, number: float) -> ir.Value:
    return initializer(graph, name, np.array(number, np.float32))


def _is_plain_mean(node: ir.Node) -> bool:
    """Return whether a node is the mean loss of scores [tokens, words] whose labels count alike, and makes no more."""
    if node.op_type != "SoftmaxCrossEntropyLoss" or node.domain not in ONNX_DOMAINS or len(node.inputs) > 2:
        return False
    scores, others = node.inputs[0], node.outputs[1:]
    is_mean = node.attributes.get_string("reduction", "mean") == "mean"
    is_flat = scores is not None and scores.shape is not None and scores.shape.is_static() and len(scores.shape) == 2
    is_read = any(value.uses() or value.is_graph_output() for value in others)
    return is_mean and is_flat and not is_read and scores is not None and scores.dtype == ir.DataType.FLOAT


def _words_of(value: ir.Value) -> tuple[int, ...]:
    return sizes_of(value)[-1:]


def _is_frozen_matrix(value: ir.Value, trained: Collection[str]) -> bool:
    """Return whether a matrix is a constant, or made of constants of few bits."""
    maker = value.producer()
    if maker is None:
        return is_frozen(value, trained) and len(sizes_of(value)) == 2
    given = [each for each in maker.inputs if each is not None]
    are_constant = all(each.is_initializer() and each.const_value is not None for each in given)
    return maker.op_type == "DequantizeLinear" and maker.domain in ONNX_DOMAINS and are_constant


def _behind_transposes(value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """Return what a matrix is the transpose of, or a view that is none, and whether it is transposed."""
    is_transposed = False
    while value is not None and (maker := value.producer()) is not None and maker.domain in ONNX_DOMAINS:
        if maker.op_type == _TRANSPOSE and tuple(maker.attributes.get_ints("perm", (1, 0))) == (1, 0):
            is_transposed = not is_transposed
        elif maker.op_type != "Identity":
            break
        value = maker.inputs[0]
    return value, is_transposed
