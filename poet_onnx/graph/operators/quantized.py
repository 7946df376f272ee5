"""Products with matrices of few bits, and rows of such tables (ops/kernels/quantized_rows.h)."""

from __future__ import annotations

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators import linear
from poet_onnx.graph.operators.fitting import expect, said
from poet_onnx.graph.operators.linear import PANELS, matrix_of, most_rows, product_type, sizes, widths
from poet_onnx.graph.operators.rules import FLOAT, of_each
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import Attribute, Call, OpSpec, Schema, StorageWork, Work, elements
from poet_onnx.graph.operators.stored import PAGE_BYTES

LINEAR, GATHER = "LinearQuantized", "GatherQuantized"
"""A product, and rows of a table."""

CODES = 1
"""Input that codes are; scales and zeros are behind it."""

_ZEROS = 2
"""Inputs that these are behind the codes."""

_FLOAT_BYTES, _BYTE = 4, 8
_FLOPS_OF_A_NUMBER = 2
_WIDTHS = (4, 8)
_HANDLE = "INT64"
_SORTED_BYTES = 56
"""What a row takes in the lists of rows and of where their parts are."""

_WINDOW_ROWS = 1024
"""Rows that are read from a store at a time, at least; ops/kernels/quantized_rows.h has the same."""

QUANTIZATION = (
    Attribute("bits", "INT", "Of a code: 4 or 8."),
    Attribute("block", "INT", "Codes of a row with one scale."),
    Attribute("signed", "INT", "Whether codes and zeros are signed."),
    Attribute("zeroed", "INT", "Whether there are zeros."),
)


def _shape_of(context: ShapeContext) -> tuple[int, int]:
    return matrix_of(context.attributes["matrix"])


def _rows(context: ShapeContext) -> list[TensorType]:
    return [TensorType(FLOAT, (*context.type(0).shape, _shape_of(context)[1]))]


