"""Attention of several heads as one node, out of the nodes that an exporter writes for it.

Rules:
    A1. A Softmax over the last of four sizes, of a product q k', and its product with v become one Attend. Between the
        first product and the Softmax may be a factor, a soft cap, c * tanh(score / c), and a mask that is added; behind
        the Softmax what makes zeros of NaN. Operands may have factors of their own.
    A2. Nothing else reads what is between, nor is it an output; and no trained parameter leads to the mask.
    A3. Heads of k and v that are repeated for neighbouring heads of q are read once. Operands are read as they are
        before a transposition of heads and tokens, and the result is written as it is behind one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.operators.attention import ATTEND, BLOCK_ROWS
from poet_onnx.passes.fused.reading import behind_guard, led_to_by, number_in
from poet_onnx.passes.fused.transposed import HEADS_AND_TOKENS, turns
from poet_onnx.passes.node_builder import initializer, let_stand_for, seen_as
from poet_onnx.passes.views import VIEWS, only_maker, seen, sizes_of

_RANK = 4
_TOKENS_AND_WIDTH, _HEADS_TO_THE_FRONT = (0, 1, 3, 2), (0, 2, 3, 1)
_FLAT_TOKENS_AND_WIDTH = (0, 2, 1)


class UseAttention(InPlacePass):
    """Write attention as single nodes (A1 to A3). Requires a graph with static shapes."""

    def __init__(self, trained: Collection[str]) -> None:
        """Set the names of initializers that are trained."""
        super().__init__()
        self._trained = frozenset(trained)

    def call(self, model: ir.Model) -> PassResult:
        """Write the nodes."""
        graph = model.graph
        changing = led_to_by(graph, self._trained)
        modified = False
        for node in list(graph):
            found = _Attention.around(node)
            if found is not None and found.scores.mask not in changing:
                _write(graph, found)
                modified = True
        if modified:
            RemoveUnusedNodesPass()(model)
        return PassResult(model, modified=modified)


@dataclass(frozen=True)
class _Operand:
    """Heads that are read: [batch, heads, tokens, width], or where `tokens_first` tokens before heads."""

    value: ir.Value
    tokens_first: bool

    @classmethod
    def of(cls, value: ir.Value) -> _Operand | None:
        """Return what stands for heads, with repeated ones once; None where they are no floats of four sizes."""
        once = _not_repeated(value)
        maker = once.producer()
        if maker is not None and turns(maker, HEADS_AND_TOKENS) and maker.inputs[0] is not None:
            return cls._checked(maker.inputs[0], True)
        return cls._checked(once, False)

    @classmethod
    def of_turned(cls, value: ir.Value) -> _Operand | None:
        """Return the operand of which this is the transposed one, [batch, heads, width, tokens]; None if it is none."""
        maker = value.producer()
        if maker is None or maker.inputs[0] is None or maker.domain not in ONNX_DOMAINS:
            return None
        source = maker.inputs[0]
        if turns(maker, _TOKENS_AND_WIDTH):
            return cls.of(source)
        if turns(maker, _HEADS_TO_THE_FRONT):
            return cls._checked(source, True)
        flat = source.producer()  # heads of all samples one after the other, for a while
        if maker.op_type != "Reshape" or flat is None or not turns(flat, _FLAT_TOKENS_AND_WIDTH):
            return None
        assert flat.inputs[0] is not None  # a Transpose has one
        batch, heads, width, tokens = sizes_of(value)
        return cls._of_flat(flat.inputs[0], (batch, heads, tokens, width))

    @classmethod
    def _of_flat(cls, flat: ir.Value, sizes: tuple[int, ...]) -> _Operand | None:
        """Return what heads, one after the other, are a view of: repeated ones or others."""
        once = _repeated_in(flat, sizes)
        if once is not None:
            return cls.of(once)
        maker = flat.producer()
        source = maker.inputs[0] if maker is not None and maker.op_type in VIEWS else None
        return cls.of(source) if source is not None and sizes_of(source) == sizes else None

    @classmethod
    def _checked(cls, value: ir.Value, tokens_first: bool) -> _Operand | None:
        return cls(value, tokens_first) if _is_plain(value) else None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Return batch, heads, tokens and width."""
        batch, one, other, width = sizes_of(self.value)
        return (batch, other, one, width) if self.tokens_first else (batch, one, other, width)


