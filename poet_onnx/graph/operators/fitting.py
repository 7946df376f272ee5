"""Which inputs of an operator fit together.

Kernels of ONNX Runtime's training operators take sizes from one input and read or write the others without a check:
inputs that contradict each other would corrupt memory. ONNX's own operators check what they are given.
"""

from __future__ import annotations

from collections.abc import Sequence

from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext
from poet_onnx.graph.operators.spec import Check


def same(*indices: int) -> Check:
    """Return a check: the inputs have one element type and one shape."""

    def check(context: ShapeContext) -> None:
        first = context.type(indices[0])
        for index in indices[1:]:
            if context.type(index) != first:
                raise RuleError(f"{said(context, indices[0])} and {said(context, index)} are not alike")

    return check


OTHER_SIZE = "give another size, or export the model at that size, or with dynamo=True"
"""What to try where sizes of an earlier export are in a graph's constants."""


def same_shape(*indices: int) -> Check:
    """Return a check: the inputs have one shape."""

    def check(context: ShapeContext) -> None:
        for index in indices[1:]:
            expect(context, index, context.type(indices[0]).shape)

    return check


def both(*checks: Check) -> Check:
    """Return a check that makes several."""

    def check(context: ShapeContext) -> None:
        for each in checks:
            each(context)

    return check


def bias(last: int) -> Check:
    """Return a check: an input that may be absent has one element for each column of input 0."""

    def check(context: ShapeContext) -> None:
        if context.has(last):
            expect(context, last, context.type(0).shape[-1:])

    return check


def said(context: ShapeContext, index: int) -> str:
    """Return an input as errors name it."""
    kind = context.type(index)
    return f"its input {index}, {kind.dtype.name} {list(kind.shape)},"


def expect(context: ShapeContext, index: int, shape: Sequence[int]) -> None:
    """Check that an input has a shape.

    Raises:
        RuleError: it has another.
    """
    if context.type(index).shape != tuple(shape):
        raise RuleError(f"its input {index} has shape {list(context.type(index).shape)} and must have {list(shape)}")


def expect_count(context: ShapeContext, index: int, count: int) -> None:
    """Check that an input has so many elements.

    Raises:
        RuleError: it has another number of them.
    """
    if context.type(index).elements != count:
        raise RuleError(f"its input {index} has {context.type(index).elements} elements and must have {count}")


def expect_one_dtype(context: ShapeContext, *indices: int) -> None:
    """Check that inputs have one element type.

    Raises:
        RuleError: they have several.
    """
    kinds = {context.type(index).dtype.name for index in indices}
    if len(kinds) > 1:
        raise RuleError(f"its inputs are of the element types {', '.join(sorted(kinds))}, not of one")
