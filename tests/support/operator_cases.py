"""Single-node models of the operators that training graphs are made of, for checks against ONNX Runtime itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

MICROSOFT = "com.microsoft"
FLOAT, INT64, BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL


@dataclass(frozen=True)
class Operand:
    """An input: fed at run time, or a constant where a value is given."""

    dtype: ir.DataType
    shape: tuple[int, ...]
    value: Any = None

    def array(self, generator: np.random.Generator) -> npt.NDArray[Any]:
        """Return the value, or positive random numbers."""
        if self.value is not None:
            return np.asarray(self.value, self.dtype.numpy()).reshape(self.shape)
        if self.dtype.is_floating_point():
            return (np.abs(generator.standard_normal(self.shape)) + 0.1).astype(self.dtype.numpy())
        return generator.integers(0, 2, self.shape).astype(self.dtype.numpy())


@dataclass(frozen=True)
class Case:
    """A node: operator, inputs, attributes, number of outputs; `declared` is a shape that only the file tells."""

    name: str
    op_type: str
    domain: str
    operands: tuple[Operand | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 15
    declared: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return self.name


def floats(*shape: int) -> Operand:
    """Return a fed input of floats."""
    return Operand(FLOAT, shape)


def constant(value: Any, dtype: ir.DataType = INT64) -> Operand:
    """Return a constant input."""
    return Operand(dtype, np.shape(value), value)


X = floats(4, 8, 16, 32)
MASK = Operand(BOOL, (4, 8, 16, 32))
LAST, CHANNEL = floats(32), floats(8)
STATISTIC = floats(4, 8, 16, 1)
MATRIX = floats(128, 128)
MATRICES = floats(2, 3, 16, 16)
MANY = floats(2048)


def case(op_type: str, *operands: Operand | None, domain: str = "", label: str = "", **options: Any) -> Case:
    """Return a case; options that Case does not know are attributes."""
    known = {name: options.pop(name) for name in ("outputs", "opset", "declared") if name in options}
    return Case(f"{op_type}{label}", op_type, domain, operands, options, **known)


def microsoft(op_type: str, *operands: Operand | None, **options: Any) -> Case:
    """Return a case of ONNX Runtime's own domain."""
    return case(op_type, *operands, domain=MICROSOFT, **options)


KERNEL = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}
SAME = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1)}
GRU = (floats(5, 2, 8), floats(1, 12, 8), floats(1, 12, 4), floats(1, 24), None, floats(1, 2, 4))
LSTM = (
    *(floats(5, 2, 8), floats(1, 16, 8), floats(1, 16, 4), floats(1, 32), None),
    *(floats(1, 2, 4), floats(1, 2, 4), floats(1, 12)),
)

ACTIVATIONS = (
    "Relu LeakyRelu Sigmoid Tanh Elu Selu Celu Softplus Softsign HardSigmoid ThresholdedRelu Shrink Softmax LogSoftmax"
)
UNARY = "Identity Abs Neg Floor Ceil Round Reciprocal Sqrt Exp Log Erf Sign Sin Cos Tan Hardmax LpNormalization"
BINARY = "Add Sub Mul Div Pow Max Min Sum Mean PRelu"
COMPARISONS = "Greater Less GreaterOrEqual LessOrEqual Equal"

