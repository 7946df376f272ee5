"""Models of one operator, whose memory the rules of workspaces know."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import workspace_cases
from onnx import TensorProto, helper
from workspace_cases import MS, Case, ints

from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph

RNG = np.random.default_rng(7)


def conv_shapes(
    n: int, cin: int, cout: int, size: int, k: int, *, stride: int = 1, pad: int = 0, dilation: int = 1, group: int = 1
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Return the shapes of X, W and Y and the attributes of a square convolution."""
    out = (size + 2 * pad - ((k - 1) * dilation + 1)) // stride + 1
    attributes = {"kernel_shape": [k, k], "strides": [stride] * 2, "pads": [pad] * 4}
    attributes |= {"dilations": [dilation] * 2, "group": group}
    return (n, cin, size, size), (cout, cin // group, k, k), (n, cout, out, out), attributes


def conv_cases() -> list[Case]:
    sweep = [
        ((1, 16, 16, 12, 3), {"pad": 1}),
        ((2, 16, 16, 12, 3), {"pad": 1}),
        ((1, 16, 160, 12, 3), {"pad": 1}),
        ((2, 64, 200, 12, 3), {"pad": 1, "group": 2}),
        ((1, 32, 32, 12, 3), {"pad": 1, "group": 32}),
        ((2, 32, 64, 2, 1), {"group": 32}),
        ((1, 160, 16, 32, 3), {"pad": 1, "group": 2}),
        ((2, 256, 256, 4, 3), {"pad": 1}),
        ((2, 256, 512, 4, 3), {"pad": 1, "stride": 2}),
        ((1, 16, 16, 12, 1), {}),
        ((1, 16, 16, 12, 1), {"stride": 2}),
        ((3, 160, 160, 32, 1), {"stride": 2}),
        ((1, 160, 40, 32, 1), {"pad": 1}),
        ((1, 32, 16, 32, 3), {"dilation": 2}),
        ((1, 3, 64, 32, 7), {"stride": 2, "pad": 3}),
        ((3, 2, 3, 8, 8), {}),
        ((3, 4, 4, 8, 8), {"group": 4}),
        ((1, 1, 3, 8, 8), {}),
        ((1, 1, 70, 8, 3), {"pad": 1}),
        ((1, 64, 64, 32, 3), {"pad": 1}),
        ((1, 64, 64, 7, 3), {"pad": 1}),
        ((1, 64, 64, 8, 3), {"pad": 1}),
    ]
    cases = []
    for arguments, options in sweep:
        x, w, y, attributes = conv_shapes(*arguments, **options)
        cases += [Case("Conv", (x, w), (y,), attributes, threads=threads) for threads in (1, 2)]
        cases.append(Case("Conv", (x, w, (w[0],)), (y,), attributes))
        gradients: tuple[tuple[Any, ...], ...] = ((x, w, (w[0],)), (x, w, None), (x, None, None), (None, w, (w[0],)))
        cases += [
            Case("ConvGrad", (y, x, w), outputs, attributes | {"auto_pad": "NOTSET"}, MS) for outputs in gradients
        ]
    one = {"kernel_shape": [3], "pads": [1, 1]}
    cases.append(Case("Conv", ((2, 4, 40), (6, 4, 3)), ((2, 6, 40),), one))
    cases.append(Case("Conv", ((2, 4, 4), (6, 4, 3)), ((2, 6, 4),), one))
    cases.append(Case("Conv", ((1, 1, 9), (6, 1, 9)), ((1, 6, 1),), {"kernel_shape": [9]}))
    cases.append(Case("ConvGrad", ((2, 6, 40), (2, 4, 40), (6, 4, 3)), ((2, 4, 40), (6, 4, 3), (6,)), one, MS))
    three = {"kernel_shape": [3, 3, 3], "pads": [1] * 6}
    cases.append(Case("Conv", ((1, 4, 5, 6, 7), (6, 4, 3, 3, 3)), ((1, 6, 5, 6, 7),), three))
    for kind in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        y = (1, 5, 9, 9) if kind != "VALID" else (1, 5, 7, 7)
        cases.append(Case("Conv", ((1, 4, 9, 9), (5, 4, 3, 3)), (y,), {"auto_pad": kind}))
        cases.append(Case("Conv", ((1, 4, 9, 9), (5, 4, 1, 1)), ((1, 5, 9, 9),), {"auto_pad": kind}))
    return cases


def conv_transpose_cases() -> list[Case]:
    two = {"kernel_shape": [3, 3]}
    return [
        Case("ConvTranspose", ((1, 8, 5, 7), (8, 6, 3, 3), (6,)), ((1, 6, 7, 9),), two),
        Case("ConvTranspose", ((2, 8, 5, 7), (8, 3, 3, 3)), ((2, 6, 7, 9),), two | {"group": 2}, threads=2),
        Case("ConvTranspose", ((1, 8, 5, 7), (8, 6, 1, 1)), ((1, 6, 5, 7),), {"kernel_shape": [1, 1]}),
        Case(
            "ConvTranspose",
            ((1, 8, 5, 7), (8, 6, 2, 2)),
            ((1, 6, 10, 14),),
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        ),
        Case("ConvTranspose", ((1, 4, 9), (4, 6, 3)), ((1, 6, 11),), {"kernel_shape": [3]}),
        Case("ConvTranspose", ((1, 4, 3, 4, 5), (4, 6, 2, 2, 2)), ((1, 6, 4, 5, 6),), {"kernel_shape": [2, 2, 2]}),
    ]


def scalar(value: float | bool) -> np.ndarray:
    return np.array(value, np.bool_ if isinstance(value, bool) else np.float32)


def normalisation_and_loss_cases() -> list[Case]:
    image, channels, rows, row = (2, 8, 6, 5), (8,), (4, 3, 33), (33,)
    stat, labels, pixels = (4, 3, 1), ints(0, 1, 2, 0), np.zeros((4, 5, 6), np.int64)
    cases = [
        Case("BatchNormInternal", (image, *[channels] * 4), (image, *[channels] * 4), {"training_mode": 1}, MS),
        Case("BatchNormalization", (image, *[channels] * 4), (image, channels, channels), {"training_mode": 1}),
        Case("BatchNormalization", (image, *[channels] * 4), (image,)),
        Case(
            "BatchNormalizationGrad",
            (image, image, *[channels] * 3),
            (image, channels, channels),
            {"epsilon": 1e-5},
            MS,
        ),
        Case("LayerNormalization", (rows, row, row), (rows, stat, stat), {"axis": -1}),
        Case("LayerNormalization", (rows, row, row), (rows,), {"axis": -1}, opset=17),
        Case("LayerNormalizationGrad", (rows, rows, row, stat, stat), (rows, row, row), {"axis": -1}, MS),
        Case("InstanceNormalization", (image, channels, channels), (image,)),
        Case("LRN", (image,), (image,), {"size": 3}),
    ]
    for axis in (-1, 0, 1, 2):
        for op in ("Softmax", "LogSoftmax"):
            cases.append(Case(op, (rows,), (rows,), {"axis": axis}))
            cases.append(Case(f"{op}Grad_13", (rows, rows), (rows,), {"axis": axis}, MS))
            cases.append(Case(f"{op}Grad", (rows, rows), (rows,), {"axis": axis}, MS))
    for reduction in ("mean", "sum", "none"):
        for scores, targets in (((4, 33), labels), ((4, 3, 5, 6), pixels)):
            loss = targets.shape if reduction == "none" else ()
            options = {"reduction": reduction}
            weight = (scores[1],)
            cases += [
                Case("SoftmaxCrossEntropyLoss", (scores, targets), (loss, scores), options),
                Case("SoftmaxCrossEntropyLoss", (scores, targets), (loss,), options),
                Case("SoftmaxCrossEntropyLoss", (scores, targets, weight), (loss, scores), options),
                Case("SoftmaxCrossEntropyLossInternal", (scores, targets), (loss, scores), options, MS),
                Case("SoftmaxCrossEntropyLossGrad", (loss, scores, targets), (scores,), options, MS),
                Case("SoftmaxCrossEntropyLossGrad", (loss, scores, targets, weight), (scores,), options, MS),
                Case("SoftmaxCrossEntropyLossInternalGrad", (loss, scores, targets), (scores,), options, MS),
            ]
    return cases


def elementwise_cases() -> list[Case]:
    m, row, one = (4, 33), (33,), ()
    cases = [Case(op, (m,), (m,)) for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "HardSwish", "LeakyRelu")]
    cases += [Case(op, (m,), (m,), domain=MS) for op in ("Gelu", "QuickGelu", "FastGelu")]
    cases += [Case("Mish", (m,), (m,), opset=18), Case("Gelu", (m,), (m,), opset=20)]
    cases += [Case(op, (m, row), (m,), domain=MS) for op in ("BiasGelu", "FastGelu")]
    cases += [Case(op, (m, m, row), (m,), domain=MS) for op in ("BiasGeluGrad_dX", "BiasFastGeluGrad_dX")]
    gradients = ("ReluGrad", "GeluGrad", "FastGeluGrad", "SigmoidGrad", "TanhGrad", "QuickGeluGrad", "LeakyReluGrad")
    cases += [Case(op, (m, m), (m,), domain=MS) for op in gradients]
    for op in ("Add", "Sub", "Mul", "Div", "Pow"):
        cases += [Case(op, (m, m), (m,)), Case(op, (m, row), (m,)), Case(op, (m, one), (m,))]
        cases.append(Case(op, ((4, 1, 5), (33, 1)), ((4, 33, 5),)))
    for op in ("Sum", "Max", "Min", "Mean"):
        cases += [Case(op, (m,) * count, (m,)) for count in (1, 2, 3, 4, 5, 6)]
        cases += [Case(op, (row, (1,), row, m), (m,)), Case(op, (row, (1,), m), (m,))]
        cases += [Case(op, (row, (1,), row, m, (4, 1)), (m,)), Case(op, ((4, 1), (1,), row, m), (m,))]
    mask = RNG.integers(0, 2, m).astype(bool)
    cases += [Case("Where", (mask, m, m), (m,)), Case("Where", (mask[:, :1], m, one), (m,))]
    cases += [Case("Where", (mask, one, row), (m,)), Case("Not", (mask,), (mask,))]
    cases += [
        Case("Scale", (m, (1,)), (m,), domain=MS),
        Case("InPlaceAccumulatorV2", (m, m, np.array([True])), (np.array([True]),), domain=MS),
        Case("InPlaceAccumulatorV2", (m, m, np.array([False])), (np.array([True]),), domain=MS),
        Case("Dropout", (m, scalar(0.5), scalar(True)), (m, mask), {"seed": 1}),
        Case("Dropout", (m, scalar(0.5), scalar(True)), (m,), {"seed": 1}),
        Case("DropoutGrad", (m, mask, scalar(0.5), scalar(True)), (m,), domain=MS),
        Case("Cast", (m,), (np.zeros(m, np.int64),), {"to": TensorProto.INT64}),
    ]
    return cases


