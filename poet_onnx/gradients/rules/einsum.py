"""Gradient of sums of products by named indices."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.passes.einsum import indices_of


@gradient_of("Einsum")
def einsum(builder: GradientBuilder) -> None:
    """Sum the products of the gradient and the other operands, by the indices that an operand has.

    An index that an operand alone has, or along which it is repeated, is no index of what the others make of it: the
    gradient is repeated along the first, and summed along the second.
    """
    terms, result = _terms(builder)
    sizes = {
        letter: max(size for term, shape in terms for name, size in zip(term, shape, strict=True) if name == letter)
        for letter in {letter for term, _ in terms for letter in term}
    }
    for index, (own, shape) in enumerate(terms):
        if not builder.wants(index):
            continue
        others = [place for place in range(len(terms)) if place != index]
        known = set(result).union(*(terms[place][0] for place in others))
        full = [name in known and size == sizes[name] for name, size in zip(own, shape, strict=True)]
        there = "".join(name for name, whole in zip(own, full, strict=True) if whole)
        value = builder.gradient()
        operands = ",".join([result, *(terms[place][0] for place in others)])
        if operands != there:
            inputs = [value, *(builder.input(place) for place in others)]
            value = builder.op("Einsum", *inputs, equation=f"{operands}->{there}")
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
