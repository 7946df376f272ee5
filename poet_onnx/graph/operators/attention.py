"""Attention of several heads, whose scores are made for some tokens at a time (ops/kernels/attention.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect, expect_count, said
from poet_onnx.graph.operators.rules import FLOAT
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import Attribute, Call, OpSpec, Schema, Work

ATTEND, GRADIENT = "Attend", "AttendGradient"
"""The operator and its gradient."""

NUMBERS, MASK = 3, 4
"""Inputs of Attend that scale and cap are, and the mask."""

BLOCK_ROWS = 64
"""Tokens of a head whose scores are made at a time: 64 KiB of them for 256 tokens stay in a processor's cache."""

_RANK, _FLOAT_BYTES, _Y = 4, 4, 3
_FLOPS_OF_A_SCORE, _FLOPS_OF_A_CAP, _FLOPS_OF_A_GRADIENT = 16, 30, 5


def _is_gradient(op_type: str) -> bool:
    return op_type == GRADIENT


@dataclass(frozen=True)
class _Layout:
    """How an operand lies in memory.

    Attributes:
        tokens_first: tokens stand before heads.
        heads: that stand one behind the other in an operand of three sizes, [batch, tokens, heads x width]; 0 where
            heads have a dimension of their own.
    """

    tokens_first: bool
    heads: int

    @property
    def rank(self) -> int:
        return _RANK - bool(self.heads)

    def sizes(self, shape: Sequence[int]) -> tuple[int, int, int, int]:
        """Return batch, heads, tokens and width."""
        if self.heads:
            batch, tokens, width = shape
            return batch, self.heads, tokens, width // self.heads
        batch, one, other, width = shape
        return (batch, other, one, width) if self.tokens_first else (batch, one, other, width)

    def shape(self, sizes: tuple[int, int, int, int]) -> tuple[int, ...]:
        """Return the shape of an operand of these sizes."""
        batch, heads, tokens, width = sizes
        if self.heads:
            return batch, tokens, heads * width
        return (batch, tokens, heads, width) if self.tokens_first else sizes


def _operands(context: ShapeContext) -> list[tuple[int, int, int, int]]:
    """Return the sizes of q, k and v.

    Raises:
        RuleError: they are no operands, or do not belong together.
    """
    first = int(_is_gradient(context.op_type))
    found = []
    for index, layout in enumerate(_layouts(context)[:_Y], start=first):
        shape = context.type(index).shape
        if len(shape) != layout.rank:
            raise RuleError(f"{said(context, index)} must have {layout.rank} sizes")
        if layout.heads and shape[-1] % layout.heads:
            raise RuleError(f"{said(context, index)} must have rows of {layout.heads} heads")
        found.append(layout.sizes(shape))
    q, k, v = found
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3] or k[1] == 0 or q[1] % k[1]:
        shown = ", ".join(said(context, first + index) for index in range(3))
        raise RuleError(f"{shown} do not belong together")
    return found


def _layouts(context: ShapeContext) -> list[_Layout]:
    """Return those of q, k, v and y."""
    first, heads = (context.attributes.get(name, ()) for name in ("tokens_first", "heads"))
    for name, numbers in (("tokens_first", first), ("heads", heads)):
        if not isinstance(numbers, tuple) or len(numbers) != _RANK:
            raise RuleError(f"its attribute '{name}' must have {_RANK} numbers")
    found = [_Layout(flag != 0, number) for flag, number in zip(first, heads, strict=True)]
    if any(layout.heads < 0 or (layout.heads and not layout.tokens_first) for layout in found):
        raise RuleError("its attribute 'heads' must be 0 where tokens are not first")
    return found


def _result(context: ShapeContext) -> tuple[int, ...]:
    """Return the shape of y."""
    q, _, v = _operands(context)
    layout = _layouts(context)[_Y]
    if layout.heads not in (0, q[1]):
        raise RuleError(f"its attribute 'heads' gives the result {layout.heads} heads, but there are {q[1]}")
    return layout.shape((*q[:3], v[3]))