@dataclass(frozen=True)
class _Attention:
    """Nodes that compute attention.

    Attributes:
        last: the product with v.
        scores: how they are made.
        v: operand.
        is_guarded: NaN becomes 0 behind the Softmax.
    """

    last: ir.Node
    scores: _Scores
    v: _Operand
    is_guarded: bool

    @classmethod
    def around(cls, softmax: ir.Node) -> _Attention | None:
        """Return what a Softmax is in the middle of; None where it is no attention that A1 and A2 describe."""
        if softmax.op_type != "Softmax" or softmax.domain not in ONNX_DOMAINS or softmax.inputs[0] is None:
            return None
        weights, is_guarded = behind_guard(softmax.outputs[0])
        readers = tuple(weights.uses())
        if not _is_plain(weights) or len(readers) != 1 or softmax.attributes.get_int("axis", -1) not in (-1, 3):
            return None
        last = readers[0].node
        is_product = last.op_type == "MatMul" and last.domain in ONNX_DOMAINS and readers[0].idx == 0
        if not is_product or weights.is_graph_output() or last.inputs[1] is None:
            return None
        scores, v = _Scores.of(softmax.inputs[0]), _Operand.of(last.inputs[1])
        if scores is None or v is None:
            return None
        k = scores.k.sizes
        fits = k[:3] == v.sizes[:3] and scores.q.sizes[0] == k[0] and scores.q.sizes[1] % k[1] == 0
        return cls(last, scores, v, is_guarded) if fits else None


@dataclass(frozen=True)
class _Scores:
    """How scores are made.

    Attributes:
        q: operand.
        k: likewise; perhaps of fewer heads.
        mask: that is added; None for none.
        scale: of scores.
        cap: of scaled scores; 0 for none.
    """

    q: _Operand
    k: _Operand
    mask: ir.Value | None
    scale: float
    cap: float

    @classmethod
    def of(cls, value: ir.Value) -> _Scores | None:
        """Go back from what is given to a Softmax; None where a node is another one."""
        mask: ir.Value | None = None
        product, steps = _product_behind(value)
        adding = only_maker(value)
        if product is None and adding is not None and adding.op_type == "Add":
            for scores, added in (adding.inputs, adding.inputs[::-1]):
                product, steps = _product_behind(scores)
                mask = added
                if product is not None:
                    break
        if product is None or (mask is not None and not _fits(mask, value)):
            return None
        numbers = _scale_and_cap(steps)
        (one, of_q), (turned, of_k) = (_unscaled(each) for each in product.inputs if each is not None)
        q, k = _Operand.of(one), _Operand.of_turned(turned)
        if numbers is None or q is None or k is None:
            return None
        return cls(q, k, mask, numbers[0] * of_q * of_k, numbers[1])


def _product_behind(value: ir.Value | None) -> tuple[ir.Node | None, list[float | str]]:
    """Return the product that makes scores, if there is one, and the factors and "Tanh" behind it, last to first."""
    steps: list[float | str] = []
    maker = only_maker(value)
    while maker is not None and maker.op_type in ("Mul", "Div", "Tanh") and maker.domain in ONNX_DOMAINS:
        value, factor = _multiplied(maker)
        if factor is None:
            return None, []
        steps.append("Tanh" if maker.op_type == "Tanh" else factor)
        maker = only_maker(value)
    is_product = maker is not None and maker.op_type == "MatMul" and maker.domain in ONNX_DOMAINS
    return (maker if is_product else None), steps


def _multiplied(node: ir.Node) -> tuple[ir.Value | None, float | None]:
    """Return what a node multiplies with a number, and the number; no number where it does something else."""
    if node.op_type == "Tanh":
        return node.inputs[0], 1.0
    first, second = node.inputs
    number = number_in(second)
    if number is not None and (number != 0 or node.op_type == "Mul"):
        return first, number if node.op_type == "Mul" else 1 / number
    return second, number_in(first) if node.op_type == "Mul" else None


