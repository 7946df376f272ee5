"""Sums of products by named indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from string import ascii_letters

from poet_onnx.graph.operators.rules import shape_bytes
from poet_onnx.graph.operators.shape_context import ShapeContext, TensorType
from poet_onnx.graph.operators.spec import BUFFER, Call, OpSpec, Types


def indices_of(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand, and those of the result.

    Args:
        equation: of the node, such as "...ij,jk".
        ranks: dimensions of each operand.
    """
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    given = left.split(",")
    free = [letter for letter in ascii_letters if letter not in equation]
    counts = [rank - len(term.replace("...", "")) for term, rank in zip(given, ranks, strict=True)]
    dots = "".join(free[: max(counts)])
    terms = [term.replace("...", dots[len(dots) - count :]) for term, count in zip(given, counts, strict=True)]
    if arrow:
        return terms, right.replace("...", dots)
    every = "".join(terms)
    return terms, dots + "".join(sorted(letter for letter in set(every) - set(dots) if every.count(letter) == 1))


def sizes_of(terms: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the size of each index; an operand of size 1 is repeated along it.

    Args:
        terms: letters of each operand.
        shapes: of each operand.
    """
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    return sizes


_EINSUM_BUFFERS = 5


def _einsum_buffers(call: Call) -> tuple[int, ...]:
    """Return the copies of both operands whose axes are brought into one order, then for a product, and the product.

    Known for two operands whose axes all differ and are summed only together; for others nothing is.
    """
    unknown = (0,) * _EINSUM_BUFFERS
    terms, arrow, output = str(call.attributes.get("equation", "")).replace(" ", "").partition("->")
    operands = terms.split(",")
    if not arrow or "." in terms or len(operands) != 2 or any(len(set(term)) < len(term) for term in operands):
        return unknown
    shapes = [call.input(index).shape for index in (0, 1)]
    if [len(term) for term in operands] != [len(shape) for shape in shapes]:
        return unknown
    axes = list(dict.fromkeys("".join(operands)))
    sizes = dict(zip("".join(operands), (*shapes[0], *shapes[1]), strict=True))
    groups: dict[str, list[str]] = {"both": [], "left": [], "summed": [], "right": []}
    for name in axes:
        owners = [name in term and sizes[name] > 1 for term in operands]
        if name not in output and any(owners) and not all(owners):
            return unknown
        kind = "summed" if name not in output else "both" if all(owners) else "left" if owners[0] else "right"
        groups[kind].append(name)
    left = [*groups["both"], *groups["left"], *groups["summed"], *groups["right"]]
    right = [*groups["both"], *groups["summed"], *groups["right"], *groups["left"]]
    first, second = (call.input(index).size_bytes for index in (0, 1))
    copied = [sorted(term, key=axes.index) != list(term) for term in operands]
    sizes_bytes = (first, second, first, second)
    is_made = (*copied, left != axes, right != axes)
    return (*(size if made else 0 for size, made in zip(sizes_bytes, is_made, strict=True)), call.output(0).size_bytes)


def _estimate(call: Call) -> int:
    """Return two copies of all tensors, and of the two that follow each other on the way from left to right."""
    copied_bytes = 2 * (call.read_bytes + call.written_bytes)
    shapes = [call.input(index).shape for index in range(len(call.inputs))]
    try:
        terms, result = indices_of(str(call.attributes.get("equation", "")), [len(shape) for shape in shapes])
        sizes = sizes_of(terms, shapes)
    except ValueError:  # the equation is not of these operands: the kernel refuses them
        return copied_bytes
    made, between = set(terms[0]), [0]
    for number, term in enumerate(terms[1:-1], start=2):
        made = made.union(term) & {*"".join(terms[number:]), *result}
        between.append(math.prod(sizes[letter] for letter in made))
    most = max(map(sum, pairwise([*between, 0])))
    return copied_bytes + 2 * shape_bytes((most,), call.input(0))


def _repeating(context: ShapeContext, types: Types) -> Types:
    """Return the type of the result, of whose sizes ONNX infers those of the first operand that has an index."""
    shapes = [context.type(index).shape for index in range(len(context.types))]
    terms, result = indices_of(context.attributes["equation"], [len(shape) for shape in shapes])
    sizes = sizes_of(terms, shapes)
    return [TensorType(context.type(0).dtype, tuple(sizes[letter] for letter in result))]


SPECS = [
    OpSpec(
        "Einsum",
        corrected=_repeating,
        estimate=_estimate,
        allocation_order=(*[BUFFER] * _EINSUM_BUFFERS, 0),  # einsum_typed_compute_processor.cc
        buffers=_einsum_buffers,
    ),
]
"""Sums of products by named indices."""
