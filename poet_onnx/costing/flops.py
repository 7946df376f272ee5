"""How much work an operator does: floating-point operations and bytes read and written, from shapes and attributes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from poet_onnx.graph import Node, Tensor, TrainingGraph
from poet_onnx.graph.operators import KNOWN_DOMAINS, POET


@dataclass(frozen=True, slots=True)
class Work:
    """The work of running a node once.

    Attributes:
        matmul_flops: multiplications and additions of matrix products and convolutions.
        elementwise_flops: all other floating-point operations; an exponential counts as 10, a division as 4.
        moved_bytes: read from inputs and written to outputs, each once, and the columns of a convolution gradient.
    """

    matmul_flops: int
    elementwise_flops: int
    moved_bytes: int


def _by_operator(*groups: tuple[int, str]) -> dict[str, int]:
    return {operator: flops for flops, operators in groups for operator in operators.split()}


_PER_OUTPUT_ELEMENT = _by_operator(
    (
        1,
        "Add Sub Mul Neg Abs Min Max Clip Sum Where Cast Not And Or Equal Greater GreaterOrEqual Less LessOrEqual Sign",
    ),
    (1, "Relu ReluGrad Scale GatherGrad GatherElementsGrad ScatterElements ScatterND MaxPoolGrad SliceGrad"),
    (2, "Floor Ceil Round LeakyRelu LeakyReluGrad PRelu ThresholdedRelu HardSigmoid HardSwish Mean"),
    (2, "DropoutGrad BitmaskDropoutGrad"),
    (4, "Div Reciprocal Sqrt Mod TanhGrad SigmoidGrad SoftmaxGrad SoftmaxGrad_13 LogSoftmaxGrad LogSoftmaxGrad_13"),
    (5, "Dropout BiasDropout BitmaskDropout RandomUniformLike RandomNormalLike"),
    (8, "Resize"),
    (10, "Exp Log Tanh Sigmoid Erf Sin Cos"),
    (12, "Softmax LogSoftmax LRN SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternalGrad"),
    (15, "Gelu FastGelu BiasGelu QuickGelu Elu Selu Celu Softplus Softsign Mish"),
    (20, "GeluGrad FastGeluGrad BiasGeluGrad_dX BiasFastGeluGrad_dX QuickGeluGrad Pow"),
)
_PER_INPUT_ELEMENT = _by_operator(
    (1, "ReduceSum ReduceMean ReduceMax ReduceMin ReduceSumTraining ReduceAllL2"),
    (1, "InPlaceAccumulator InPlaceAccumulatorV2 GlobalAveragePool GlobalMaxPool CumSum ArgMax ArgMin TopK"),
    (2, "ReduceL1 ReduceL2 ReduceSumSquare ReduceProd"),
    (6, "BatchNormalization BatchNormInternal BatchNormalize InstanceNormalization GroupNormalization"),
    (6, "LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization"),
    (10, "BatchNormalizationGrad BatchNormalizeGradient LayerNormalizationGrad SimplifiedLayerNormalizationGrad"),
    (10, "InvertibleLayerNormalizationGrad GroupNormGrad InstanceNormalizationGrad"),
    (12, "ReduceLogSumExp ReduceLogSum"),
    (14, "SoftmaxCrossEntropyLoss SoftmaxCrossEntropyLossInternal NegativeLogLikelihoodLoss"),
)
_MOVES_WHAT_IT_WRITES = _by_operator(
    (0, "Gather GatherElements GatherND Slice Split SplitTraining Expand Tile Concat ConcatTraining Transpose Pad"),
    (0, "DepthToSpace SpaceToDepth Identity Reshape Flatten Squeeze Unsqueeze"),
)
_ACCUMULATED_INPUT = {"Accumulate": 1, "AccumulateRows": 0, "UpdateSgd": 0, "UpdateMomentum": 0, "UpdateAdam": 0}
"""The input that is as large as what the operator reads and writes in place, of one tensor."""
_UPDATE_FLOPS = {"UpdateSgd": 5, "UpdateMomentum": 8, "UpdateAdam": 18}
"""Operations for each element of the gradient."""
_WINDOWED = frozenset(("MaxPool", "AveragePool", "LpPool", "AveragePoolGrad"))
_WRITES_ONLY = frozenset(("ConstantOfShape", "ZeroGradient", "Shape", "Size", "Range", "EyeLike", "RandomUniform"))


def count_work(graph: TrainingGraph, node: Node) -> Work:
    """Count the work of a node.

    An operator without a rule counts as one operation per output element: good enough for time, never used for memory.

    Args:
        graph: where the node's tensors are.
        node: of that graph.
    """
    if node.view:
        return Work(0, 0, 0)
    inputs = [graph.tensors[name] if name else None for name in node.inputs]
    outputs = [graph.tensors[name] if name else None for name in node.outputs]
    if node.domain not in KNOWN_DOMAINS:
        moved_bytes = sum(tensor.size_bytes for tensor in (*inputs, *outputs) if tensor)
        return Work(0, max((elements(tensor) for tensor in outputs), default=0), moved_bytes)
    rule = _MATMUL_RULES.get(node.op_type)
    matmul_flops = rule(node, inputs, outputs) if rule else 0
    return Work(matmul_flops, _elementwise_flops(node, inputs, outputs), _moved_bytes(node, inputs, outputs))


_Tensors = list[Tensor | None]


def elements(tensor: Tensor | None) -> int:
    """Return the number of a tensor's elements, 0 for an absent one."""
    return 0 if tensor is None else math.prod(tensor.shape)