def _scale_and_cap(steps: list[float | str]) -> tuple[float, float] | None:
    """Return the scale of scores, and the cap behind it or 0; None where the steps are others."""
    factors = [step for step in steps if isinstance(step, float)]
    if len(factors) == len(steps):
        return float(np.prod(factors)), 0.0
    if steps.count("Tanh") == 1 and steps[1:2] == ["Tanh"] and factors[0] > 0:
        return float(np.prod(factors[1:])) * factors[0], factors[0]
    return None


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    """Return an operand without the number that it is multiplied with, and the number."""
    maker = value.producer()
    if maker is None or maker.op_type not in ("Mul", "Div") or maker.domain not in ONNX_DOMAINS:
        return value, 1.0
    source, factor = _multiplied(maker)
    return (value, 1.0) if source is None or factor is None else (source, factor)


def _not_repeated(value: ir.Value) -> ir.Value:
    """Return heads of which each is repeated for its neighbours, once; those that are not as they are."""
    once = _repeated_in(value, sizes_of(value)) if _is_plain(value) else None
    return value if once is None else once


def _repeated_in(value: ir.Value, sizes: tuple[int, ...]) -> ir.Value | None:
    """Return what a view of [batch, heads, tokens, width] repeats: [batch, fewer heads, tokens, width], or None."""
    repeated = seen(value).producer()
    if repeated is None or repeated.op_type != "Expand" or repeated.inputs[0] is None:
        return None
    source = repeated.inputs[0].producer()
    made, given = sizes_of(repeated.outputs[0]), sizes_of(repeated.inputs[0])
    if len(made) != _RANK + 1 or (made[0], made[1] * made[2], *made[3:]) != sizes:
        return None
    if given != (*made[:2], 1, *made[3:]) or source is None or source.op_type not in VIEWS:
        return None
    once = source.inputs[0]
    return once if once is not None and sizes_of(once) == (*made[:2], *made[3:]) else None


def _is_plain(value: ir.Value) -> bool:
    """Return whether a value is floats of four sizes."""
    return value.dtype == ir.DataType.FLOAT and value.shape is not None and len(value.shape) == _RANK


def _fits(mask: ir.Value, scores: ir.Value) -> bool:
    """Return whether a mask has all columns of scores, and fits the rest."""
    sizes, wanted = sizes_of(mask), sizes_of(scores)
    behind = wanted[len(wanted) - len(sizes) :]
    is_whole = bool(sizes) and len(sizes) <= len(wanted) and sizes[-1] == wanted[-1]
    return is_whole and all(size in (1, most) for size, most in zip(sizes, behind, strict=True))


def _write(graph: ir.Graph, found: _Attention) -> None:
    """Put one node in the place of all; what nobody reads any more is removed."""
    last, scores = found.last, found.scores
    made, tokens_first = last.outputs[0], False
    behind = [use.node for use in made.uses()]
    if len(behind) == 1 and turns(behind[0], HEADS_AND_TOKENS) and not made.is_graph_output():
        made, tokens_first = behind[0].outputs[0], True
    name = f"attention/scale_{scores.scale}_cap_{scores.cap}"
    known = graph.initializers.get(name)
    numbers = known or initializer(graph, name, np.array([scores.scale, scores.cap], np.float32))
    inputs = [scores.q.value, scores.k.value, found.v.value, numbers]
    inputs += [] if scores.mask is None else [_of_four_sizes(graph, scores.mask)]
    flags = [scores.q.tokens_first, scores.k.tokens_first, found.v.tokens_first, tokens_first]
    attributes = [
        ir.AttrInt64("block_rows", BLOCK_ROWS),
        ir.AttrInt64s("tokens_first", [int(flag) for flag in flags]),
        ir.AttrInt64s("heads", [0] * _RANK),
        ir.AttrInt64("capped", int(scores.cap != 0)),
        ir.AttrInt64("masked", int(scores.mask is not None)),
        ir.AttrInt64("guarded", int(found.is_guarded)),
    ]
    new = ir.Node(POET_DOMAIN, ATTEND, inputs, attributes, name=last.name)
    graph.insert_before(last, new)
    let_stand_for(new.outputs[0], made)


def _of_four_sizes(graph: ir.Graph, mask: ir.Value) -> ir.Value:
    """Return a mask with as many sizes of 1 in front as it needs."""
    sizes = sizes_of(mask)
    if len(sizes) == _RANK:
        return mask
    return seen_as(graph, mask, f"{mask.name}/of_four_sizes", (1,) * (_RANK - len(sizes)) + sizes)
