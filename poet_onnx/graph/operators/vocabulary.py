"""The loss of a language model, whose scores are made of some words at a time (ops/kernels/vocabulary_loss.cpp)."""

from __future__ import annotations

from itertools import chain

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect, expect_count, said
from poet_onnx.graph.operators.linear import NARROW_ROWS, PANELS, matrix_of, most_rows, read_once, sizes
from poet_onnx.graph.operators.quantized import QUANTIZATION, matrix_fits, panels_read, stored_parts, window_bytes
from poet_onnx.graph.operators.rules import FLOAT, scalar
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import Attribute, Call, OpSpec, Schema, StorageWork, Work

LOSS, WITH_GRADIENT = "VocabularyLoss", "VocabularyLossGradient"
"""The loss alone, and with its gradient."""

LABELS, MATRIX = 1, 2
"""Inputs that the labels are, and the matrix or its codes."""

FLOAT_BITS = 32
"""Of a number of a matrix that is not quantized."""

_LEAST_ROWS, _MOST_ROWS, _UNIT_ROWS, _PANEL_BYTES = 320, 512, 16, 2 << 20
"""Four threads that share a product of so many words have 80 each: MLAS adds up in another order for 64 or fewer."""

_FLOAT_BYTES, _TOKEN_BYTES, _HANDLE = 4, 16, "INT64"
_FLOPS_OF_A_SCORE, _FLOPS_OF_A_CAP, _FLOPS_OF_A_NUMBER = 16, 30, 2


def vocabulary_rows(words: int, width: int) -> int:
    """Return how many words are taken at a time, on which the bits of the loss depend.

    Their numbers take about 2 MiB. Where it can be, the last panel has no fewer than the least.
    """
    usual = min(_MOST_ROWS, max(_LEAST_ROWS, _PANEL_BYTES // (_FLOAT_BYTES * width) // _UNIT_ROWS * _UNIT_ROWS))
    for rows in chain(range(usual, _LEAST_ROWS - 1, -_UNIT_ROWS), range(usual, 2 * usual, _UNIT_ROWS)):
        rest = words % rows
        if rest <= NARROW_ROWS or rest >= _LEAST_ROWS:
            return rows
    return usual


def matrix_inputs(bits: int, zeroed: int) -> int:
    """Return how many inputs the matrix is."""
    return 1 if bits == FLOAT_BITS else 2 + bool(zeroed)


def _loss_and_gradient(context: ShapeContext) -> list[TensorType]:
    return [*scalar(context), TensorType(FLOAT, context.type(0).shape)]


def _fits(context: ShapeContext) -> None:
    words, width = matrix_of(context.attributes["matrix"])
    tokens = context.type(0).shape[:-1]
    expect(context, 0, (*tokens, width))
    labels = context.type(LABELS)
    if labels.dtype.name not in ("INT32", "INT64") or labels.elements * width != context.type(0).elements:
        raise RuleError(f"{said(context, LABELS)} must be an integer for each of its tokens {list(tokens)}")
    bits, has_rows = context.integer("bits", FLOAT_BITS), bool(context.integer("transposed", 0))
    if bits != FLOAT_BITS:
        matrix_fits(context, MATRIX)
    elif context.type(MATRIX).dtype.name != _HANDLE:
        expect(context, MATRIX, (words, width) if has_rows else (width, words))
    behind = MATRIX + matrix_inputs(bits, context.integer("zeroed", 0))
    if context.integer("biased", 0):
        expect(context, behind, (words,))
    if context.integer("capped", 0):
        expect_count(context, behind + context.integer("biased", 0), 1)


def _has_gradient(call: Call) -> bool:
    return call.op_type == WITH_GRADIENT


def _is_quantized(call: Call) -> bool:
    return call.integer("bits", FLOAT_BITS) != FLOAT_BITS


def _is_in_place(call: Call) -> bool:
    """Return whether the panels of the matrix lie in memory as they are needed."""
    has_rows = bool(call.integer("transposed", 0))
    return has_rows and not _is_quantized(call) and call.input(MATRIX).dtype != _HANDLE


def _is_stored(call: Call) -> bool:
    """Return whether something of the matrix is in a store."""
    return bool(stored_parts(call, first=MATRIX)) if _is_quantized(call) else call.input(MATRIX).dtype == _HANDLE


def _room(call: Call) -> int:
    """Return the bytes for tokens, a panel's scores, words of labels, a panel of the matrix, and codes of a store."""
    words, width, tokens = sizes(call)
    most = most_rows(words, call.integer("panel_rows", _LEAST_ROWS))
    chosen = (tokens if _is_stored(call) else 1) * width if _has_gradient(call) else 0
    panel = 0 if _is_in_place(call) else most * width
    spare = window_bytes(call, MATRIX) if _is_quantized(call) else 0
    return _TOKEN_BYTES * tokens + _FLOAT_BYTES * (tokens * most + chosen + panel) + spare


def _work(call: Call) -> Work:
    """Return the work: of a product, or of two; of all powers; and of making panels."""
    words, width, tokens = sizes(call)
    products = 1 + _has_gradient(call)
    made = 0 if _is_in_place(call) else 2 * _FLOAT_BYTES * words * width
    each = _FLOPS_OF_A_SCORE + _FLOPS_OF_A_CAP * call.integer("capped", 0)
    flops = each * words * tokens + (_FLOPS_OF_A_NUMBER * words * width if _is_quantized(call) else 0)
    moved = call.read_bytes + call.written_bytes + made + 2 * _FLOAT_BYTES * words * tokens
    return Work(2 * words * tokens * width * products, flops, moved)


def _panels_read(call: Call) -> StorageWork:
    """Return what reading all panels once takes."""
    if not _is_stored(call):
        return StorageWork(0, 0, 0)
    return panels_read(call, MATRIX) if _is_quantized(call) else read_once(call)


_ATTRIBUTES = (
    *PANELS,
    Attribute("transposed", "INT", "Whether the matrix has a row for each word, and not a column."),
    Attribute("biased", "INT", "Whether there is a bias."),
    Attribute("capped", "INT", "Whether scores have a cap.", required=False),
    Attribute("ignoring", "INT", "Whether a label does not count."),
    Attribute("ignore_index", "INT", "That label."),
    Attribute("bits", "INT", "Of a number: 4 or 8 of a code, 32 of a float."),
    Attribute("scores", "STRING", "Name of the scores in a model for inference.", required=False),
    *(Attribute(each.name, each.kind, each.meaning, required=False) for each in QUANTIZATION if each.name != "bits"),
)

SPECS = [
    OpSpec(
        LOSS,
        POET_DOMAIN,
        shape=scalar,
        check=_fits,
        work=_work,
        storage=_panels_read,
        workspace=_room,
        schema=Schema(
            "VocabularyLoss(x, labels, matrix..., bias?, cap?, after...) -> loss: the cross entropy of a product's "
            "scores.",
            (("loss", "tensor(float)"),),
            _ATTRIBUTES,
        ),
    ),
    OpSpec(
        WITH_GRADIENT,
        POET_DOMAIN,
        shape=_loss_and_gradient,
        check=_fits,
        work=_work,
        storage=_panels_read,
        workspace=_room,
        of_graphs=True,
        schema=Schema(
            "VocabularyLossGradient(x, labels, matrix..., bias?, cap?, after...) -> loss, dX: the same, and its "
            "gradient by x.",
            (("loss", "tensor(float)"), ("dX", "tensor(float)")),
            _ATTRIBUTES,
        ),
    ),
]
"""Losses of language models that make no whole scores."""
