"""Parameters that live in a store on disk: nodes that load them, and optimizers that change them where they are.

A handle stands for such a parameter: one int64, an input of the graph, which an update says that it writes. So a load
is a node like any other, which may run again until the update; what the order of loads and updates must be, follows
from what readers and writers of a resident tensor always keep to. Where an update waits for the end of the step, its
gradient is collected in the store, and the parameter's handle stays as it is through the step.
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
_TRANSPOSED_GRADIENT = Attribute("transposed", "INT", "1 for a matrix's transposed gradient.", required=False)
_ROWS = Attribute("rows", "INT", "Rows of the table.")
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
KINDS = (("Sgd", 5, 1), ("Momentum", 8, 2), ("Adam", 18, 3))
"""For each optimizer: its name, the operations for an element, and the number of tensors that it changes."""

COLLECTS = ("AccumulateStored", "AccumulateRowsStored")
"""Operators that collect gradients in the store."""


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
                (_ROWS,),
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