def _elementwise_flops(node: Node, inputs: _Tensors, outputs: _Tensors) -> int:
    largest_output = max((elements(tensor) for tensor in outputs), default=0)
    if node.op_type in _ACCUMULATED_INPUT:
        return _UPDATE_FLOPS.get(node.op_type, 1) * elements(inputs[_ACCUMULATED_INPUT[node.op_type]])
    if node.op_type in _MATMUL_RULES:
        with_bias = node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(inputs) > 2 and inputs[2] is not None
        return largest_output if with_bias else 0
    if node.op_type in _WINDOWED:
        return (elements(inputs[0]) if node.op_type.endswith("Grad") else largest_output) * _kernel_size(node)
    if node.op_type in _MOVES_WHAT_IT_WRITES or node.op_type in _WRITES_ONLY:
        return 0
    if node.op_type in _PER_INPUT_ELEMENT:
        return _PER_INPUT_ELEMENT[node.op_type] * max((elements(tensor) for tensor in inputs), default=0)
    return _PER_OUTPUT_ELEMENT.get(node.op_type, 1) * largest_output


def _moved_bytes(node: Node, inputs: _Tensors, outputs: _Tensors) -> int:
    read = sum(tensor.size_bytes for tensor in inputs if tensor)
    written = sum(tensor.size_bytes for tensor in outputs if tensor)
    if node.op_type in _WRITES_ONLY:
        return written
    if node.op_type in _MOVES_WHAT_IT_WRITES:
        return 2 * written
    if node.op_type in _ACCUMULATED_INPUT:
        return _bytes_moved_in_place(node, inputs)
    if node.op_type in ("InPlaceAccumulator", "InPlaceAccumulatorV2"):
        return read + (inputs[0].size_bytes if inputs and inputs[0] else 0)
    if node.op_type == "ConvGrad":
        return read + written + _column_bytes(node, inputs, outputs)
    return read + written


def _bytes_moved_in_place(node: Node, inputs: _Tensors) -> int:
    changed = inputs[_ACCUMULATED_INPUT[node.op_type]]
    size_bytes = changed.size_bytes if changed else 0
    if node.op_type in _UPDATE_FLOPS:  # as much of the parameter, and of each of its moments, as there is of gradient
        return size_bytes * (1 + 2 * len(POET[node.op_type].writes))
    return sum(tensor.size_bytes for tensor in inputs[1:] if tensor) + 2 * size_bytes


