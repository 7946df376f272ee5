"""Losses of scores and labels, and their gradients."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from poet_onnx.graph.operators.fitting import both, expect, expect_count, said
from poet_onnx.graph.operators.rules import like, nothing, per_input, per_output
from poet_onnx.graph.operators.site import RuleError, Site, TensorType
from poet_onnx.graph.operators.spec import (
    BUFFER,
    MICROSOFT_DOMAIN,
    POET_DOMAIN,
    Call,
    Check,
    OpSpec,
    Schema,
    WorkspaceRule,
    family,
)


def _output_type(site: Site, default: ir.DataType) -> ir.DataType:
    return ir.DataType(site.attributes["output_type"]) if site.integer("output_type", 0) else default


def _loss(site: Site) -> list[TensorType]:
    scores, labels = site.type(0), site.type(1)
    dtype = _output_type(site, scores.dtype)
    shape = labels.shape if site.attributes.get("reduction", "mean") == "none" else ()
    return [TensorType(dtype, shape), TensorType(dtype, scores.shape)]


def _loss_gradient(site: Site) -> list[TensorType]:
    probabilities = site.type(1)
    return [TensorType(_output_type(site, probabilities.dtype), probabilities.shape)]


def _labels_fit(scores: int) -> Check:
    """Return a check of a loss: scores [N, C, D...], behind them labels [N, D...] and perhaps weights [C]."""

    def check(site: Site) -> None:
        shape = site.type(scores).shape
        if len(shape) < 2:
            raise RuleError(f"{said(site, scores)} has no classes")
        if site.type(scores + 1).dtype.name not in ("INT32", "INT64"):
            raise RuleError(f"its labels, input {scores + 1}, are {site.type(scores + 1).dtype.name}, not integers")
        expect(site, scores + 1, (shape[0], *shape[2:]))
        if site.has(scores + 2) and site.type(scores + 2).shape:
            expect(site, scores + 2, (shape[1],))

    return check


def _gradient_fits(site: Site) -> None:
    if site.attributes.get("reduction", "mean") == "none":
        expect(site, 0, site.type(2).shape)
    else:
        expect_count(site, 0, 1)


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