def pooling_and_movement_cases() -> list[Case]:
    x, pooled = (2, 6, 9, 8), (2, 6, 5, 4)
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    indices = np.zeros(pooled, np.int64)
    cases = [
        Case("MaxPool", (x,), (pooled, indices), pool),
        Case("MaxPool", (x,), (pooled,), pool),
        Case("MaxPoolGrad", (pooled, indices), (x,), pool),
        Case("AveragePool", (x,), (pooled,), pool),
        Case("GlobalAveragePool", (x,), ((2, 6, 1, 1),)),
    ]
    for axes in ((0,), (1,), (2,), (3,), (0, 2), (1, 3), (0, 2, 3), (0, 1, 2, 3)):
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(x))
        squeezed = tuple(size for axis, size in enumerate(x) if axis not in axes)
        cases.append(Case("ReduceSum", (x, ints(*axes)), (kept,)))
        cases.append(Case("ReduceSum", (x, ints(*axes)), (squeezed,), {"keepdims": 0}))
        for op in ("ReduceMean", "ReduceMax", "ReduceL2"):
            cases.append(Case(op, (x,), (kept,), {"axes": list(axes)}, opset=13))
    for perm in ((1, 0, 2, 3), (3, 2, 1, 0), (0, 2, 3, 1), (0, 2, 1, 3), (2, 3, 0, 1)):
        cases.append(Case("Transpose", (x,), (tuple(x[axis] for axis in perm),), {"perm": perm}))
    table, tokens = (33, 7), np.zeros((4, 5), np.int64)
    both, parts = (2, 12, 9, 8), ((2, 2, 9, 8), (2, 4, 9, 8))
    cases += [
        Case("Gather", (table, tokens), ((4, 5, 7),)),
        Case("GatherGrad", (ints(33, 7), tokens, (4, 5, 7)), (table,), {"axis": 0}, MS),
        Case("GatherGrad", (ints(33, 7), ints(0, 1, 1, 2), (33, 4)), (table,), {"axis": 1}, MS),
        Case("Concat", (x, x), (both,), {"axis": 1}),
        Case("ConcatTraining", (x, x), (both, ints(0, 0)), {"axis": 1}, MS),
        Case("Split", (x, ints(2, 4)), parts, {"axis": 1}),
        Case("SplitTraining", (x, ints(2, 4)), parts, {"axis": 1}, MS),
        Case("Slice", (x, ints(1), ints(9), ints(2), ints(2)), ((2, 6, 4, 8),)),
        Case("SliceGrad", ((2, 6, 4, 8), ints(*x), ints(1), ints(5), ints(2)), (x,), {}, MS),
        Case("Pad", (x, ints(0, 0, 1, 1, 0, 0, 1, 1)), ((2, 6, 11, 10),)),
        Case("Expand", ((6, 1, 1), ints(*x)), (x,)),
        Case("Expand", ((2, 1, 9, 1), ints(*x)), (x,)),
        Case("Tile", (x, ints(1, 2, 1, 1)), (both,)),
        Case("DepthToSpace", ((2, 8, 3, 3),), ((2, 2, 6, 6),), {"blocksize": 2}),
        Case("Resize", (x, None, None, ints(2, 6, 18, 16)), ((2, 6, 18, 16),), {"mode": "linear"}),
        Case("Resize", (x, None, None, ints(2, 6, 18, 16)), ((2, 6, 18, 16),), {"mode": "nearest"}),
        Case("Resize", ((6, 9, 8), None, None, ints(6, 18, 16)), ((6, 18, 16),), {"mode": "linear"}),
    ]
    return cases


