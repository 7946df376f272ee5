"""Workspace: the bytes that a kernel of ONNX Runtime allocates beside its outputs and frees before it returns.

The rules were found by counting every allocation of single operators in onnxruntime-training 1.19.2 and by reading the
kernels; a test repeats the count. Only ONNX Runtime's CPU allocator counts: what a kernel takes from malloc or the
stack (packed panels of matrix products, masks of std::vector) is small, fixed and outside of every budget.

An operator without a rule counts as much as its inputs and outputs suggest, and whoever plans with that is told so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise, zip_longest

from poet_onnx.errors import InputError
from poet_onnx.graph import Node, Tensor, TrainingGraph
from poet_onnx.graph.operators import KNOWN_DOMAINS

_SGEMM_FLOPS_PER_THREAD = 64 * 1024  # MLAS_SGEMM_THREAD_COMPLEXITY: multiply-adds that are worth a thread
_SGEMM_MOST_THREADS = 16  # MLAS_MAXIMUM_THREAD_COUNT
_SGEMM_COLUMN_ALIGNMENT = 16  # MLAS_SGEMM_STRIDEN_THREAD_ALIGN
_CONV_BUFFER_BYTES = 128 * 128 * 4  # MLAS_CONV_WORKING_BUFFER_SIZE_PER_THREAD floats

_NONE = frozenset(
    word
    for line in (
        "Abs Accumulate AccumulateRows Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool",
        "AveragePoolGrad BatchNormInternal BatchNormalizationGrad BatchNormalize BatchNormalizeGradient BitShift",
        "BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow BroadcastGradientArgs CDist Cast Ceil Celu Clip",
        "Col2Im Compress Concat ConcatTraining ConstantOfShape Cos Cosh CropAndResize CumProd CumSum DepthToSpace",
        "DepthwiseWeightGradient DequantizeLinear Det Div Dropout DropoutGrad DynamicQuantizeLinear Elu",
        "EmbedLayerNormalization Equal Erf Exp Expand ExpandDims EyeLike FastGeluGrad Flatten Floor FusedGemm",
        "FusedMatMul Gate Gather GatherElements GatherElementsGrad GatherGrad GatherND GatherNDGrad Gelu GeluGrad",
        "Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample HammingWindow HannWindow",
        "HardSigmoid Identity InPlaceAccumulator InPlaceAccumulatorV2 InstanceNormalization Inverse",
        "InvertibleLayerNormalizationGrad IsInf IsNaN LayerNormalization LayerNormalizationGrad LeakyRelu",
        "LeakyReluGrad Less LessOrEqual Log LogSoftmaxGrad LpNormalization LpPool MatMul MatMulInteger",
        "MatMulIntegerToFloat MaxPool MaxPoolGrad MaxUnpool MelWeightMatrix Mod Mul Neg NonMaxSuppression NonZero Not",
        "OneHot Or PRelu Pad Pow QGemm QLinearAdd QLinearSigmoid QuantizeLinear QuickGelu QuickGeluGrad",
        "RMSNormalization RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceAllL2",
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum",
        "ReduceSumSquare ReduceSumTraining Relu ReluGrad Reshape ReverseSequence RoiAlign RotaryEmbedding Round STFT",
        "Scale Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid SigmoidGrad Sign",
        "SimplifiedLayerNormalization SimplifiedLayerNormalizationGrad Sin Sinh Size SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization Slice SliceGrad SoftmaxGrad Softplus Softsign SpaceToDepth Split",
        "SplitTraining Sqrt Squeeze Sub Tan Tanh TanhGrad TensorScatter ThresholdedRelu Tile TopK Transpose",
        "TransposeMatMul Trilu Unique Unsqueeze UpdateAdam UpdateMomentum UpdateSgd Xor ZeroGradient",
    )
    for word in line.split()
)
"""Operators that were measured to allocate nothing but their outputs."""


def workspace_bytes(graph: TrainingGraph, node: Node, *, threads: int = 1) -> int:
    """Return the workspace of a node, in bytes, as ONNX Runtime's CPU allocator counts it.

    Args:
        graph: where the node's tensors are.
        node: of that graph.
        threads: threads inside an operator; a convolution takes a buffer for each.
    """
    inputs = [graph.tensors[name] if name else None for name in node.inputs]
    outputs = [graph.tensors[name] if name else None for name in node.outputs]
    rule = _rule(node) or _ESTIMATES.get(node.op_type, _as_large_as_tensors(1))
    return rule(node, inputs, outputs, threads)


def workspace_parts(graph: TrainingGraph, node: Node) -> tuple[int, ...]:
    """Return the bytes of each buffer of a node's workspace where `ALLOCATION_ORDERS` has them in order, or nothing."""
    if node.domain not in KNOWN_DOMAINS or node.op_type != "ConvGrad":
        return ()
    return _conv_grad_parts([graph.tensors[name] if name else None for name in node.inputs])


