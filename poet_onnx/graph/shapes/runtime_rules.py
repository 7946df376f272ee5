"""Shape rules of the operators that ONNX Runtime adds: gradients, fused operators, losses, accumulators, optimizers.

ONNX Runtime's gradient builder leaves about a third of a training graph's tensors without a shape. The rules follow the
operators' schemas (orttraining/orttraining/core/graph/training_op_defs.cc and onnxruntime/core/graph/contrib_ops in
github.com/microsoft/onnxruntime, v1.19.2) and are checked against profiles of real sessions (tests/test_shapes.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from poet_onnx.graph.shapes.types import Rule, RuleError, Site, TensorType

INT64, BOOL, FLOAT = ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT


def like(*indices: int) -> Rule:
    """Return a rule: output i has the type and shape of input indices[i]; none where that input is absent."""

    def rule(site: Site) -> Sequence[TensorType | None]:
        return [site.types[index] if site.has(index) else None for index in indices]

    return rule


def _shape_from(shape_index: int, dtype_index: int) -> Rule:
    """Return a rule: the output's dimensions are the value of an input, as for gradients of gathers and slices."""

    def rule(site: Site) -> list[TensorType]:
        return [TensorType(site.type(dtype_index).dtype, site.integers(shape_index))]

    return rule


def _output_type(site: Site, default: ir.DataType) -> ir.DataType:
    return ir.DataType(site.attributes["output_type"]) if site.integer("output_type", 0) else default


def _conv_grad(site: Site) -> list[TensorType]:
    data, weight = site.type(1), site.type(2)
    return [data, weight, TensorType(weight.dtype, weight.shape[:1])]


def _conv_transpose_grad(site: Site) -> list[TensorType]:
    data, weight = site.type(1), site.type(2)
    return [data, weight, TensorType(weight.dtype, (weight.shape[1] * site.integer("group", 1),))]


def _depthwise_gradient(site: Site) -> list[TensorType]:
    d_y = site.type(0)
    return [TensorType(d_y.dtype, (d_y.shape[1], 1, *(int(size) for size in site.attributes["kernel"])))]


def _pool_grad(site: Site) -> list[TensorType]:
    """The kernels take the output's shape from the model; MaxPoolGrad also knows the MaxPool that made its indices."""
    if site.declared[0] is not None:
        return [TensorType(site.type(0).dtype, site.declared[0].shape)]
    sources = site.source_types(1) if site.has(1) else ()
    if not sources or sources[0] is None:
        raise RuleError("only the model's value_info can tell, and it does not")
    return [TensorType(site.type(0).dtype, sources[0].shape)]


def _batch_norm_internal(site: Site) -> list[TensorType]:
    mean, variance = site.type(3), site.type(4)
    return [site.type(0), mean, variance, mean, variance]


def _layer_norm(site: Site) -> list[TensorType]:
    data = site.type(0)
    axis = site.axis(-1, len(data.shape))
    dtype = ir.DataType(site.integer("stash_type", int(FLOAT)))
    statistic = TensorType(dtype, data.shape[:axis] + (1,) * (len(data.shape) - axis))
    return [data, statistic] if site.op_type.startswith("Simplified") else [data, statistic, statistic]


def _loss(site: Site) -> list[TensorType]:
    scores, labels = site.type(0), site.type(1)
    dtype = _output_type(site, scores.dtype)
    shape = labels.shape if site.attributes.get("reduction", "mean") == "none" else ()
    return [TensorType(dtype, shape), TensorType(dtype, scores.shape)]


def _loss_grad(site: Site) -> list[TensorType]:
    probabilities = site.type(1)
    return [TensorType(_output_type(site, probabilities.dtype), probabilities.shape)]


def _accumulator(site: Site) -> list[TensorType]:
    return [TensorType(BOOL, (1,)), site.type(0)]


def _updated(site: Site) -> list[TensorType]:
    return [TensorType(BOOL, (1,))]


def _masked(site: Site) -> list[TensorType]:
    data = site.type(0)
    return [data, TensorType(BOOL, data.shape)]