def product_cases() -> list[Case]:
    cases = [
        Case("Gemm", ((57, 70), (70, 90), (90,)), ((57, 90),)),
        Case("Gemm", ((57, 70), (90, 70), (90,)), ((57, 90),), {"transB": 1}),
        Case("Gemm", ((70, 57), (70, 90)), ((57, 90),), {"transA": 1, "alpha": 0.5}),
        Case("MatMul", ((257, 770), (770, 330)), ((257, 330),)),
        Case("MatMul", ((3, 5, 7), (3, 7, 9)), ((3, 5, 9),)),
        Case("MatMul", ((3, 5, 7), (7, 9)), ((3, 5, 9),), threads=2),
        Case("MatMul", ((1, 770), (770, 330)), ((1, 330),)),
        Case("FusedMatMul", ((5, 3, 7), (3, 7, 9)), ((3, 5, 9),), {"transBatchA": 1}, MS),
        Case("FusedMatMul", ((7, 3, 5), (3, 7, 9)), ((3, 5, 9),), {"transBatchA": 1, "transA": 1}, MS),
    ]
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        left, right = ((3, 7, 5) if a else (3, 5, 7)), ((3, 9, 7) if b else (3, 7, 9))
        cases.append(Case("FusedMatMul", (left, right), ((3, 5, 9),), {"transA": a, "transB": b, "alpha": 0.5}, MS))
    return cases


