"""Linear layers on matrices that live in a store, of which some rows at a time are in memory (ops/kernels/panels.h)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect, expect_count
from poet_onnx.graph.operators.rules import FLOAT
from poet_onnx.graph.operators.shape_context import Rule, RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import (
    Attribute,
    Call,
    Check,
    OpSpec,
    Schema,
    StorageRule,
    StorageWork,
    Work,
    WorkRule,
    WorkspaceRule,
    elements,
)
from poet_onnx.graph.operators.stored import PAGE_BYTES
from poet_onnx.graph.operators.updates import KINDS, flag

BACKWARD = "LinearStoredBackward"
"""What the names of operators begin with that use gradients up; the optimizer follows."""

NARROW_ROWS = 64
"""That a last panel takes besides, rather than leave them to one of their own."""

_PIECE_PAGES, _PIECE_ROWS = 2, 8
"""Of the gradient at a time, at least; ops/kernels/panels.cpp has the same."""

_BLOCK_ROWS, _LEAST_BYTES, _MOST_BYTES = 128, 256 << 10, 512 << 10
_ELEMENT_BYTES = 4
_COMPARED_BYTES, _COMPARED_PANELS = 16 << 20, 4
PANELS = (
    Attribute("matrix", "INTS", "Shape of the matrix."),
    Attribute("panel_rows", "INT", "Rows of it that are taken at a time."),
)
_TRANSPOSED = Attribute("transposed", "INT", "Whether the product is one with the transposed matrix.")


def panel_rows(columns: int) -> int:
    """Return how many rows of a matrix are taken at a time: whole pages of the store, if few rows more make them."""
    block_bytes = _BLOCK_ROWS * columns * _ELEMENT_BYTES
    least = max(1, -(-_LEAST_BYTES // block_bytes))
    aligned = (n for n in range(least, _MOST_BYTES // block_bytes + 1) if n * block_bytes % PAGE_BYTES == 0)
    return _BLOCK_ROWS * next(aligned, least)


def most_rows(rows: int, panel: int) -> int:
    """Return how many rows the largest panel of a matrix has."""
    if rows <= panel + NARROW_ROWS:
        return rows
    rest = rows % panel
    return panel + (rest if rest <= NARROW_ROWS else 0)


def panel_count(rows: int, panel: int) -> int:
    """Return how many panels a matrix has."""
    whole, rest = divmod(rows, panel)
    return whole + (rest > NARROW_ROWS or not whole)


def compared_rows(
    rows: int, columns: int, panel: int, *, most_bytes: int = _COMPARED_BYTES, panels: int = _COMPARED_PANELS
) -> int:
    """Return how many rows of a matrix are compared where it trains: all, or as many as the last panel stays as it is.

    So a comparison takes no more than some panels, where the whole matrix might not fit into RAM.
    """
    most = max(panels * panel, most_bytes // (_ELEMENT_BYTES * columns))
    return rows if rows <= most + panel else most // panel * panel + rows % panel


def comparing_bytes(call: Call) -> int:
    """Return about what comparing a layer's products by panels with whole ones takes."""
    rows, columns, samples = sizes(call)
    compared = compared_rows(rows, columns, call.integer("panel_rows", 1))
    return _ELEMENT_BYTES * (compared * columns + 2 * samples * (compared + columns)) + _room_for_gradient(call)


