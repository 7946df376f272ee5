"""Which inputs of an operator fit together.

Kernels of ONNX Runtime's training operators take sizes from one input and read or write the others without a check:
inputs that contradict each other would corrupt memory. ONNX's own operators check what they are given.
"""

from __future__ import annotations

from collections.abc import Sequence

from poet_onnx.graph.operators.site import RuleError, Site
from poet_onnx.graph.operators.spec import Check


def same(*indices: int) -> Check:
    """Return a check: the inputs have one element type and one shape."""

    def check(site: Site) -> None:
        first = site.type(indices[0])
        for index in indices[1:]:
            if site.type(index) != first:
                raise RuleError(f"{said(site, indices[0])} and {said(site, index)} are not alike")

    return check


def same_shape(*indices: int) -> Check:
    """Return a check: the inputs have one shape."""

    def check(site: Site) -> None:
        for index in indices[1:]:
            expect(site, index, site.type(indices[0]).shape)

    return check


def both(*checks: Check) -> Check:
    """Return a check that makes several."""

    def check(site: Site) -> None:
        for each in checks:
            each(site)

    return check


def bias(last: int) -> Check:
    """Return a check: an input that may be absent has one element for each column of input 0."""

    def check(site: Site) -> None:
        if site.has(last):
            expect(site, last, site.type(0).shape[-1:])

    return check


def said(site: Site, index: int) -> str:
    """Return an input as errors name it."""
    kind = site.type(index)
    return f"its input {index}, {kind.dtype.name} {list(kind.shape)},"


def expect(site: Site, index: int, shape: Sequence[int]) -> None:
    """Check that an input has a shape.

    Raises:
        RuleError: it has another.
    """
    if site.type(index).shape != tuple(shape):
        raise RuleError(f"its input {index} has shape {list(site.type(index).shape)} and must have {list(shape)}")


def expect_count(site: Site, index: int, count: int) -> None:
    """Check that an input has so many elements.

    Raises:
        RuleError: it has another number of them.
    """
    if site.type(index).elements != count:
        raise RuleError(f"its input {index} has {site.type(index).elements} elements and must have {count}")


def expect_one_dtype(site: Site, *indices: int) -> None:
    """Check that inputs have one element type.

    Raises:
        RuleError: they have several.
    """
    kinds = {site.type(index).dtype.name for index in indices}
    if len(kinds) > 1:
        raise RuleError(f"its inputs are of the element types {', '.join(sorted(kinds))}, not of one")
