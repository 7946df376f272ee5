"""Rotary embedding in one node (ops/kernels/rotate.cpp)."""

from __future__ import annotations

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import both, said, same
from poet_onnx.graph.operators.rules import FLOAT, like, nothing, per_input
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext
from poet_onnx.graph.operators.spec import Attribute, OpSpec, Schema

ROTATE = "Rotate"
"""The operator, whose gradient is itself, the other way round."""


def fits(x: tuple[int, ...], table: tuple[int, ...], rotated: int) -> bool:
    """Return whether tables have a row of angles for each row of x, of which so many numbers are rotated."""
    if not 0 < len(table) <= len(x) or not 0 < rotated <= x[-1] or rotated % 2:
        return False
    before = x[len(x) - len(table) : -1]
    are_alike = all(size in (1, whole) for size, whole in zip(table[:-1], before, strict=True))
    return are_alike and table[-1] in (rotated, rotated // 2)


def _check(context: ShapeContext) -> None:
    x, table, heads = context.type(0), context.type(1), context.integer("heads", 0)
    if x.dtype != FLOAT or table.dtype != FLOAT:
        raise RuleError(f"{said(context, 0)} and its tables must be of floats")
    if heads < 0 or (heads and (not x.shape or x.shape[-1] % heads)):
        raise RuleError(f"{said(context, 0)} must have rows of {heads} heads")
    shape = (*x.shape[:-1], heads, x.shape[-1] // heads) if heads else x.shape
    if not fits(shape, table.shape, context.integer("rotated", 0)):
        raise RuleError(f"{said(context, 1)} must be angles of {list(x.shape)}")


SPECS = [
    OpSpec(
        ROTATE,
        POET_DOMAIN,
        inplace=((0, 0),),
        shape=like(0),
        check=both(same(1, 2), _check),
        work=per_input(3),
        workspace=nothing,
        of_graphs=True,
        schema=Schema(
            "Rotate(x, cos, sin) -> y: rotates pairs of numbers of each row, as rotary embeddings do.",
            (("y", "tensor(float)"),),
            (
                Attribute("rotated", "INT", "How many numbers of a row are rotated, from the first on."),
                Attribute("interleaved", "INT", "Whether neighbours are pairs, and not numbers of two halves."),
                Attribute("inverse", "INT", "Whether to multiply with the transposed matrices."),
                Attribute(
                    "heads", "INT", "How many rows of x stand one behind the other along its last axis; 0 for one."
                ),
            ),
        ),
    )
]
"""Rotary embedding."""