def matrix_of(attributes: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns, as an attribute says them."""
    if len(attributes) != 2 or min(attributes) < 1:
        raise RuleError(f"a matrix of shape {list(attributes)} has no panels")
    return attributes[0], attributes[1]


def widths(context: ShapeContext) -> tuple[int, int]:
    """Return how many numbers of a sample the layer takes and makes."""
    rows, columns = matrix_of(context.attributes["matrix"])
    return (columns, rows) if context.integer("transposed", 0) else (rows, columns)


def _ending(context: ShapeContext, width: int) -> list[TensorType]:
    return [TensorType(FLOAT, (*context.type(0).shape[:-1], width))]


def product_type(context: ShapeContext) -> list[TensorType]:
    """Return the type of what the layer makes."""
    return _ending(context, widths(context)[1])


def _gradients(context: ShapeContext) -> list[TensorType]:
    return [*_ending(context, widths(context)[0]), *flag(context)]


def _product_fits(context: ShapeContext) -> None:
    taken, made = widths(context)
    expect(context, 0, (*context.type(0).shape[:-1], taken))
    expect_count(context, 1, 1)
    if context.integer("biased", 0):
        expect(context, 2, (made,))


def _gradients_fit(context: ShapeContext) -> None:
    taken, made = widths(context)
    expect(context, 0, (*context.type(0).shape[:-1], made))
    expect(context, 1, (*context.type(1).shape[:-1], taken))
    expect_count(context, 3, 1)


def sizes(call: Call) -> tuple[int, int, int]:
    """Return rows and columns of the matrix, and how many samples there are."""
    rows, columns = call.integers("matrix")
    first = call.input(0).shape
    return rows, columns, elements(call.input(0)) // first[-1] if first[-1] else 0


def piece_rows(rows: int, columns: int, panel: int) -> int:
    """Return how many rows of the gradient there are at most at a time."""
    page = PAGE_BYTES // _ELEMENT_BYTES
    piece = max(_PIECE_PAGES, -(-_PIECE_ROWS * columns // page)) * page
    return min(most_rows(rows, panel), max(2, (piece + columns - 2) // columns + 1))


def room(call: Call) -> int:
    """Return the bytes of a panel of the matrix, and of its samples."""
    rows, columns, samples = sizes(call)
    return _ELEMENT_BYTES * most_rows(rows, call.integer("panel_rows", 1)) * (columns + samples)


def _room_for_gradient(call: Call) -> int:
    rows, columns, _ = sizes(call)
    return room(call) + _ELEMENT_BYTES * columns * piece_rows(rows, columns, call.integer("panel_rows", 1))


def read_once(call: Call) -> StorageWork:
    """Return what reading all panels takes."""
    rows, columns, _ = sizes(call)
    return StorageWork(_ELEMENT_BYTES * rows * columns, 0, panel_count(rows, call.integer("panel_rows", 1)))


def _read_and_updated(tensors: int) -> StorageRule:
    """Return a rule: the matrix is read once, what is kept for it, too, and all is written.

    Pages that two panels share are moved for both of them.
    """

    def rule(call: Call) -> StorageWork:
        read = read_once(call)
        panel_bytes = _ELEMENT_BYTES * call.integer("panel_rows", 1) * sizes(call)[1]
        shared_bytes = (read.transfers - 1) * PAGE_BYTES if panel_bytes % PAGE_BYTES else 0
        moved = tensors * (read.read_bytes + shared_bytes)
        return StorageWork(moved + 2 * shared_bytes, moved, read.transfers * 2 * tensors)

    return rule


def _multiplied(call: Call) -> Work:
    rows, columns, samples = sizes(call)
    return Work(2 * rows * columns * samples, 0, call.read_bytes + call.written_bytes + _ELEMENT_BYTES * rows * columns)


def _work_of_gradients(product: WorkRule, flops: int, tensors: int) -> WorkRule:
    def rule(call: Call) -> Work:
        once = product(call)
        rows, columns, _ = sizes(call)
        moved = once.moved_bytes + _ELEMENT_BYTES * rows * columns * (1 + 2 * tensors)
        return Work(2 * once.matmul_flops, flops * rows * columns, moved)

    return rule


def gradient_specs(
    backward: str,
    parameter: str,
    *,
    shape: Rule,
    check: Check,
    product: WorkRule,
    workspace: WorkspaceRule,
    attributes: Sequence[Attribute],
) -> Iterator[OpSpec]:
    """Yield operators that make both gradients of a layer and update its parameter in the store, for each optimizer.

    Args:
        backward: what their names begin with: that of the operator with these gradients, and "Backward".
        parameter: what its parameter is called.
        shape: what the operators make.
        check: that their inputs fit.
        product: work of one of the two products, without what is written to the store.
        workspace: of the operators.
        attributes: of the operators.
    """
    forward = backward.removesuffix("Backward")
    for name, flops, tensors in KINDS:
        yield OpSpec(
            f"{backward}{name}",
            POET_DOMAIN,
            writes=(3,),
            always_writes=True,
            shape=shape,
            check=check,
            work=_work_of_gradients(product, flops, tensors),
            storage=_read_and_updated(tensors),
            workspace=workspace,
            schema=Schema(
                f"{backward}{name}(dY, x, rates, handle, after...) -> dX, updated: the gradients of {forward}, "
                f"of which that of the {parameter} is used up as by UpdateStored{name}.",
                (("dX", "tensor(float)"), ("updated", "tensor(bool)")),
                tuple(attributes),
            ),
        )


SPECS = [
    OpSpec(
        "LinearStored",
        POET_DOMAIN,
        shape=product_type,
        check=_product_fits,
        work=_multiplied,
        storage=read_once,
        workspace=room,
        schema=Schema(
            "LinearStored(x, handle, bias?, after...) -> y: a product with a matrix in the store, and the bias.",
            (("y", "tensor(float)"),),
            (*PANELS, _TRANSPOSED, Attribute("biased", "INT", "Whether there is a bias.")),
        ),
    ),
    *gradient_specs(
        BACKWARD,
        "matrix",
        shape=_gradients,
        check=_gradients_fit,
        product=_multiplied,
        workspace=_room_for_gradient,
        attributes=(*PANELS, _TRANSPOSED),
    ),
    OpSpec(
        "ComparePanels",
        POET_DOMAIN,
        planned=True,
        schema=Schema(
            "ComparePanels(any) -> same: whether a product by panels has the bits of the whole one.",
            (("same", "tensor(bool)"),),
            (
                *PANELS,
                Attribute("product", "INT", "With the transposed matrix, with the matrix, or its gradient."),
                Attribute("samples", "INTS", "Shape of the samples."),
                Attribute("whole", "INT", "Operator of the whole product: Gemm, MatMul or FusedMatMul."),
                Attribute("transposed", "INT", "Whether the whole matrix lies transposed."),
                Attribute("biased", "INT", "Whether a bias is added."),
            ),
        ),
        shape=flag,
    ),
]
"""Products with stored matrices, their gradients, and a comparison with whole products."""