ONNX_CASES = [
    *(case(op_type, X) for op_type in f"{ACTIVATIONS} {UNARY}".split()),
    *(case(op_type, X, X) for op_type in f"{BINARY} {COMPARISONS}".split()),
    *(case(op_type, MASK, MASK) for op_type in ("And", "Or", "Xor")),
    case("Not", MASK),
    case("Sum", X, X, X, X, label="4"),
    case("Sum", X, label="1"),
    case("Max", X, label="1"),
    case("Where", MASK, X, X),
    case("Clip", X, constant(0.0, FLOAT), constant(6.0, FLOAT)),
    case("Cast", X, to=int(FLOAT), label="Same"),
    case("Cast", X, to=int(ir.DataType.INT32), label="SameSize"),
    case("Cast", X, to=int(INT64), label="Wider"),
    case("Reshape", X, constant([-1])),
    case("Flatten", X),
    case("Squeeze", floats(1, 16384), constant([0])),
    case("Unsqueeze", X, constant([0])),
    case("Dropout", X, constant(0.5, FLOAT), constant(True, BOOL), seed=1, outputs=2),
    case("Dropout", X, constant(0.5, FLOAT), constant(False, BOOL), outputs=2, label="Off"),
    case("Expand", floats(1, 16384), constant([4, 16384])),
    case("Expand", X, constant([1]), label="Same"),
    case("Transpose", X, perm=(0, 2, 3, 1)),
    case("Transpose", floats(1, 16384), perm=(1, 0), label="Flat"),
    case("Concat", X, axis=0),
    case("Split", X, axis=0),
    case("Slice", X, constant([0]), constant([4])),
    case("Gather", X, constant([0, 1, 2, 3])),
    case("Tile", X, constant([1, 1, 1, 1])),
    case("Pad", X, constant([0] * 8)),
    case("CumSum", X, constant(0)),
    case("Trilu", X),
    case("ScatterElements", MANY, constant([1]), constant([1.0], FLOAT)),
    case("ScatterND", MANY, constant([[1]]), constant([1.0], FLOAT)),
    case("ReduceSum", X, constant([], INT64), noop_with_empty_axes=1),
    case("ReduceSum", X, constant([0, -1]), keepdims=0, label="Axes"),
    case("ReduceMean", X, keepdims=0),
    case("MatMul", MATRIX, MATRIX),
    case("Gemm", MATRIX, MATRIX, MATRIX),
    case("Gemm", floats(64, 128), floats(32, 64), transA=1, transB=1, label="Turned"),
    case("Conv", X, floats(8, 8, 3, 3), **SAME),
    case("ConvTranspose", X, floats(8, 8, 3, 3), **SAME),
    case("MaxPool", X, outputs=2, **KERNEL),
    case("AveragePool", X, **SAME),
    case("GlobalAveragePool", X),
    case("BatchNormalization", X, CHANNEL, CHANNEL, CHANNEL, CHANNEL),
    case("InstanceNormalization", X, CHANNEL, CHANNEL),
    case("LayerNormalization", X, LAST, LAST, axis=-1, epsilon=1e-5, outputs=3),
    case("SimplifiedLayerNormalization", X, LAST, axis=-1, epsilon=1e-5, outputs=2),
    case("LRN", X, size=3),
    case("SoftmaxCrossEntropyLoss", floats(512, 32), constant([1] * 512), outputs=2),
    case("Einsum", X, equation="abcd->abcd"),
    case("DepthToSpace", X, blocksize=2),
    case("Resize", X, None, constant([1.0, 1.0, 2.0, 2.0], FLOAT)),
    case("MaxPoolGrad", floats(4, 8, 8, 16), constant(np.zeros((4, 8, 8, 16))), declared=(4, 8, 16, 32), **KERNEL),
    case("AveragePoolGrad", X, declared=(4, 8, 16, 32), **SAME),
]

MICROSOFT_CASES = [
    *(microsoft(op_type, X, X) for op_type in ("ReluGrad", "SigmoidGrad", "TanhGrad", "GeluGrad", "FastGeluGrad")),
    *(microsoft(op_type, X, X, alpha=0.5) for op_type in ("LeakyReluGrad", "QuickGeluGrad")),
    *(microsoft(op_type, X, X, axis=-1) for op_type in ("SoftmaxGrad", "SoftmaxGrad_13")),
    *(microsoft(op_type, X, X, axis=-1) for op_type in ("LogSoftmaxGrad", "LogSoftmaxGrad_13")),
    microsoft("Gelu", X),
    microsoft("QuickGelu", X),
    microsoft("BiasGelu", X, LAST),
    microsoft("FastGelu", X, LAST),
    microsoft("BiasGeluGrad_dX", X, X, LAST),
    microsoft("BiasFastGeluGrad_dX", X, X, LAST),
    microsoft("Scale", X, constant(3), scale_down=1),
    microsoft("DropoutGrad", X, MASK, constant(0.5, FLOAT), constant(True, BOOL)),
    microsoft("LayerNormalizationGrad", X, X, LAST, STATISTIC, STATISTIC, axis=3, outputs=3),
    microsoft("SimplifiedLayerNormalizationGrad", X, X, LAST, STATISTIC, axis=3, outputs=2),
    microsoft("InvertibleLayerNormalizationGrad", X, X, LAST, LAST, STATISTIC, axis=3, outputs=3),
    microsoft("BatchNormalizationGrad", X, X, CHANNEL, CHANNEL, CHANNEL, epsilon=1e-5, outputs=3),
    microsoft("BatchNormInternal", floats(2, 2048, 2, 2), MANY, MANY, MANY, MANY, training_mode=1, outputs=5),
    microsoft("ConvGrad", X, X, floats(8, 8, 3, 3), outputs=3, **SAME),
    microsoft("ConvGrad", floats(4, 8, 8, 16), X, floats(8, 1, 3, 3), group=8, outputs=2, label="Depthwise", **KERNEL),
    microsoft("SoftmaxCrossEntropyLossGrad", constant(1.0, FLOAT), floats(512, 32), constant([1] * 512)),
    microsoft("FusedMatMul", MATRIX, MATRIX),
    *(
        microsoft("FusedMatMul", MATRICES, MATRICES, transA=a, transB=b, label=f"{a}{b}")
        for a, b in ((0, 1), (1, 0), (1, 1))
    ),
    microsoft("FusedMatMul", floats(8, 4, 16), floats(4, 16, 32), transBatchA=1, label="BatchA"),
    microsoft("FusedMatMul", floats(4, 8, 16), floats(16, 4, 32), transBatchB=1, label="BatchB"),
    microsoft("FusedMatMul", floats(8, 4, 16), floats(4, 8, 32), transBatchA=1, transA=1, label="BatchATurned"),
    microsoft("ConcatTraining", X, floats(2, 8, 16, 32), axis=0, outputs=2),
    microsoft("SplitTraining", X, constant([3, 1]), axis=0, outputs=2),
    microsoft("SplitTraining", X, constant([4]), axis=0, label="1"),
    microsoft("ReduceSumTraining", X, constant([], INT64), noop_with_empty_axes=1),
    microsoft("ReduceSumTraining", X, constant([1, 3]), keepdims=0, label="Axes"),
    microsoft("GatherGrad", constant([64, 256]), constant([1, 2]), floats(2, 256)),
    microsoft("GatherNDGrad", constant([64, 256]), constant([[1], [2]]), floats(2, 256)),
    microsoft("GatherElementsGrad", X, constant([4, 8, 16, 32]), constant(np.zeros((4, 8, 16, 32)))),
    microsoft("SliceGrad", X, constant([8, 8, 16, 32]), constant([0]), constant([4])),
    microsoft("ShrunkenGather", X, constant([1, 3]), axis=1),
    microsoft("Inverse", MATRIX),
    microsoft("Trilu", X),
    microsoft("FakeQuant", X, constant(1.0, FLOAT), constant(0.0, FLOAT), outputs=2),
    microsoft("FakeQuantGrad", X, MASK),
    microsoft("TransposeMatMul", MATRIX, MATRIX, transB=1),
    microsoft("ZeroGradient", X, constant([1.0], FLOAT)),
    microsoft("InPlaceAccumulator", X, X),
    microsoft("InPlaceAccumulatorV2", X, X, constant([False], BOOL), outputs=2),
    microsoft("BroadcastGradientArgs", constant([4, 1, 3]), constant([2, 3]), outputs=2),
    microsoft("BroadcastGradientArgs", constant([3]), constant([2, 3]), outputs=2, label="Left"),
    microsoft("ReduceAllL2", X, X),
    microsoft("SoftmaxCrossEntropyLossInternal", floats(512, 32), constant([1] * 512), outputs=2),
    microsoft("SoftmaxCrossEntropyLossInternalGrad", constant(1.0, FLOAT), floats(512, 32), constant([1] * 512)),
    microsoft("SoftmaxCrossEntropy", floats(512, 32), floats(512, 32), outputs=2),
    microsoft("SoftmaxCrossEntropyGrad", constant(1.0, FLOAT), floats(512, 32), floats(512, 32)),
    case("SparseSoftmaxCrossEntropy", floats(512, 32), constant([1] * 512), outputs=2),
    case("SparseSoftmaxCrossEntropyGrad", constant(1.0, FLOAT), floats(512, 32), constant([1] * 512)),
    microsoft("GRUTraining", *GRU, hidden_size=4, linear_before_reset=1, outputs=3),
    microsoft("LSTMTraining", *LSTM, hidden_size=4, outputs=5),
    microsoft("AdamOptimizer", constant(0.1, FLOAT), Operand(INT64, (1,)), X, X, X, X, outputs=5),
    microsoft("SGDOptimizer", constant([0.1], FLOAT), X, X, outputs=2),
]

