"""Attention of several heads, whose scores are made for some tokens at a time (ops/kernels/attention.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from poet_onnx.description.metadata import POET_DOMAIN
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


def _heads(shape: Sequence[int], *, tokens_first: bool) -> tuple[int, int, int, int]:
    """Return batch, heads, tokens and width of an operand."""
    batch, one, other, width = shape
    return (batch, other, one, width) if tokens_first else (batch, one, other, width)


def _laid_out(sizes: tuple[int, int, int, int], *, tokens_first: bool) -> tuple[int, ...]:
    return _heads(sizes, tokens_first=tokens_first)  # turning twice turns nothing


def _operands(context: ShapeContext) -> list[tuple[int, int, int, int]]:
    """Return the sizes of q, k and v.

    Raises:
        RuleError: they are no operands, or do not belong together.
    """
    first = int(_is_gradient(context.op_type))
    flags = _flags(context)
    found = []
    for index in range(3):
        if len(context.type(first + index).shape) != _RANK:
            raise RuleError(f"{said(context, first + index)} must have {_RANK} sizes")
        found.append(_heads(context.type(first + index).shape, tokens_first=flags[index]))
    q, k, v = found
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3] or k[1] == 0 or q[1] % k[1]:
        shown = ", ".join(said(context, first + index) for index in range(3))
        raise RuleError(f"{shown} do not belong together")
    return found


def _flags(context: ShapeContext) -> list[bool]:
    flags = context.attributes.get("tokens_first", ())
    if not isinstance(flags, tuple) or len(flags) != _RANK:
        raise RuleError(f"its attribute 'tokens_first' must have {_RANK} flags")
    return [flag != 0 for flag in flags]


def _result(context: ShapeContext) -> tuple[int, ...]:
    """Return the shape of y."""
    q, _, v = _operands(context)
    return _laid_out((*q[:3], v[3]), tokens_first=_flags(context)[_Y])


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
    first, flags = int(_is_gradient(call.op_type)), call.integers("tokens_first")
    shapes = [call.input(first + index).shape for index in range(3)]
    q, k, v = (_heads(shape, tokens_first=bool(flag)) for shape, flag in zip(shapes, flags, strict=False))
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