def broadcast(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to."""
    rank = max(len(first), len(second))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (first, second)]
    result = []
    for a, b in zip(*padded, strict=True):
        if a != b and 1 not in (a, b):
            raise RuleError(f"its inputs of shapes {tuple(first)} and {tuple(second)} do not broadcast")
        result.append(b if a == 1 else a)
    return tuple(result)


def _turned(shape: tuple[int, ...], swap_batch: bool, swap: bool) -> tuple[int, ...]:
    """Return an operand's shape after its transpositions; transBatch moves the first dimension before the last."""
    if len(shape) < 2:
        return shape
    if swap_batch:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


def _fused_matmul(site: Site) -> list[TensorType]:
    shapes = []
    for index, side in enumerate("AB"):
        turned = _turned(
            site.type(index).shape, bool(site.integer(f"transBatch{side}", 0)), bool(site.integer(f"trans{side}", 0))
        )
        shapes.append(turned)
    left = (1, *shapes[0]) if len(shapes[0]) == 1 else shapes[0]
    right = (*shapes[1], 1) if len(shapes[1]) == 1 else shapes[1]
    if not left or not right or left[-1] != right[-2]:
        raise RuleError(f"its inputs of shapes {shapes[0]} and {shapes[1]} do not multiply")
    rows = () if len(shapes[0]) == 1 else (left[-2],)
    columns = () if len(shapes[1]) == 1 else (right[-1],)
    return [TensorType(site.type(0).dtype, broadcast(left[:-2], right[:-2]) + rows + columns)]


def _concat(site: Site) -> list[TensorType]:
    first = site.type(0)
    axis = site.axis(0, len(first.shape))
    length = sum(part.shape[axis] for part in site.types if part is not None)
    whole = TensorType(first.dtype, (*first.shape[:axis], length, *first.shape[axis + 1 :]))
    return [whole, TensorType(INT64, (len(site.types),))]


def _split(site: Site) -> list[TensorType]:
    data = site.type(0)
    axis, count = site.axis(0, len(data.shape)), len(site.declared)
    lengths = site.integers(1) if site.has(1) else tuple([data.shape[axis] // count] * count)
    if len(lengths) != count or sum(lengths) != data.shape[axis]:
        raise RuleError(f"it cannot split {data.shape[axis]} into {lengths}")
    return [TensorType(data.dtype, (*data.shape[:axis], length, *data.shape[axis + 1 :])) for length in lengths]


def _reduce_sum(site: Site) -> list[TensorType]:
    data = site.type(0)
    rank = len(data.shape)
    axes = {axis % rank for axis in site.integers(1)} if rank else set()
    if not axes and not site.integer("noop_with_empty_axes", 0):
        axes = set(range(rank))
    kept = bool(site.integer("keepdims", 1))
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


def _broadcast_gradient_args(site: Site) -> list[TensorType]:
    axes = broadcast_gradient_axes(site.integers(0), site.integers(1))
    return [TensorType(INT64, (len(side),)) for side in axes]


def _comparison(site: Site) -> list[TensorType]:
    return [TensorType(BOOL, broadcast(site.type(0).shape, site.type(1).shape))]


def _scalar(dtype: ir.DataType) -> Rule:
    return lambda site: [TensorType(dtype, ())]


def _gather(site: Site) -> list[TensorType]:
    data, indices = site.type(0), site.type(1)
    axis = site.axis(0, len(data.shape))
    return [TensorType(data.dtype, data.shape[:axis] + indices.shape + data.shape[axis + 1 :])]


def _pad_and_unflatten(site: Site) -> list[TensorType]:
    data = site.type(0)
    return [TensorType(data.dtype, (*site.integers(2), *data.shape[1:]))]


def _recurrent(site: Site) -> list[TensorType]:
    """GRUTraining and LSTMTraining: every state, the last states, and the gates of every state."""
    data, recurrence = site.type(0), site.type(2)
    length, batch = data.shape[:2]
    directions, hidden = recurrence.shape[0], recurrence.shape[2]

    def state(*shape: int) -> TensorType:
        return TensorType(data.dtype, shape)

    every, last = state(length, directions, batch, hidden), state(directions, batch, hidden)
    if site.op_type == "GRUTraining":
        return [every, last, state(length, directions, batch, 3 * hidden)]
    return [every, last, last, every, state(length, directions, batch, 4 * hidden)]


MICROSOFT: dict[str, Rule] = {
    # activations: (dY, X or Y, bias)
    **dict.fromkeys(("ReluGrad", "SigmoidGrad", "TanhGrad", "LeakyReluGrad", "GeluGrad", "FastGeluGrad"), like(0)),
    **dict.fromkeys(("QuickGeluGrad", "BiasGeluGrad_dX", "BiasFastGeluGrad_dX"), like(0)),
    **dict.fromkeys(("SoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad", "LogSoftmaxGrad_13"), like(0)),
    **dict.fromkeys(("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "BiasSoftmax", "Trilu", "Inverse"), like(0)),
    "DivGrad": like(1, 2),
    # convolution, pooling, normalisation
    "ConvGrad": _conv_grad,
    "ConvTransposeGrad": _conv_transpose_grad,
    "MaxPoolGrad": _pool_grad,
    "AveragePoolGrad": _pool_grad,
    "BatchNormInternal": _batch_norm_internal,
    "BatchNormalizationGrad": like(1, 2, 2),
    "LayerNormalization": _layer_norm,
    "SimplifiedLayerNormalization": _layer_norm,
    "LayerNormalizationGrad": like(1, 2, 2),
    "SimplifiedLayerNormalizationGrad": like(1, 2),
    "InvertibleLayerNormalizationGrad": like(0, 2, 3),
    # dropout and quantisation in training
    **dict.fromkeys(("DropoutGrad", "FakeQuantGrad"), like(0)),
    "FakeQuant": _masked,
    # data movement
    "GatherGrad": _shape_from(0, 2),
    "GatherNDGrad": _shape_from(0, 2),
    "GatherElementsGrad": _shape_from(1, 0),
    "SliceGrad": _shape_from(1, 0),
    "ConcatTraining": _concat,
    "SplitTraining": _split,
    "ShrunkenGather": _gather,
    "PadAndUnflatten": _pad_and_unflatten,
    # arithmetic
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _fused_matmul),
    "Scale": like(0),
    "ReduceSumTraining": _reduce_sum,
    "BroadcastGradientArgs": _broadcast_gradient_args,
    "ReduceAllL2": _scalar(FLOAT),
    # losses
    **dict.fromkeys(("SoftmaxCrossEntropy", "SparseSoftmaxCrossEntropy", "SoftmaxCrossEntropyLossInternal"), _loss),
    **dict.fromkeys(("SoftmaxCrossEntropyGrad", "SparseSoftmaxCrossEntropyGrad"), _loss_grad),
    **dict.fromkeys(("SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLossInternalGrad"), _loss_grad),
    # recurrent nets
    **dict.fromkeys(("GRUTraining", "LSTMTraining"), _recurrent),
    # accumulation and optimizers
    "InPlaceAccumulator": like(0),
    "InPlaceAccumulatorV2": _accumulator,
    "ZeroGradient": like(0),
    "SGDOptimizer": like(1, 2, 2),
    "AdamOptimizer": like(1, 4, 5, 2, 3, 6),
}
"""Rules by operator, whether ONNX Runtime registers it in its own domain or (as some versions do) in ONNX's."""

POET: dict[str, Rule] = {
    **dict.fromkeys(("Accumulate", "AccumulateRows", "UpdateSgd", "UpdateMomentum", "UpdateAdam"), _updated),
    "BatchNormalize": like(0, 3, 4),
    "BatchNormalizeGradient": like(1, 2, 2),
    "DepthwiseWeightGradient": _depthwise_gradient,
}
"""Operators of ours that may stand in a graph before it is planned."""

ONNX: dict[str, Rule] = {
    **dict.fromkeys(("GreaterOrEqual", "LessOrEqual"), _comparison),
    **dict.fromkeys(("MeanVarianceNormalization", "GroupNormalization"), like(0)),
}
"""Operators of ONNX itself for which some of its versions have no shape inference."""