def has_workspace_rule(node: Node) -> bool:
    """Return whether `workspace_bytes` counts a node exactly; otherwise it estimates."""
    return _rule(node) is not None


_Tensors = list[Tensor | None]
_Rule = Callable[[Node, _Tensors, _Tensors, int], int]


def _rule(node: Node) -> _Rule | None:
    if node.domain not in KNOWN_DOMAINS or _integer(node, "antialias", 0):
        return None
    return _nothing if node.view or node.op_type in _NONE else _RULES.get(node.op_type)


def _nothing(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    return 0


def _as_large_as_tensors(times: int) -> _Rule:
    """Return an estimate: some times what the operator reads and writes."""

    def estimate(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
        return times * sum(tensor.size_bytes for tensor in (*inputs, *outputs) if tensor)

    return estimate


def _present(tensors: _Tensors, index: int) -> Tensor:
    tensor = tensors[index] if index < len(tensors) else None
    if tensor is None:
        raise InputError(f"A node lacks its input or output {index}, which the operator requires.")
    return tensor


def _shape_bytes(shape: tuple[int, ...], like: Tensor) -> int:
    count = math.prod(like.shape)
    return math.prod(shape) * (like.size_bytes // count if count else 0)


def _conv(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    # MlasConvPrepare: a pointwise product needs nothing; few output pixels: all columns; else one block per thread.
    x, weight, y = _present(inputs, 0), _present(inputs, 1), _present(outputs, 0)
    groups = _integer(node, "group", 1)
    kernel, pixels = weight.shape[2:], math.prod(y.shape[2:])
    filters, depth = weight.shape[0] // groups, math.prod(weight.shape[1:])
    if pixels == 0 or y.shape[0] == 0:
        return 0
    if len(kernel) > 3:
        return 4 * depth * pixels
    if _multiplies_input_directly(node, x, weight):
        return 0
    if filters > pixels:
        return 4 * depth * pixels
    return _CONV_BUFFER_BYTES * _conv_threads(filters * pixels * depth, pixels, threads)


def _multiplies_input_directly(node: Node, x: Tensor, weight: Tensor) -> bool:
    kernel, image = weight.shape[2:], x.shape[2:]
    strides, dilations = _integers(node, "strides"), _integers(node, "dilations")
    if any(stride != 1 for stride in strides) or not _is_unpadded(node, image, kernel):
        return False
    if math.prod(kernel) == 1:
        return True
    if len(kernel) > 2 or any(dilation != 1 for dilation in dilations) or weight.shape[1] != 1:
        return False
    kernel_2d, image_2d = ((1, *kernel), (1, *image)) if len(kernel) == 1 else (kernel, image)
    return kernel_2d[1] == image_2d[1] or (kernel_2d[0] == image_2d[0] and kernel_2d[1] == 1)


def _is_unpadded(node: Node, image: tuple[int, ...], kernel: tuple[int, ...]) -> bool:
    automatic = node.attributes.get("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        # With stride 1 the padding is dilation x (kernel - 1).
        return all(size == 1 for size in kernel)
    return automatic == "VALID" or not any(_integers(node, "pads"))


def _conv_threads(multiply_adds: int, pixels: int, threads: int) -> int:
    most = min(threads, _SGEMM_MOST_THREADS)
    wanted = min(multiply_adds // _SGEMM_FLOPS_PER_THREAD + 1, most)
    if wanted <= 1:
        return 1
    stride = math.ceil(math.ceil(pixels / wanted) / _SGEMM_COLUMN_ALIGNMENT) * _SGEMM_COLUMN_ALIGNMENT
    if stride >= pixels:
        return 1
    return wanted - 1 if stride * (wanted - 1) >= pixels else wanted


def _conv_grad(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    return sum(_conv_grad_parts(inputs))


def _conv_grad_parts(inputs: _Tensors) -> tuple[int, int]:
    # The columns of one image and one group, and a vector of ones for the bias, whether they are needed or not.
    pixels = math.prod(_present(inputs, 0).shape[2:])
    return 4 * math.prod(_present(inputs, 2).shape[1:]) * pixels, 4 * pixels


def _conv_transpose(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    return 4 * math.prod(_present(inputs, 1).shape[1:]) * math.prod(_present(inputs, 0).shape[2:])


def _batch_normalization(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    # In training mode the batch's mean and variance, where the operator has no outputs for them.
    if _integer(node, "training_mode", 0) == 0 or len([tensor for tensor in outputs if tensor]) > 3:
        return 0
    return 2 * _present(inputs, 3).size_bytes


def _one_input_copy(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    return _present(inputs, 0).size_bytes


def _with_bias_copy(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    # The sum of input and bias; FastGelu's bias is optional.
    return _present(inputs, 0).size_bytes if len(inputs) > 1 and inputs[-1] else 0


def _transposing_softmax(copies: int) -> _Rule:
    def rule(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
        x = _present(inputs, 0)
        axis = _integer(node, "axis", -1) % max(1, len(x.shape))
        return 0 if axis == len(x.shape) - 1 else copies * x.size_bytes

    return rule


def _transposing_loss(logits: int) -> _Rule:
    def rule(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
        # Scores of shape [N, C, D...] are transposed to put the classes last.
        x = _present(inputs, logits)
        return x.size_bytes if len(x.shape) > 2 else 0

    return rule


def _variadic(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    # Operands are combined two at a time: the last result and the new one are alive together, the output comes last.
    operands = [tensor for tensor in inputs if tensor]
    y = _present(outputs, 0)
    if len(operands) < 3:
        return 0
    shape, sizes = operands[0].shape, []
    for operand in operands[1:]:
        shape = _broadcast(shape, operand.shape)
        sizes.append(_shape_bytes(shape, y))
    return max(first + second for first, second in pairwise(sizes)) - y.size_bytes


def _where(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    # What is chosen from each branch, broadcast with the condition only.
    condition, y = _present(inputs, 0), _present(outputs, 0)
    chosen = (_broadcast(condition.shape, _present(inputs, branch).shape) for branch in (1, 2))
    return sum(_shape_bytes(shape, y) for shape in chosen)


def _resize(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    # Linear modes keep two indices and two weights per output coordinate, three dimensions at odd ranks.
    x, y = _present(inputs, 0), _present(outputs, 0)
    if node.attributes.get("mode", "nearest") != "linear" or x.shape == y.shape:
        return 0
    return 16 * sum(y.shape[-2:]) if len(y.shape) in (2, 4) else 24 * sum(y.shape[-3:])


def _local_response(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    x = _present(inputs, 0)
    padded = (x.shape[1] + _integer(node, "size", 1) - 1) * math.prod(x.shape[2:])
    return x.size_bytes + _shape_bytes((padded,), x)


def _centering(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    # MeanVarianceNormalization transposes there and back unless it normalizes over the last axes.
    x = _present(inputs, 0)
    rank = len(x.shape)
    axes = sorted(axis % rank for axis in _integers(node, "axes") or (0, 2, 3)) if rank else []
    return 0 if axes == list(range(rank - len(axes), rank)) else 2 * x.size_bytes


def _one_row_of_doubles(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    return 8 * _present(inputs, 0).shape[-1]


def _int32_product(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    return 4 * math.prod(_present(outputs, 0).shape)


def _byte_columns(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    return math.prod(_present(inputs, 1).shape[1:]) * math.prod(_present(outputs, 0).shape[2:])


def _attention(node: Node, inputs: _Tensors, outputs: _Tensors, threads: int) -> int:
    # Copies of what it reads and writes, and each head's scores in float32: all queries times all keys, also past ones.
    queries, keys = inputs[0], inputs[1] if node.domain == "" or node.op_type != "Attention" else inputs[0]
    tensors = _as_large_as_tensors(2)(node, inputs, outputs, threads)
    if queries is None or len(queries.shape) < 3:
        return tensors
    heads = queries.shape[1] if len(queries.shape) == 4 else _integer(node, "num_heads", 0)
    heads = heads or _integer(node, "q_num_heads", 1)
    lengths = [tensor.shape[-2] for tensor in (keys, *inputs[3:], *outputs[1:]) if tensor and len(tensor.shape) > 2]
    return tensors + 4 * queries.shape[0] * heads * queries.shape[-2] * max(lengths, default=queries.shape[-2])


def _broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    pairs = zip_longest(reversed(first), reversed(second), fillvalue=1)
    return tuple(reversed([b if a == 1 else a for a, b in pairs]))


def _integer(node: Node, name: str, default: int) -> int:
    value = node.attributes.get(name, default)
    return value if isinstance(value, int) else default


def _integers(node: Node, name: str) -> tuple[int, ...]:
    value = node.attributes.get(name, ())
    return tuple(int(item) for item in value) if isinstance(value, tuple) else ()


_RULES: dict[str, _Rule] = {
    "Conv": _conv,
    "ConvGrad": _conv_grad,
    "ConvTranspose": _conv_transpose,
    "BatchNormalization": _batch_normalization,
    "BiasGelu": _one_input_copy,
    "FastGelu": _with_bias_copy,
    "BiasGeluGrad_dX": _one_input_copy,
    "BiasFastGeluGrad_dX": _one_input_copy,
    "HardSwish": _one_input_copy,
    "Mish": _one_input_copy,
    "Softmax": _transposing_softmax(2),
    "LogSoftmax": _transposing_softmax(2),
    "SoftmaxGrad_13": _transposing_softmax(3),
    "LogSoftmaxGrad_13": _transposing_softmax(3),
    "SoftmaxCrossEntropyLoss": _transposing_loss(0),
    "SoftmaxCrossEntropyLossInternal": _transposing_loss(0),
    "SoftmaxCrossEntropyLossGrad": _transposing_loss(1),
    "SoftmaxCrossEntropyLossInternalGrad": _transposing_loss(1),
    "Sum": _variadic,
    "Max": _variadic,
    "Min": _variadic,
    "Mean": _variadic,
    "Where": _where,
    "Resize": _resize,
    "Upsample": _resize,
    "Hardmax": _transposing_softmax(2),
    "MeanVarianceNormalization": _centering,
    "Multinomial": _one_row_of_doubles,
    "QLinearMatMul": _int32_product,
    "ConvInteger": _byte_columns,
    "FusedConv": _conv,
    "LRN": _local_response,
}

_ESTIMATES: dict[str, _Rule] = {
    "Resize": _as_large_as_tensors(2),
    "Einsum": _as_large_as_tensors(2),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DFT", "DeformConv", "QLinearConv"), _as_large_as_tensors(4)),
    **dict.fromkeys(("ConvTransposeWithDynamicPads", "MatMulNBits"), _as_large_as_tensors(4)),
    **dict.fromkeys(("Attention", "MultiHeadAttention", "GroupQueryAttention"), _attention),
}
"""Operators that were seen to take more than the bytes of their inputs and outputs, and have no exact rule yet."""
