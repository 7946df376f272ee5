"""The loss of a language model out of its last hidden states, in place of scores of all words.

Rules:
    V1. A SoftmaxCrossEntropyLoss, the mean of labels that count alike, of a product's scores becomes one node that
        makes them of some words at a time, and the gradient by what is multiplied, too, where that is asked for. Views
        of the scores may be between, and a constant bias.
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

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.metadata import POET_DOMAIN, POET_VERSION
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.operators.vocabulary import FLOAT_BITS, LOSS, WITH_GRADIENT, vocabulary_rows
from poet_onnx.passes.matrix_products import Product, product_of
from poet_onnx.passes.node_builder import let_stand_for
from poet_onnx.passes.panel_comparison import ACROSS, OPERATORS
from poet_onnx.passes.panel_layers import remove_unread
from poet_onnx.passes.views import VIEWS, only_maker, sizes_of

_ADD, _TRANSPOSE = "Add", "Transpose"


@dataclass(frozen=True)
class _Scores:
    """How scores are made.

    Attributes:
        product: with the matrix.
        matrix: that it reads, behind all transpositions.
        bias: that is added to the scores; None for none.
        values: the scores and what they are views of, first to last.
    """

    product: Product
    matrix: ir.Value
    bias: ir.Value | None
    values: tuple[ir.Value, ...]

    @classmethod
    def of(cls, scores: ir.Value, trained: Collection[str]) -> _Scores | None:
        """Return how scores [tokens, words] are made; None where V1 or V2 do not hold."""
        values = [scores]
        bias: ir.Value | None = None
        maker = only_maker(scores)
        while maker is not None and maker.domain in ONNX_DOMAINS and maker.op_type in (*VIEWS, _ADD):
            if maker.op_type == _ADD:
                sides = list(maker.inputs)
                constant = [each for each in sides if each is not None and _is_constant(each, trained)]
                if bias is not None or len(constant) != 1 or sizes_of(constant[0]) != _words_of(values[0]):
                    return None
                (bias,) = constant
                values.insert(0, next(each for each in sides if each is not None and each is not bias))
            else:
                assert maker.inputs[0] is not None
                values.insert(0, maker.inputs[0])
            maker = only_maker(values[0])
        if maker is None or maker.op_type not in OPERATORS or any(_words_of(v) != _words_of(scores) for v in values):
            return None
        matrix, is_transposed = _behind_transposes(maker.inputs[1])
        if matrix is None or not _is_frozen(matrix, trained):
            return None
        product = product_of(maker, 1, is_transposed=is_transposed)
        if product is None or (product.bias is not None and (bias or not _is_constant(product.bias, trained))):
            return None
        return cls(product, matrix, bias or product.bias, tuple(values))

    @property
    def names(self) -> set[str]:
        """Names of all values."""
        return {value.name or "" for value in self.values}

    @property
    def name(self) -> str:
        """Name of the scores as what is multiplied has its tokens."""
        whole = (*sizes_of(self.product.operand)[:-1], *_words_of(self.values[-1]))
        return next((value.name or "" for value in reversed(self.values) if sizes_of(value) == whole), "")


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
            "ignoring": ignored is not None,
            "ignore_index": 0 if ignored is None else ignored.as_int(),
            "bits": FLOAT_BITS,
        }
        attributes: list[ir.Attr] = [ir.AttrInt64s("matrix", matrix)]
        attributes += [ir.AttrInt64(name, int(number)) for name, number in numbers.items()]
        if not self._with_gradient:
            attributes.append(ir.AttrString("scores", scores.name))
        inputs = [product.operand, old.inputs[1], scores.matrix, *([] if scores.bias is None else [scores.bias])]
        operator = WITH_GRADIENT if self._with_gradient else LOSS
        new = ir.Node(POET_DOMAIN, operator, inputs, attributes, num_outputs=1 + self._with_gradient, name=old.name)
        if self._with_gradient:
            made = new.outputs[1]
            made.name, made.type, made.shape = f"{old.name}/dX", product.operand.type, product.operand.shape
        graph.insert_after(old, new)
        let_stand_for(new.outputs[0], old.outputs[0])
        graph.remove(old, safe=True)
        if self._with_gradient:
            remove_unread(graph, [scores.values[-1]], (*VIEWS, _ADD, _TRANSPOSE, *OPERATORS))


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


def _is_constant(value: ir.Value, trained: Collection[str]) -> bool:
    is_fixed = value.is_initializer() and value.const_value is not None and not value.is_graph_input()
    return is_fixed and value.name not in trained and value.dtype == ir.DataType.FLOAT


def _is_frozen(value: ir.Value, trained: Collection[str]) -> bool:
    """Return whether a matrix is a constant, or made of constants of few bits."""
    maker = value.producer()
    if maker is None:
        return _is_constant(value, trained) and len(sizes_of(value)) == 2
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