def _parts(rows: int, columns: int, bits: int, block: int, *, zeroed: bool) -> tuple[int, ...]:
    """Return the bytes of codes, scales and zeros."""
    blocks = -(-columns // max(1, block))
    zeros = (-(-rows * blocks * bits // _BYTE),) if zeroed else ()
    return rows * columns * bits // _BYTE, _FLOAT_BYTES * rows * blocks, *zeros


def matrix_fits(context: ShapeContext, first: int = CODES) -> None:
    """Check that codes, which are this input, scales and zeros are those of the matrix, or handles."""
    bits = context.integer("bits", 0)
    if bits not in _WIDTHS:
        raise RuleError(f"its codes have {bits} bits and must have 4 or 8")
    is_zeroed = bool(context.integer("zeroed", 0))
    sizes = _parts(*_shape_of(context), bits, context.integer("block", 0), zeroed=is_zeroed)
    for index, size_bytes in enumerate(sizes, first):
        found = context.type(index)
        if found.dtype.name != _HANDLE and found.size_bytes != size_bytes:
            raise RuleError(f"{said(context, index)} has {found.size_bytes} bytes and must have {size_bytes}")


def _product_fits(context: ShapeContext) -> None:
    taken, made = widths(context)
    expect(context, 0, (*context.type(0).shape[:-1], taken))
    matrix_fits(context)
    if context.integer("biased", 0):
        expect(context, CODES + 2 + bool(context.integer("zeroed", 0)), (made,))


def stored_parts(call: Call, rows: int | None = None, first: int = CODES) -> dict[int, int]:
    """Return the bytes of codes, scales and zeros that are in a store, by input: of so many rows, or of all.

    Args:
        call: of a node.
        rows: how many; None for all.
        first: input that the codes are.
    """
    zeroed, (all_rows, columns) = bool(call.integer("zeroed", 0)), call.integers("matrix")
    count = all_rows if rows is None else rows
    sizes = _parts(count, columns, call.integer("bits", 4), call.integer("block", 1), zeroed=zeroed)
    return {index: size for index, size in enumerate(sizes, first) if call.input(index).dtype == _HANDLE}


def _spare_bytes(call: Call, rows: int, first: int = CODES) -> int:
    """Return the room for codes, which are this input, scales and zeros of some rows, as far as they are in a store."""
    parts = stored_parts(call, rows, first)
    return sum(parts.values()) + (first + _ZEROS in parts)  # zeros begin within a byte


def _window_rows(call: Call) -> int:
    """Return how many rows of a store are read at a time: no fewer than the largest panel has."""
    rows = call.integers("matrix")[0]
    return min(rows, max(_WINDOW_ROWS, most_rows(rows, call.integer("panel_rows", 1))))


def window_bytes(call: Call, first: int = CODES) -> int:
    """Return the room for codes, which are this input, scales and zeros of so many rows, as far as they are stored."""
    return _spare_bytes(call, _window_rows(call), first)


def _room(call: Call) -> int:
    """Return the bytes of a panel of the matrix, of its samples, and of what is read from a store at a time."""
    return linear.room(call) + window_bytes(call)


def _rows_apart(call: Call) -> int:
    """Return the room for each row by itself that is read from a store."""
    return elements(call.input(0)) * -(-_spare_bytes(call, 1) // _FLOAT_BYTES) * _FLOAT_BYTES


def _multiplied(call: Call) -> Work:
    """Return a product's work, and what making floats takes, which are written and read once."""
    rows, columns, samples = sizes(call)
    moved = call.read_bytes + call.written_bytes + 2 * _FLOAT_BYTES * rows * columns
    return Work(2 * rows * columns * samples, _FLOPS_OF_A_NUMBER * rows * columns, moved)


def _looked_up(call: Call) -> Work:
    made = elements(call.output(0))
    return Work(0, _FLOPS_OF_A_NUMBER * made, 2 * call.written_bytes)


def panels_read(call: Call, first: int = CODES) -> StorageWork:
    """Return what reading all codes, which are this input, scales and zeros once takes, as far as they are stored."""
    parts = stored_parts(call, first=first)
    windows = -(-call.integers("matrix")[0] // _window_rows(call))
    return StorageWork(sum(parts.values()), 0, windows * len(parts))


def _rows_read(call: Call) -> StorageWork:
    """Return what reading rows takes: a page for each, and of the table no more than it has."""
    parts, rows = stored_parts(call), elements(call.input(0))
    return StorageWork(sum(min(rows * PAGE_BYTES, size) for size in parts.values()), 0, rows * len(parts))


def comparing_bytes(call: Call) -> int:
    """Return about what comparing a product by panels with a whole one takes."""
    return linear.comparing_bytes(call) + window_bytes(call)


SPECS = [
    OpSpec(
        LINEAR,
        POET_DOMAIN,
        shape=product_type,
        check=_product_fits,
        work=_multiplied,
        storage=panels_read,
        workspace=_room,
        schema=Schema(
            "LinearQuantized(x, codes, scales, zeros?, bias?, after...) -> y: a product with a matrix of few bits, and "
            "the bias.",
            (("y", "tensor(float)"),),
            (
                *PANELS,
                Attribute("transposed", "INT", "Whether the product is one with the transposed matrix."),
                Attribute("biased", "INT", "Whether there is a bias."),
                *QUANTIZATION,
            ),
        ),
    ),
    OpSpec(
        GATHER,
        POET_DOMAIN,
        shape=_rows,
        check=matrix_fits,
        work=_looked_up,
        storage=_rows_read,
        workspace=_rows_apart,
        heap=of_each(0, _SORTED_BYTES),
        schema=Schema(
            "GatherQuantized(indices, codes, scales, zeros?, after...) -> rows: rows of a table of few bits.",
            (("rows", "tensor(float)"),),
            (PANELS[0], *QUANTIZATION),
        ),
    ),
]
"""What reads matrices of few bits without making them whole."""