def _column_bytes(node: Node, inputs: _Tensors, outputs: _Tensors) -> int:
    # Each of dX and dW writes and reads every image's columns, Cin x kernel x output pixels.
    d_y, weight = inputs[0], inputs[2]
    if d_y is None or weight is None:
        return 0
    columns = _attribute(node, "group", 1) * math.prod(weight.shape[1:]) * math.prod(d_y.shape[2:]) * d_y.shape[0]
    return 2 * 4 * columns * sum(1 for tensor in outputs[:2] if tensor)


def _attribute(node: Node, name: str, default: int) -> int:
    value = node.attributes.get(name, default)
    return value if isinstance(value, int) else default


def _kernel_size(node: Node) -> int:
    kernel = node.attributes.get("kernel_shape")
    return math.prod(int(size) for size in kernel) if isinstance(kernel, tuple) else 1


def _conv(node: Node, inputs: _Tensors, outputs: _Tensors) -> int:
    # Every output element is a dot product over Cin/group x kernel: the weight is [Cout, Cin/group, kernel...].
    return 2 * elements(outputs[0]) * (math.prod(inputs[1].shape[1:]) if inputs[1] else 0)


def _conv_grad(node: Node, inputs: _Tensors, outputs: _Tensors) -> int:
    # dX and dW each repeat the forward products; inputs are dY, X, W; outputs dX, dW, dB.
    forward = 2 * elements(inputs[0]) * (math.prod(inputs[2].shape[1:]) if inputs[2] else 0)
    bias = elements(inputs[0]) if len(outputs) > 2 and outputs[2] else 0
    return forward * sum(1 for tensor in outputs[:2] if tensor) + bias


def _depthwise_gradient(node: Node, inputs: _Tensors, outputs: _Tensors) -> int:
    # Every element of dY meets one pixel under each tap of its filter.
    return 2 * elements(inputs[0]) * (math.prod(outputs[0].shape[1:]) if outputs[0] else 0)


def _conv_transpose(node: Node, inputs: _Tensors, outputs: _Tensors) -> int:
    # Every input element is spread over Cout/group x kernel outputs: the weight is [Cin, Cout/group, kernel...].
    return 2 * elements(inputs[0]) * (math.prod(inputs[1].shape[1:]) if inputs[1] else 0)


def _conv_transpose_grad(node: Node, inputs: _Tensors, outputs: _Tensors) -> int:
    forward = 2 * elements(inputs[1]) * (math.prod(inputs[2].shape[1:]) if inputs[2] else 0)
    return forward * sum(1 for tensor in outputs[:2] if tensor)


def _matmul(node: Node, inputs: _Tensors, outputs: _Tensors) -> int:
    shape = inputs[0].shape if inputs[0] else ()
    if not shape:
        return 2 * elements(outputs[0])
    transposed = _attribute(node, "transA", 0) and len(shape) > 1
    # FusedMatMul with transBatchA stores A as [M, batch..., K], or [K, batch..., M] when transposed as well.
    inner = (shape[0] if _attribute(node, "transBatchA", 0) else shape[-2]) if transposed else shape[-1]
    return 2 * elements(outputs[0]) * inner


_MATMUL_RULES: dict[str, Callable[[Node, _Tensors, _Tensors], int]] = {
    "Conv": _conv,
    "FusedConv": _conv,
    "ConvGrad": _conv_grad,
    "ConvTranspose": _conv_transpose,
    "DepthwiseWeightGradient": _depthwise_gradient,
    "ConvTransposeGrad": _conv_transpose_grad,
    "Gemm": _matmul,
    "FusedGemm": _matmul,
    "MatMul": _matmul,
    "FusedMatMul": _matmul,
    "TransposeMatMul": _matmul,
}
