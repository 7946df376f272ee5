"""Parameters that live in a store on disk: nodes that load them, and optimizers that change them where they are.

A handle stands for such a parameter: one int64, an input of the graph, which an update says that it writes. So a load
is a node like any other, which may run again until the update; what the order of loads and updates must be, follows
from what readers and writers of a resident tensor always keep to. Where an update waits for the end of the step, its
gradient is collected in the store, and the parameter's handle stays as it is through the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.description.optimizers import MOST_MISSED
from poet_onnx.graph.operators.fitting import expect_count
from poet_onnx.graph.operators.rules import movement, nothing, of_attributes, of_each
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
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
    elements,
)
from poet_onnx.graph.operators.updates import FLAG, KINDS, OFFSET, flag, optimizer_work

PAGE_BYTES = 128 << 10
"""A store reads at least one page, for each page has a checksum; ops/parameters/parameter_file.h has this number."""

_ELEMENT_BYTES, _BLOCK_BYTES = 4, 4096
_DTYPE = Attribute("dtype", "INT", "Element type, as onnx.TensorProto.DataType.")
_TRANSPOSED = Attribute("transposed", "INT", "1 for a matrix whose transpose is in the store.", required=False)
_TRANSPOSED_GRADIENT = Attribute("transposed", "INT", "1 for a matrix's transposed gradient.", required=False)
_ROWS = Attribute("rows", "INT", "Rows of the table.")
_DEFERRED = Attribute("deferred", "INT", "1 where pages without these rows get their update later.", required=False)
_COLLECTED = (
    Attribute("moments", "INT", "Tensors that the optimizer keeps for the parameter; the gradient is behind them."),
    Attribute("batches", "INT", "Batches whose gradients are summed."),
    Attribute("clipped", "INT", "1 where the gradient is read once more, for the norm of all.", required=False),
)
_SORTED_BYTES = 32
"""A row takes 20 bytes in the lists of rows, and sorting takes the rest."""

_reads = partial(OpSpec, domain=POET_DOMAIN, work=movement, workspace=nothing)
_updates = partial(OpSpec, domain=POET_DOMAIN, update=True, writes=(2,), always_writes=True, shape=flag)
_collects = partial(OpSpec, domain=POET_DOMAIN, update=True, workspace=nothing, shape=flag)
COLLECTS = ("AccumulateStored", "AccumulateRowsStored")
"""Operators that collect gradients in the store."""


def _handle_fits(place: int) -> Check:
    return lambda context: expect_count(context, place, 1)


def _gathered(context: ShapeContext) -> list[TensorType]:
    table = tuple(context.attributes["table"])
    if not table:
        raise RuleError("its table has no rows")
    return [TensorType(ir.DataType(context.attributes["dtype"]), (*context.type(1).shape, *table[1:]))]


def _whole(call: Call) -> StorageWork:
    return StorageWork(call.output(0).size_bytes, 0, 1)


def defers(rows: int, table: Sequence[int], tensors: int) -> bool:
    """Return whether a step moves less of a table if pages of which it reads no row get their update later.

    A page that it reads is then read twice with what the optimizer keeps for it, and written once. Otherwise a step
    reads these pages alone, and then reads and writes all of the table with what is kept for it.

    Args:
        rows: that a step reads.
        table: its shape.
        tensors: that the optimizer changes, the table among them.
    """
    table_bytes = _ELEMENT_BYTES * math.prod(table)
    read = _pages(rows, table[0], table_bytes)
    return 3 * tensors * read < read + 2 * tensors * -(-table_bytes // PAGE_BYTES)


def _pages(rows: int, all_rows: int, table_bytes: int) -> int:
    """Return on how many pages of a table some of its rows lie at most."""
    row_bytes = table_bytes // max(1, all_rows)
    small, large = sorted((max(1, row_bytes), PAGE_BYTES))
    crossing = large % small != 0
    return min(rows * (-(-row_bytes // PAGE_BYTES) + crossing), -(-table_bytes // PAGE_BYTES))


def whole_blocks(size_bytes: int) -> int:
    """Return what a store writes of so many bytes: whole blocks."""
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def _pages_of_rows(call: Call) -> StorageWork:
    """Return what reading rows takes: pages for each, and of the table no more than it has."""
    table = call.integers("table")
    table_bytes, tensors = _ELEMENT_BYTES * math.prod(table), call.integer("tensors", 1)
    rows = elements(call.input(1))
    pages = _pages(rows, table[0], table_bytes)
    return StorageWork(tensors * min(pages * PAGE_BYTES, table_bytes), 0, tensors * max(rows, pages))


def _update_of_gradient(tensors: int) -> StorageRule:
    def rule(call: Call) -> StorageWork:
        moved = tensors * call.input(0).size_bytes
        return StorageWork(moved, moved, 2 * tensors)

    return rule


def _update_of_table(tensors: int) -> StorageRule:
    def rule(call: Call) -> StorageWork:
        table_bytes = _table_bytes(call)
        if not call.integer("deferred", 0):
            return StorageWork(tensors * table_bytes, tensors * table_bytes, 2 * tensors)
        pages = _changed_pages(call)
        moved = tensors * min(pages * PAGE_BYTES, table_bytes)
        kept_bytes = MOST_MISSED * call.input(1).size_bytes + _ELEMENT_BYTES  # the rates, and where the next ones go
        return StorageWork(moved, moved + whole_blocks(kept_bytes), 2 * tensors * pages + 1)

    return rule


def _work_of_table(flops: int, tensors: int) -> WorkRule:
    def rule(call: Call) -> Work:
        table_bytes = _table_bytes(call)
        moved = min(_changed_pages(call) * PAGE_BYTES, table_bytes) if call.integer("deferred", 0) else table_bytes
        # What is deferred is done in some step: on the average each has as much to do.
        return Work(0, flops * table_bytes // _ELEMENT_BYTES, moved * (1 + 2 * tensors))

    return rule


def _changed_pages(call: Call) -> int:
    """Return how many pages of a table a step changes at most whose update is deferred for the others."""
    table_bytes = _table_bytes(call)
    pages = -(-table_bytes // PAGE_BYTES)
    read = _pages(elements(call.input(3)), call.integer("rows", 0), table_bytes)
    return min(pages, read + -(-pages // MOST_MISSED))


def updated_bytes(call: Call, work: StorageWork) -> int:
    """Return how large what a node updates is in the store, with what the optimizer keeps for it."""
    tensors = next((count for name, _, count in KINDS if call.op_type == f"UpdateRowsStored{name}"), 0)
    return tensors * _table_bytes(call) if tensors else work.written_bytes


def _collected(call: Call, gradient_bytes: int) -> StorageWork:
    """Return what collecting a gradient takes, and the update behind the step, which streams it once more."""
    tensors = 1 + call.integer("moments", 0)
    read = 1 + tensors + (call.integer("batches", 1) > 1) + call.integer("clipped", 0)
    return StorageWork(read * gradient_bytes, (1 + tensors) * gradient_bytes, read + 1 + tensors)


def _collected_gradient(call: Call) -> StorageWork:
    return _collected(call, call.input(0).size_bytes)


def _collected_table(call: Call) -> StorageWork:
    return _collected(call, _table_bytes(call, 2))


def _part_into_store(call: Call) -> Work:
    part = call.input(0)
    return Work(0, elements(part), 3 * part.size_bytes)


def _table_into_store(call: Call) -> Work:
    table_bytes = _table_bytes(call, 2)
    return Work(0, table_bytes // _ELEMENT_BYTES, 3 * table_bytes)


def _table_bytes(call: Call, indices: int = 3) -> int:
    given = elements(call.input(indices))
    return call.integer("rows", 0) * (call.input(0).size_bytes // given if given else 0)


SPECS = [
    _reads(
        "LoadStored",
        shape=of_attributes,
        check=_handle_fits(0),
        storage=_whole,
        schema=Schema(
            "LoadStored(handle, after...) -> parameter: reads it from the store.",
            (("parameter", "T"),),
            (_DTYPE, Attribute("shape", "INTS", "Shape of what is made."), _TRANSPOSED),
        ),
    ),
    _reads(
        "GatherStored",
        shape=_gathered,
        check=_handle_fits(0),
        storage=_pages_of_rows,
        heap=of_each(1, _SORTED_BYTES),
        schema=Schema(
            "GatherStored(handle, indices, after...) -> rows: reads the rows of a table that indices name.",
            (("rows", "T"),),
            (
                _DTYPE,
                Attribute("table", "INTS", "Shape of the table."),
                Attribute("tensors", "INT", "That tell of a row whose updates may be deferred.", required=False),
            ),
        ),
    ),
    *(
        _updates(
            f"UpdateStored{name}",
            check=_handle_fits(2),
            work=optimizer_work(flops, tensors),
            workspace=nothing,
            storage=_update_of_gradient(tensors),
            schema=Schema(
                f"UpdateStored{name}(gradient, rates, handle, after...) -> updated: as Update{name}, in the store.",
                FLAG,
                (*OFFSET, _TRANSPOSED_GRADIENT),
            ),
        )
        for name, flops, tensors in KINDS
    ),
    *(
        _updates(
            f"UpdateRowsStored{name}",
            check=_handle_fits(2),
            work=_work_of_table(flops, tensors),
            workspace=nothing,
            heap=of_each(3, _SORTED_BYTES),
            storage=_update_of_table(tensors),
            schema=Schema(
                f"UpdateRowsStored{name}(gradient, rates, handle, indices, after...) -> updated: the same for a table, "
                "of whose gradient the rows are given that are not zero.",
                FLAG,
                (_ROWS, _DEFERRED),
            ),
        )
        for name, flops, tensors in KINDS
    ),
    _collects(
        COLLECTS[0],
        check=_handle_fits(1),
        reset_input=2,
        work=_part_into_store,
        storage=_collected_gradient,
        schema=Schema(
            "AccumulateStored(gradient, handle, overwrite, after...) -> updated: adds a part of a gradient to that in "
            "the store.",
            FLAG,
            (*OFFSET, _TRANSPOSED_GRADIENT, *_COLLECTED),
        ),
    ),
    _collects(
        COLLECTS[1],
        check=_handle_fits(1),
        reset_input=3,
        work=_table_into_store,
        heap=of_each(2, _SORTED_BYTES),
        storage=_collected_table,
        schema=Schema(
            "AccumulateRowsStored(gradient, handle, indices, overwrite, after...) -> updated: the same for a table, of "
            "whose gradient the rows are given that are not zero.",
            FLAG,
            (_ROWS, *_COLLECTED),
        ),
    ),
]
"""Loads and updates of stored parameters."""