CASES = [*ONNX_CASES, *MICROSOFT_CASES]


def build(
    case: Case,
    before: Sequence[onnx.NodeProto] = (),
    after: Sequence[onnx.NodeProto] = (),
    *,
    graph_outputs: Sequence[str] | None = None,
) -> ir.Model:
    """Return a model of the case's node, with nodes before and after it.

    Inputs are named x0, x1, ..., outputs y0, y1, ...; where a node of `before` makes t0, it takes the place of x0.
    Graph outputs have no declared shape; all of the node's outputs are, unless others are named.
    """
    made = {name for node in before for name in node.output}
    inputs, constants, names = [], [], []
    for index, operand in enumerate(case.operands):
        name = f"x{index}"
        names.append("" if operand is None else f"t{index}" if f"t{index}" in made else name)
        if operand is None:
            continue
        if operand.value is None:
            inputs.append(onnx.helper.make_tensor_value_info(name, int(operand.dtype), operand.shape))
        else:
            constants.append(onnx.numpy_helper.from_array(operand.array(np.random.default_rng(0)), name))
    outputs = [f"y{index}" for index in range(case.outputs)]
    node = onnx.helper.make_node(case.op_type, names, outputs, "node", domain=case.domain, **case.attributes)
    ends = outputs if graph_outputs is None else graph_outputs
    graph = onnx.helper.make_graph(
        [*before, node, *after],
        "case",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in ends],
        constants,
        value_info=[onnx.helper.make_tensor_value_info("y0", int(FLOAT), case.declared)] if case.declared else [],
    )
    imports = [onnx.helper.make_opsetid("", case.opset), onnx.helper.make_opsetid(MICROSOFT, 1)]
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports, ir_version=9))
    if case.declared:
        y0 = next(value for value in model.graph.node("node").outputs if value.name == "y0")
        y0.type, y0.shape = ir.TensorType(FLOAT), ir.Shape(case.declared)
    return model


def feeds(case: Case) -> dict[str, npt.NDArray[Any]]:
    """Return arrays for the graph inputs."""
    generator = np.random.default_rng(1)
    return {
        f"x{index}": operand.array(generator)
        for index, operand in enumerate(case.operands)
        if operand is not None and operand.value is None
    }
