"""Gradient of sums of products by named indices."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators.einsum import indices_of, sizes_of


@gradient_of("Einsum")
def einsum(builder: GradientBuilder) -> None:
    """Sum the products of the gradient and the other operand, if there is one, by the indices that an operand has.

    An index that an operand alone has, or along which it is repeated, is no index of what the others make of it: the
    gradient is repeated along the first, and summed along the second.
    """
    terms, result = _terms(builder)
    for index, (own, shape) in enumerate(terms):
        if not builder.wants(index):
            continue
        inputs, known = [builder.gradient()], [(result, builder.shape(builder.output()))]
        if len(terms) == 2:
            inputs.append(builder.input(1 - index))
            known.append(terms[1 - index])
        sizes = sizes_of(*zip(*known, strict=True))
        full = [sizes.get(name) == size for name, size in zip(own, shape, strict=True)]
        there = "".join(name for name, whole in zip(own, full, strict=True) if whole)
        operands = ",".join(term for term, _ in known)
        value = inputs[0] if operands == there else builder.op("Einsum", *inputs, equation=f"{operands}->{there}")
        builder.send(index, _repeat(builder, value, shape, full))


def _repeat(builder: GradientBuilder, value: ir.Value, shape: tuple[int, ...], full: list[bool]) -> ir.Value:
    """Give a gradient the dimensions that it lacks."""
    if all(full):
        return value
    single = [size if whole else 1 for size, whole in zip(shape, full, strict=True)]
    value = builder.reshape(value, single)
    return value if tuple(single) == shape else builder.expand(value, shape)


def _terms(builder: GradientBuilder) -> tuple[list[tuple[str, tuple[int, ...]]], str]:
    """Return each operand's indices and shape, and the result's indices."""
    shapes = [builder.shape(value) for value in builder.node.inputs if value is not None]
    terms, result = indices_of(builder.attributes["equation"], [len(shape) for shape in shapes])
    if any(len(set(term)) < len(term) for term in terms):
        raise NoGradientError("an operand has an index twice")
    return list(zip(terms, shapes, strict=True)), result
