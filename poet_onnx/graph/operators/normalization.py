"""Normalizations over batches, rows and groups, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import both, expect, expect_count, said, same_shape
from poet_onnx.graph.operators.rules import (
    FLOAT,
    broadcast,
    input_copy,
    like,
    nothing,
    per_input,
    per_output,
    shape_bytes,
)
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import BUFFER, MICROSOFT_DOMAIN, Attribute, Call, Check, OpSpec, Schema, family

RMS_NORMALIZE = "RmsNormalize"
"""Normalization by the root mean square, in one node."""

_FLOPS, _GRADIENT_FLOPS = per_input(6), per_input(10)
_F32 = "tensor(float)"

_measured = partial(OpSpec, domain=MICROSOFT_DOMAIN, workspace=nothing)


def _batch_norm_internal(context: ShapeContext) -> list[TensorType]:
    mean, variance = context.type(3), context.type(4)
    return [context.type(0), mean, variance, mean, variance]


def _layer_norm(context: ShapeContext) -> list[TensorType]:
    data = context.type(0)
    axis = context.axis(-1, len(data.shape))
    dtype = ir.DataType(context.integer("stash_type", int(FLOAT)))
    statistic = TensorType(dtype, data.shape[:axis] + (1,) * (len(data.shape) - axis))
    return [data, statistic] if context.op_type.startswith("Simplified") else [data, statistic, statistic]


def _rms_norm(context: ShapeContext) -> list[TensorType]:
    data = context.type(0)
    return [data, TensorType(FLOAT, (*data.shape[:-1], 1))]


def _rms_scale(context: ShapeContext) -> list[TensorType]:
    return [TensorType(FLOAT, context.type(0).shape[-1:])]


def _rms_rows(per_column: Sequence[int], per_row: Sequence[int]) -> Check:
    """Return a check of rows along the last axis of floats, of which there is one at least."""

    def check(context: ShapeContext) -> None:
        kind = context.type(0)
        if kind.dtype != FLOAT or not kind.shape[-1:] or not kind.shape[-1]:
            raise RuleError(f"{said(context, 0)} must be rows of floats")
        _rows(0, per_column, per_row)(context)

    return check


def _channels(*indices: int) -> Check:
    """Return a check: the inputs are vectors with one element for each channel of input indices[0]."""

    def check(context: ShapeContext) -> None:
        shape = context.type(indices[0]).shape
        if len(shape) < 2:
            raise RuleError(f"{said(context, indices[0])} has no channels")
        for index in indices[1:]:
            expect(context, index, (shape[1],))

    return check


def _rows(data: int, per_column: Sequence[int], per_row: Sequence[int]) -> Check:
    """Return a check of a normalization over the axes from `axis` on: which inputs it has for each column and row."""

    def check(context: ShapeContext) -> None:
        shape = context.type(data).shape
        axis = context.axis(-1, len(shape))
        for index in per_column:
            if context.has(index):
                expect_count(context, index, math.prod(shape[axis:]))
        for index in per_row:
            expect_count(context, index, math.prod(shape[:axis]))

    return check


def _repeatable(context: ShapeContext) -> None:
    """Check that a layer normalization's scale and bias have the normalized shape, or are repeated to it."""
    shape = context.type(0).shape
    normalized = shape[context.axis(-1, len(shape)) :]
    for index in (1, 2):
        if context.has(index) and context.type(index).elements != math.prod(normalized):
            own = context.type(index).shape
            if len(own) > len(normalized) or broadcast(own, normalized) != normalized:
                raise RuleError(f"its input {index} of shape {list(own)} does not repeat to {list(normalized)}")


def _batch_statistics(call: Call) -> int:
    # The batch's mean and variance, where the operator has no outputs for them.
    return 0 if sum(tensor is not None for tensor in call.outputs) > 3 else 2 * call.input(3).size_bytes


def _local_response(call: Call) -> int:
    x = call.input(0)
    padded = (x.shape[1] + call.integer("size", 1) - 1) * math.prod(x.shape[2:])
    return x.size_bytes + shape_bytes((padded,), x)


def _centering(call: Call) -> int:
    # MeanVarianceNormalization transposes there and back unless it normalizes over the last axes.
    x = call.input(0)
    rank = len(x.shape)
    axes = sorted(axis % rank for axis in call.integers("axes") or (0, 2, 3)) if rank else []
    return 0 if axes == list(range(rank - len(axes), rank)) else 2 * x.size_bytes


