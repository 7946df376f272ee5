"""The indices of Einsum, each with a letter: what dots and a missing result stand for follows from the shapes."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.graph.operators import ONNX_DOMAINS


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


class NameIndices(InPlacePass):
    """Write a letter for each index of an Einsum: so what the kernel takes besides is known. Requires known shapes."""

    def call(self, model: ir.Model) -> PassResult:
        """Write the equations."""
        modified = False
        for node in model.graph:
            if node.op_type != "Einsum" or node.domain not in ONNX_DOMAINS:
                continue
            shapes = [value.shape for value in node.inputs if value is not None]
            equation = node.attributes["equation"].as_string()
            if "." not in equation and "->" in equation:
                continue
            terms, result = indices_of(equation, [len(shape) for shape in shapes if shape is not None])
            node.attributes["equation"] = ir.AttrString("equation", f"{','.join(terms)}->{result}")
            modified = True
        return PassResult(model, modified=modified)