def single_operator(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray], TrainingGraph]:
    """Return a model of one operator, random feeds for it, and the graph that the rule looks at."""
    feeds, tensors = {}, {}
    for index, value in enumerate(case.inputs):
        if value is not None:
            array = value if isinstance(value, np.ndarray) else RNG.standard_normal(value).astype(np.float32)
            feeds[f"input{index}"] = np.asarray(array)
    outputs = {}
    for index, value in enumerate(case.outputs):
        if value is not None:
            outputs[f"output{index}"] = value if isinstance(value, np.ndarray) else np.zeros(value, np.float32)
    for name, array in (feeds | outputs).items():
        kind = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(array.dtype))
        residency = Residency.RESIDENT if name in feeds else Residency.OUTPUT
        tensors[name] = Tensor(name, kind, array.shape, array.nbytes, name, residency)
    input_names = [f"input{i}" if value is not None else "" for i, value in enumerate(case.inputs)]
    output_names = [f"output{i}" if value is not None else "" for i, value in enumerate(case.outputs)]
    proto = helper.make_node(case.op, input_names, output_names, "node", domain=case.domain, **case.attributes)
    infos = {
        name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in (feeds | outputs).items()
    }
    onnx_graph = helper.make_graph([proto], "one", [infos[n] for n in feeds], [infos[n] for n in outputs])
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid(MS, 1)]
    model = helper.make_model(onnx_graph, opset_imports=opsets, ir_version=8)
    attributes = {a.name: attribute_value(a) for a in proto.attribute}
    node = Node("node", case.op, case.domain, tuple(input_names), tuple(output_names), attributes, Phase.FORWARD, True)
    graph = TrainingGraph("one", (node,), tensors, tuple(feeds), tuple(outputs), "")
    return model, feeds, graph


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


GROUPS = {
    "conv": conv_cases(),
    "conv_transpose": conv_transpose_cases(),
    "normalisation_and_loss": normalisation_and_loss_cases(),
    "elementwise": elementwise_cases(),
    "pooling_and_movement": pooling_and_movement_cases(),
    "product": product_cases(),
    "elementwise_more": workspace_cases.ELEMENTWISE,
    "reduced": workspace_cases.REDUCED,
    "normalized": workspace_cases.NORMALIZED,
    "images": workspace_cases.IMAGES,
    "moved": workspace_cases.MOVED,
    "random": workspace_cases.RANDOM,
    "products_more": workspace_cases.PRODUCTS,
}
