"""Scores of which a loss may not be meant as it is given."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.gradients.loss_builder import dims_of

_OF_ITSELF = {
    "cross-entropy": "Softmax",
    "cross-entropy-last": "Softmax",
    "causal-lm": "Softmax",
    "bce-logits": "Sigmoid",
}
"""What a loss computes of the scores itself."""

_SAME_NUMBERS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast")


def doubt_of(kind: str, scores: ir.Value) -> str | None:
    """Return a sentence that tells why a loss of these scores may not be meant so; None where nothing does.

    Args:
        kind: of the loss.
        scores: an output of a model whose shapes are known.
    """
    if kind == "cross-entropy" and _classes_come_last(scores):
        shape = dims_of(scores)
        return (
            f"Cross-entropy takes dimension 1 of '{scores.name}' {shape} as the {shape[1]} classes, as torch does, but"
            f" a linear layer made the last one: if that holds the {shape[-1]} classes, give the loss"
            " 'cross-entropy-last'."
        )
    own, node = _OF_ITSELF.get(kind), _behind_shapes(scores).producer()
    if node is None or node.op_type != own:
        return None
    source = node.inputs[0]
    assert source is not None
    while dims_of(source) != dims_of(scores) and _is_of_shape(source):
        source = _read(source)
    return (
        f"'{scores.name}' comes from {own} '{node.name}', and {kind} takes what is before it: as in torch, {own} is "
        f"computed twice, which trains slowly. If that is not meant, give the loss '{kind}:{source.name}'."
    )


def _behind_shapes(value: ir.Value) -> ir.Value:
    while _is_of_shape(value):
        value = _read(value)
    return value


def _is_of_shape(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in _SAME_NUMBERS


def _read(value: ir.Value) -> ir.Value:
    node = value.producer()
    assert node is not None
    source = node.inputs[0]
    assert source is not None
    return source


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
