"""Scores of which a loss may not be meant as it is given."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.gradients.loss_builder import CAUSAL, LAST, SECOND, dims_of
from poet_onnx.passes.views import VIEWS

_OF_ITSELF = {SECOND: "Softmax", LAST: "Softmax", CAUSAL: "Softmax", "bce-logits": "Sigmoid"}
"""What a loss computes of the scores itself."""

_SAME_NUMBERS = (*VIEWS, "Cast")


def doubt_of(kind: str, scores: ir.Value) -> str | None:
    """Return a sentence that tells why a loss of these scores may not be meant so; None where nothing does.

    Args:
        kind: of the loss.
        scores: an output of a model whose shapes are known.
    """
    if kind == SECOND and _classes_come_last(scores):
        shape = dims_of(scores)
        return (
            f"Cross-entropy takes dimension 1 of '{scores.name}' {shape} as the {shape[1]} classes, as torch does, but"
            f" a linear layer made the last one: if that holds the {shape[-1]} classes, give the loss '{LAST}'."
        )
    own, node = _OF_ITSELF.get(kind), list(_back(scores))[-1].producer()
    if own is None or node is None or not is_op(node, own):
        return None
    given = list(_back(node.inputs[0]))
    source = next((value for value in given if dims_of(value) == dims_of(scores)), given[-1])
    return (
        f"'{scores.name}' comes from {own} '{node.name}', and {kind} takes what is before it: as in torch, {own} is "
        f"computed twice, which trains slowly. If that is not meant, give the loss '{kind}:{source.name}'."
    )


def _back(value: ir.Value | None) -> Iterator[ir.Value]:
    """Yield a value, and before it what has the same numbers in another shape or type."""
    while value is not None:
        yield value
        node = value.producer()
        value = node.inputs[0] if node is not None and is_op(node, *_SAME_NUMBERS) else None


def _classes_come_last(scores: ir.Value) -> bool:
    """Return whether a matrix made the last dimension of scores that have more than two, as a language model's head."""
    if len(dims_of(scores)) < 3:
        return False
    node = scores.producer()
    while node is not None and node.op_type in ("Add", "Identity", "Cast", "Reshape"):
        source = max((value for value in node.inputs if value is not None), key=lambda value: len(dims_of(value)))
        if dims_of(source)[-1:] != dims_of(scores)[-1:]:
            return False
        node = source.producer()
    if node is None or node.op_type not in ("MatMul", "Gemm"):
        return False
    matrix = node.inputs[1]
    return matrix is not None and len(dims_of(matrix)) == 2
