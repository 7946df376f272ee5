"""Normalizations of ONNX Runtime's, some with a sum before them, as plain ONNX."""

from __future__ import annotations

from functools import reduce

import onnx_ir as ir

from poet_onnx.passes.generation.expansion import Expansion

_EPSILON, _SKIP_EPSILON = 1e-5, 1e-12
"""Defaults of ONNX Runtime's schemas."""


def simplified(writer: Expansion) -> None:
    """Write a SimplifiedLayerNormalization along the last axis."""
    axis, x = writer.attributes.get("axis", -1), writer.input(0)
    rank = None if x.shape is None else len(x.shape)
    if axis != -1 and (rank is None or axis != rank - 1):
        raise writer.refusal(f"its axis {axis} may not be the last one")
    _refuse_statistics(writer, (1,))
    writer.give(0, writer.normalized(x, writer.input(1), float(writer.attributes.get("epsilon", _EPSILON))))
    writer.finish()


def skip_simplified(writer: Expansion) -> None:
    """Write a SkipSimplifiedLayerNormalization (input, skip, gamma, bias)."""
    total = _sum(writer, (0, 1, 3))
    writer.give(0, writer.normalized(total, writer.input(2), float(writer.attributes.get("epsilon", _SKIP_EPSILON))))
    writer.finish()


def skip(writer: Expansion) -> None:
    """Write a SkipLayerNormalization (input, skip, gamma, beta, bias)."""
    total = _sum(writer, (0, 1, 4))
    scale = [writer.input(2), *([writer.input(3)] if writer.has(3) else [])]
    epsilon = float(writer.attributes.get("epsilon", _SKIP_EPSILON))
    writer.give(0, writer.op("LayerNormalization", total, *scale, axis=-1, epsilon=epsilon))
    writer.finish()


def _sum(writer: Expansion, terms: tuple[int, ...]) -> ir.Value:
    """Add what is given, and let it stand for the fourth output."""
    _refuse_statistics(writer, (1, 2))
    given = [writer.input(index) for index in terms if writer.has(index)]
    total = reduce(lambda one, other: writer.op("Add", one, other), given)
    writer.give(3, total)
    return total


def _refuse_statistics(writer: Expansion, indices: tuple[int, ...]) -> None:
    if any(writer.wants(index) for index in indices):
        raise writer.refusal("its statistics are read")
