"""Losses of scores and labels, and their gradients."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import both, expect, expect_count, said
from poet_onnx.graph.operators.rules import like, nothing, per_input, per_output
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import (
    BUFFER,
    MICROSOFT_DOMAIN,
    Call,
    Check,
    OpSpec,
    Schema,
    WorkspaceRule,
    family,
)


def _output_type(context: ShapeContext, default: ir.DataType) -> ir.DataType:
    return ir.DataType(context.attributes["output_type"]) if context.integer("output_type", 0) else default


def _loss(context: ShapeContext) -> list[TensorType]:
    scores, labels = context.type(0), context.type(1)
    dtype = _output_type(context, scores.dtype)
    shape = labels.shape if context.attributes.get("reduction", "mean") == "none" else ()
    return [TensorType(dtype, shape), TensorType(dtype, scores.shape)]


def _loss_gradient(context: ShapeContext) -> list[TensorType]:
    probabilities = context.type(1)
    return [TensorType(_output_type(context, probabilities.dtype), probabilities.shape)]


def _labels_fit(scores: int) -> Check:
    """Return a check of a loss: scores [N, C, D...], behind them labels [N, D...] and perhaps weights [C]."""

    def check(context: ShapeContext) -> None:
        shape = context.type(scores).shape
        if len(shape) < 2:
            raise RuleError(f"{said(context, scores)} has no classes")
        labels = context.type(scores + 1).dtype.name
        if labels not in ("INT32", "INT64"):
            raise RuleError(
                f"its labels, input {scores + 1}, are {labels}, not integers: with probabilities the loss is"
                " -(labels * scores.log_softmax(1)).sum(1).mean() in torch"
            )
        expect(context, scores + 1, (shape[0], *shape[2:]))
        if context.has(scores + 2) and context.type(scores + 2).shape:
            expect(context, scores + 2, (shape[1],))

    return check


def _gradient_fits(context: ShapeContext) -> None:
    if context.attributes.get("reduction", "mean") == "none":
        expect(context, 0, context.type(2).shape)
    else:
        expect_count(context, 0, 1)


def _transposed(scores: int) -> WorkspaceRule:
    """Return a rule: scores of shape [N, C, D...] are transposed to put the classes last."""

    def rule(call: Call) -> int:
        x = call.input(scores)
        return x.size_bytes if len(x.shape) > 2 else 0

    return rule


_cross_entropy = partial(
    OpSpec,
    check=_labels_fit(0),
    work=per_input(14),
    workspace=_transposed(0),
    allocation_order=(BUFFER, 0, 1),  # cross_entropy.cc
    buffers=lambda call: (_transposed(0)(call),),
)

SPECS = [
    _cross_entropy("SoftmaxCrossEntropyLoss"),
    _cross_entropy("SoftmaxCrossEntropyLossInternal", MICROSOFT_DOMAIN, shape=_loss),
    *family(
        "SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternalGrad",
        MICROSOFT_DOMAIN,
        shape=_loss_gradient,
        check=both(_labels_fit(1), _gradient_fits),
        work=per_output(12),
        workspace=_transposed(1),
    ),
    OpSpec(
        "Exponentiate",
        POET_DOMAIN,
        inplace=((0, 0),),
        shape=like(0),
        work=per_output(10),
        workspace=nothing,
        schema=Schema("Exponentiate(x) -> y: ONNX Runtime's Exp, in place.", (("y", "tensor(float)"),)),
    ),
    OpSpec(
        "CrossEntropyGradient",
        POET_DOMAIN,
        inplace=((0, 0),),
        shape=like(0),
        work=per_output(2),
        workspace=nothing,
        schema=Schema(
            "CrossEntropyGradient(probabilities, labels, scale) -> dX: (probabilities - 1 at the label) * scale.",
            (("dX", "tensor(float)"),),
        ),
    ),
    *family("SoftmaxCrossEntropy SparseSoftmaxCrossEntropy", MICROSOFT_DOMAIN, shape=_loss),
    *family("SoftmaxCrossEntropyGrad SparseSoftmaxCrossEntropyGrad", MICROSOFT_DOMAIN, shape=_loss_gradient),
    OpSpec("NegativeLogLikelihoodLoss", work=per_input(14)),
]
"""Losses."""
