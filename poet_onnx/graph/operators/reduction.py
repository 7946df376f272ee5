"""Reductions over axes, and the axes over which a broadcast's gradient is reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from poet_onnx.graph.operators.movement import axes_of
from poet_onnx.graph.operators.rules import INT64, nothing, per_input, scalar
from poet_onnx.graph.operators.shape_context import Array, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, Evaluator, OpSpec, family


def _sum_shape(context: ShapeContext) -> list[TensorType]:
    data = context.type(0)
    rank = len(data.shape)
    axes = {axis % rank for axis in context.integers(1)} if rank else set()
    if not axes and not context.integer("noop_with_empty_axes", 0):
        axes = set(range(rank))
    kept = bool(context.integer("keepdims", 1))
    shape = tuple(1 if i in axes else size for i, size in enumerate(data.shape) if kept or i not in axes)
    return [TensorType(data.dtype, shape)]


def broadcast_gradient_axes(first: Sequence[int], second: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return, for both operands of a broadcast, the axes to sum a gradient over, the last axis first as in the kernel.

    Source: orttraining/orttraining/training_ops/cpu/nn/broadcast_grad_args.cc.
    """
    rank = max(len(first), len(second))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (first, second)]
    axes: tuple[list[int], list[int]] = ([], [])
    for axis in reversed(range(rank)):
        sizes = padded[0][axis], padded[1][axis]
        for side, shape in enumerate((first, second)):
            grown = sizes[side] == 1 and sizes[1 - side] != 1
            if grown or axis < rank - len(shape):
                axes[side].append(axis)
    return tuple(axes[0]), tuple(axes[1])


def _broadcast_shapes(context: ShapeContext) -> list[TensorType]:
    axes = broadcast_gradient_axes(context.integers(0), context.integers(1))
    return [TensorType(INT64, (len(side),)) for side in axes]


def _broadcast_axes(context: ShapeContext, inputs: list[Array]) -> list[Array]:
    axes = broadcast_gradient_axes([int(n) for n in inputs[0]], [int(n) for n in inputs[1]])
    return [np.array(side, np.int64) for side in axes]


def _reduce(function: Callable[..., Any]) -> Evaluator:
    def evaluate(context: ShapeContext, inputs: list[Array]) -> list[Any]:
        axes = axes_of(context, inputs)
        if not axes and context.integer("noop_with_empty_axes", 0):
            return [inputs[0]]
        keep = bool(context.integer("keepdims", 1))
        return [function(inputs[0], axis=tuple(axes) if axes else None, keepdims=keep, dtype=inputs[0].dtype)]

    return evaluate


SPECS = [
    OpSpec("ReduceSum", value=_reduce(np.sum), work=per_input(1), workspace=nothing),
    OpSpec("ReduceProd", value=_reduce(np.prod), work=per_input(2), workspace=nothing),
    *family("ReduceMean ReduceMax ReduceMin CumSum", work=per_input(1), workspace=nothing),
    *family("ReduceL1 ReduceL2 ReduceSumSquare", work=per_input(2), workspace=nothing),
    *family("ReduceLogSumExp ReduceLogSum", work=per_input(12), workspace=nothing),
    OpSpec("CumProd", workspace=nothing),
    OpSpec("ReduceSumTraining", MICROSOFT_DOMAIN, shape=_sum_shape, work=per_input(1), workspace=nothing),
    OpSpec("ReduceAllL2", MICROSOFT_DOMAIN, shape=scalar, work=per_input(1), workspace=nothing),
    OpSpec(
        "BroadcastGradientArgs", MICROSOFT_DOMAIN, shape=_broadcast_shapes, value=_broadcast_axes, workspace=nothing
    ),
]
"""Reductions."""
