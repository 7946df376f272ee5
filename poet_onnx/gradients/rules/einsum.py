"""Gradient of sums of products by named indices."""

from __future__ import annotations

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators.einsum import indices_of


@gradient_of("Einsum")
def einsum(builder: GradientBuilder) -> None:
    """Sum the products of the gradient and the other operands by the indices that an operand has.

    An index that an operand alone has is no index of what the others make of it: the gradient is repeated along it.
    """
    shapes = [builder.shape(value) for value in builder.node.inputs if value is not None]
    terms, result = indices_of(builder.attributes["equation"], [len(shape) for shape in shapes])
    for index, (own, shape) in enumerate(zip(terms, shapes, strict=True)):
        if not builder.wants(index):
            continue
        if len(set(own)) < len(own):
            raise NoGradientError("an operand has an index twice")
        others = [place for place in range(len(terms)) if place != index]
        operands = ",".join([result, *(terms[place] for place in others)])
        there = "".join(name for name in own if name in operands)
        value = builder.gradient()
        if operands != there:
            inputs = [value, *(builder.input(place) for place in others)]
            value = builder.op("Einsum", *inputs, equation=f"{operands}->{there}")
        if there != own:
            single = tuple(size if name in there else 1 for name, size in zip(own, shape, strict=True))
            value = builder.reshape(value, single)
            value = value if single == shape else builder.expand(value, shape)
        builder.send(index, value)