_TRAINING = OpSpec(
    "BatchNormalization",
    aliases=((3, 1), (4, 2)),
    writes=(3, 4),
    unread=(3, 4),
    work=_FLOPS,
    workspace=_batch_statistics,
    allocation_order=(0, BUFFER, BUFFER, 1, 2),  # batch_norm.cc
    buffers=lambda call: (_batch_statistics(call) // 2,) * 2,
)


def _in_training(attributes: Mapping[str, Any]) -> OpSpec | None:
    """Return the declaration of a BatchNormalization that normalizes by the batch and keeps statistics."""
    return _TRAINING if attributes.get("training_mode", 0) else None


def _gradient_kernel(op_type: str, of: str) -> OpSpec:
    return OpSpec(
        op_type,
        POET_DOMAIN,
        inplace=((0, 0),),
        shape=like(1, 2, 2),
        work=_GRADIENT_FLOPS,
        workspace=nothing,
        schema=Schema(
            f"{op_type}(dY, X, scale, mean, inverse) -> (dX, dScale, dBias): the gradient of {of}.",
            (("dX", _F32), ("dScale", _F32), ("dBias", _F32)),
        ),
    )


SPECS = [
    OpSpec("BatchNormalization", work=_FLOPS, workspace=nothing, variant=_in_training),
    _measured(
        "BatchNormInternal",
        aliases=((3, 1), (4, 2)),
        writes=(3, 4),
        unread=(3, 4),
        shape=_batch_norm_internal,
        check=_channels(0, 1, 2, 3, 4),
        work=_FLOPS,
        allocation_order=(0, 3, 4, 1, 2),  # batch_norm_internal.cc
    ),
    _measured(
        "BatchNormalizationGrad",
        shape=like(1, 2, 2),
        check=both(same_shape(0, 1), _channels(1, 2, 3, 4)),
        work=_GRADIENT_FLOPS,
    ),
    OpSpec(
        "BatchNormalize",
        POET_DOMAIN,
        writes=(3, 4),
        always_writes=True,
        unread=(3, 4),
        shape=like(0, 3, 4),
        work=_FLOPS,
        workspace=nothing,
        schema=Schema(
            "BatchNormalize(X, scale, bias, running_mean, running_variance, rates) -> (Y, mean, inverse): normalizes "
            "by the batch's statistics, and moves the running ones in place.",
            (("Y", "T"), ("mean", _F32), ("inverse", _F32)),
        ),
    ),
    _gradient_kernel("BatchNormalizeGradient", "BatchNormalize"),
    _gradient_kernel("LayerNormalizeGradient", "layer normalization"),
    _measured("LayerNormalization", shape=_layer_norm, check=_repeatable, work=_FLOPS),
    _measured("SimplifiedLayerNormalization", shape=_layer_norm, check=_rows(0, (1,), ()), work=_FLOPS),
    _measured("SkipLayerNormalization", work=_FLOPS),
    *family("SkipSimplifiedLayerNormalization EmbedLayerNormalization", MICROSOFT_DOMAIN, workspace=nothing),
    _measured(
        "LayerNormalizationGrad",
        shape=like(1, 2, 2),
        check=both(same_shape(0, 1), _rows(1, (2,), (3, 4))),
        work=_GRADIENT_FLOPS,
    ),
    _measured(
        "SimplifiedLayerNormalizationGrad",
        shape=like(1, 2),
        check=both(same_shape(0, 1), _rows(1, (2,), (3,))),
        work=_GRADIENT_FLOPS,
    ),
    _measured(
        "InvertibleLayerNormalizationGrad",
        shape=like(0, 2, 3),
        check=both(same_shape(0, 1), _rows(1, (2, 3), (4,))),
        work=_GRADIENT_FLOPS,
    ),
    OpSpec(
        RMS_NORMALIZE,
        POET_DOMAIN,
        of_graphs=True,
        optional_outputs=1,
        shape=_rms_norm,
        check=_rms_rows((1,), ()),
        work=_FLOPS,
        workspace=nothing,
        schema=Schema(
            "RmsNormalize(X, scale) -> (Y, inverse): divides rows by their root mean square, and keeps its inverse.",
            (("Y", _F32), ("inverse", _F32)),
            (Attribute("epsilon", "FLOAT", "What is added to the mean square."),),
        ),
    ),
    OpSpec(
        "RmsNormalizeGradient",
        POET_DOMAIN,
        of_graphs=True,
        inplace=((0, 0),),
        shape=like(0),
        check=both(same_shape(0, 1), _rms_rows((2,), (3,))),
        work=_GRADIENT_FLOPS,
        workspace=nothing,
        schema=Schema(
            "RmsNormalizeGradient(dY, X, scale, inverse) -> dX: the gradient of RmsNormalize.", (("dX", _F32),)
        ),
    ),
    OpSpec(
        "RmsNormalizeScaleGradient",
        POET_DOMAIN,
        of_graphs=True,
        shape=_rms_scale,
        check=both(same_shape(0, 1), _rms_rows((), (2,))),
        work=per_input(3),
        workspace=nothing,
        schema=Schema(
            "RmsNormalizeScaleGradient(dY, X, inverse) -> dScale: the gradient of RmsNormalize by the scale.",
            (("dScale", _F32),),
        ),
    ),
    OpSpec("InstanceNormalization", work=_FLOPS, workspace=nothing),
    # ONNX has no shape inference for some versions of these two.
    OpSpec("GroupNormalization", shape=like(0), work=_FLOPS),
    OpSpec("MeanVarianceNormalization", shape=like(0), workspace=_centering, heap=input_copy),
    *family("GroupNormGrad InstanceNormalizationGrad", MICROSOFT_DOMAIN, work=_GRADIENT_FLOPS),
    *family("LpNormalization RMSNormalization", workspace=nothing),
    OpSpec("LRN", work=per_output(12), workspace=_local_response),
]
"""Normalizations."""
