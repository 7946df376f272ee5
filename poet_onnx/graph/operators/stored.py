"""Parameters that live in a store on disk: nodes that load them, and optimizers that change them where they are.

A handle stands for such a parameter: one int64, an input of the graph, which an update says that it writes. So a load
is a node like any other, which may run again until the update; what the order of loads and updates must be, follows
from what readers and writers of a resident tensor always keep to.
"""

from __future__ import annotations

import math
from functools import partial

import onnx_ir as ir

from poet_onnx.description.metadata import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect_count
from poet_onnx.graph.operators.rules import movement, nothing, of_each
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
from poet_onnx.graph.operators.updates import FLAG, OFFSET, flag, optimizer_work

PAGE_BYTES = 128 << 10
"""A store reads at least one page, for each page has a checksum; ops/parameters/parameter_file.h has this number."""

_ELEMENT_BYTES = 4
_DTYPE = Attribute("dtype", "INT", "Element type, as onnx.TensorProto.DataType.")
_TRANSPOSED = Attribute("transposed", "INT", "1 for a matrix whose transpose is in the store.", required=False)
_SORTED_BYTES = 32
"""A row takes 20 bytes in the lists of rows, and sorting takes the rest."""

_reads = partial(OpSpec, domain=POET_DOMAIN, work=movement, workspace=nothing)
_updates = partial(OpSpec, domain=POET_DOMAIN, update=True, writes=(2,), always_writes=True, shape=flag)
KINDS = (("Sgd", 5, 1), ("Momentum", 8, 2), ("Adam", 18, 3))
"""For each optimizer: its name, the operations for an element, and the number of tensors that it changes."""


def _handle_fits(place: int) -> Check:
    return lambda context: expect_count(context, place, 1)


def _loaded(context: ShapeContext) -> list[TensorType]:
    return [TensorType(ir.DataType(context.attributes["dtype"]), tuple(context.attributes["shape"]))]


def _gathered(context: ShapeContext) -> list[TensorType]:
    table = tuple(context.attributes["table"])
    if not table:
        raise RuleError("its table has no rows")
    return [TensorType(ir.DataType(context.attributes["dtype"]), (*context.type(1).shape, *table[1:]))]


def _whole(call: Call) -> StorageWork:
    return StorageWork(call.output(0).size_bytes, 0, 1)


def _pages_of_rows(call: Call) -> StorageWork:
    """Return what reading rows takes: a page for each, and of the table no more than it has."""
    table_bytes = _ELEMENT_BYTES * math.prod(call.integers("table"))
    rows = elements(call.input(1))
    return StorageWork(min(rows * PAGE_BYTES, table_bytes), 0, rows)


def _update_of_gradient(tensors: int) -> StorageRule:
    def rule(call: Call) -> StorageWork:
        moved = tensors * call.input(0).size_bytes
        return StorageWork(moved, moved, 2 * tensors)

    return rule


def _update_of_table(tensors: int) -> StorageRule:
    def rule(call: Call) -> StorageWork:
        moved = tensors * _table_bytes(call)
        return StorageWork(moved, moved, 2 * tensors)

    return rule


def _work_of_table(flops: int, tensors: int) -> WorkRule:
    def rule(call: Call) -> Work:
        table_bytes = _table_bytes(call)
        return Work(0, flops * table_bytes // _ELEMENT_BYTES, table_bytes * (1 + 2 * tensors))

    return rule


def _table_bytes(call: Call) -> int:
    given = elements(call.input(3))
    return call.integer("rows", 0) * (call.input(0).size_bytes // given if given else 0)


SPECS = [
    _reads(
        "LoadStored",
        shape=_loaded,
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
            (_DTYPE, Attribute("table", "INTS", "Shape of the table.")),
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
                (*OFFSET, Attribute("transposed", "INT", "1 for a matrix's transposed gradient.", required=False)),
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
                (Attribute("rows", "INT", "Rows of the table."),),
            ),
        )
        for name, flops, tensors in KINDS
    ),
]
"""Loads and updates of stored parameters."""