def _attended(context: ShapeContext) -> list[TensorType]:
    return [TensorType(FLOAT, _result(context))]


def _gradients(context: ShapeContext) -> list[TensorType]:
    return [TensorType(FLOAT, context.type(index).shape) for index in (1, 2, 3)]


def _fits(context: ShapeContext) -> None:
    first = int(_is_gradient(context.op_type))
    q, k, _ = _operands(context)
    if first:
        expect(context, 0, _result(context))
    if context.integer("block_rows", 0) < 1:
        raise RuleError("its attribute 'block_rows' must be positive")
    expect_count(context, first + NUMBERS, 2)
    if context.integer("masked", 0):
        mask = context.type(first + MASK).shape
        wanted = (*q[:3], k[2])
        fits = len(mask) == _RANK and mask[-1] == wanted[-1]
        if not fits or any(size not in (1, most) for size, most in zip(mask, wanted, strict=True)):
            raise RuleError(f"{said(context, first + MASK)} must fit scores of {list(wanted)}")


def _sizes(call: Call) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return batch, heads, tokens and width of q, k and v."""
    first = int(_is_gradient(call.op_type))
    layouts = map(_Layout, map(bool, call.integers("tokens_first")), call.integers("heads"))
    shapes = [call.input(first + index).shape for index in range(3)]
    q, k, v = (layout.sizes(shape) for shape, layout in zip(shapes, layouts, strict=False))
    return q, k, v


def _room(call: Call) -> int:
    """Return the bytes of scores of some tokens, and of copies of a head's operands."""
    q, k, v = _sizes(call)
    most, columns = min(call.integer("block_rows", 1), q[2]), k[2]
    if _is_gradient(call.op_type):
        scores = 2 + bool(call.integer("capped", 0))
        count = most * (scores * columns + 2 * q[3] + v[3]) + 2 * columns * (k[3] + v[3])
    else:
        count = most * (columns + q[3] + v[3]) + columns * (k[3] + v[3])
    return _FLOAT_BYTES * count


def _work(call: Call) -> Work:
    """Return the work of all scores: of how many a mask hides nothing is known."""
    q, k, v = _sizes(call)
    scores = q[0] * q[1] * q[2] * k[2]
    of_q, of_v = (3, 2) if _is_gradient(call.op_type) else (1, 1)
    flops = _FLOPS_OF_A_SCORE + _FLOPS_OF_A_CAP * call.integer("capped", 0)
    flops += _FLOPS_OF_A_GRADIENT if _is_gradient(call.op_type) else 0
    return Work(2 * scores * (of_q * q[3] + of_v * v[3]), flops * scores, call.read_bytes + call.written_bytes)


_F32 = "tensor(float)"

_ATTRIBUTES = (
    Attribute("block_rows", "INT", "Tokens of a head whose scores are made at a time."),
    Attribute("tokens_first", "INTS", "Whether q, k, v and y have tokens before heads."),
    Attribute("heads", "INTS", "How many heads q, k, v and y have in each row of three sizes; 0 for one of four."),
    Attribute("capped", "INT", "Whether scores have a cap."),
    Attribute("masked", "INT", "Whether there is a mask."),
    Attribute("guarded", "INT", "Whether a token that sees none gets zeros."),
)

_spec = partial(OpSpec, domain=POET_DOMAIN, of_graphs=True, check=_fits, work=_work, workspace=_room)

SPECS = [
    _spec(
        ATTEND,
        shape=_attended,
        schema=Schema(
            "Attend(q, k, v, numbers, mask?) -> y: softmax(scale * q k' + mask) v for each head; numbers are the scale "
            "and the cap of scores.",
            (("y", _F32),),
            _ATTRIBUTES,
        ),
    ),
    _spec(
        GRADIENT,
        shape=_gradients,
        schema=Schema(
            "AttendGradient(dY, q, k, v, numbers, mask?) -> (dQ, dK, dV): the gradient of Attend.",
            (("dQ", _F32), ("dK", _F32), ("dV", _F32)),
            _ATTRIBUTES,
        ),
    ),
]
"""Attention that makes no whole scores."""
