"""Forward models whose nodes or sizes cannot be are refused in a sentence, and never crash onnx's own code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from poet_onnx import TrainingSession, rewrite, train_graph
from poet_onnx.errors import InputError, PoetWarning

X = (2, 4, 6, 6)
SHAPES = {"w": (4, 4, 3, 3), "v": (4,), "m": (6, 3), "lw": (1, 12, 6), "lr": (1, 12, 3)}
NODES = [
    helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1], dilations=[1, 1]),
    helper.make_node("ConvTranspose", ["x", "w"], ["y"], kernel_shape=[3, 3], output_padding=[0, 0]),
    helper.make_node("MaxPool", ["h"], ["y"], kernel_shape=[2, 2], pads=[0] * 4, strides=[1, 1]),
    helper.make_node("AveragePool", ["h"], ["y"], kernel_shape=[2, 2], pads=[0] * 4, strides=[1, 1]),
    helper.make_node("Transpose", ["h"], ["y"], perm=[0, 1, 3, 2]),
    helper.make_node("Concat", ["h", "h"], ["y"], axis=1),
    helper.make_node("Split", ["h"], ["y", "z"], axis=1),
    helper.make_node("Flatten", ["h"], ["y"], axis=1),
    helper.make_node("Softmax", ["h"], ["y"], axis=1),
    helper.make_node("ReduceMean", ["h"], ["y"], axes=[1], keepdims=1),
    helper.make_node("Gather", ["h", "i"], ["y"], axis=0),
    helper.make_node("GatherND", ["h", "i"], ["y"], batch_dims=0),
    helper.make_node("DepthToSpace", ["h"], ["y"], blocksize=2),
    helper.make_node("LayerNormalization", ["h", "one"], ["y"], axis=-1, epsilon=1e-5),
    helper.make_node("Gemm", ["r", "m"], ["y"], alpha=1.0, transA=0, transB=0),
    helper.make_node("LSTM", ["s", "lw", "lr"], ["", "y"], hidden_size=3, direction="forward"),
    helper.make_node("Cast", ["h"], ["y"], to=1),
]
VALUES: list[Any] = [0, -1, -(2**31), 2**31, 2**62, [], [1], [-1, 2**62], [0] * 5, [2**31] * 4, 0.5, "text", [0.5]]


def model(node: onnx.NodeProto, x: tuple[int, ...] = X, opset: int = 17) -> onnx.ModelProto:
    """Return a model of a node behind a product with a parameter."""
    initializers = [
        *(
            helper.make_tensor(name, 1, shape, np.linspace(0.1, 0.9, math.prod(shape)))
            for name, shape in SHAPES.items()
        ),
        helper.make_tensor("one", 1, [6], [1.0] * 6),
        helper.make_tensor("weight", 1, [1], [2.0]),
        helper.make_tensor("i", 7, [1, 2], [0, 1]),
        helper.make_tensor("rows", 7, [2], [-1, 6]),
        helper.make_tensor("steps", 7, [3], [-1, 2, 6]),
    ]
    nodes = [
        helper.make_node("Mul", ["x", "weight"], ["h"], "before"),
        helper.make_node("Reshape", ["h", "rows"], ["r"], "rows_"),
        helper.make_node("Reshape", ["h", "steps"], ["s"], "steps_"),
        node,
    ]
    wanted = set(node.input)
    nodes = [each for each in nodes if each is node or each.output[0] in wanted | {"h"}]
    read = {name for each in nodes for name in each.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, x)],
        [helper.make_tensor_value_info("y", 1, None)],
        [each for each in initializers if each.name in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def malformed(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield copies of a node, in each of which one attribute has another value."""
    for name in sorted(onnx.defs.get_schema(node.op_type, 17, "").attributes):
        for value in VALUES:
            damaged = onnx.NodeProto()
            damaged.CopyFrom(node)
            kept = [each for each in damaged.attribute if each.name != name]
            del damaged.attribute[:]
            kind = onnx.AttributeProto.INTS if value == [] else None
            damaged.attribute.extend([*kept, helper.make_attribute(name, value, attr_type=kind)])
            yield damaged


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.op_type)
def test_malformed_attributes_give_a_graph_or_a_sentence(node: onnx.NodeProto) -> None:
    train_graph(model(node), loss="mse")  # the undamaged one can be trained
    refused = 0
    for damaged in malformed(node):
        try:
            train_graph(model(damaged), loss="mse")
        except InputError as error:
            refused += 1
            assert str(error).endswith("."), damaged
            assert "\n" not in str(error), damaged
    assert refused


@pytest.mark.parametrize(
    ("node", "x", "words"),
    [
        (helper.make_node("Transpose", ["h"], ["y"], "n", perm=[0]), X, r"'n'.*perm \[0\] is no order of the 4 dim"),
        (helper.make_node("MatMul", ["x", "m"], ["y"], "n"), (2**62, 6), "input 'x'.*more than a process can address"),
        (helper.make_node("Conv", ["x", "w"], ["y"], "n", pads=[2**31] * 4), X, "'n'.*more than a process can address"),
        (helper.make_node("MatMul", ["x", "m"], ["y"], "n"), (-3, 6), "input 'x'.*dimension cannot be negative"),
        (helper.make_node("MatMul", ["x", "m"], ["y"], "n"), (0, 6), r"'y' has shape \[0, 3\], no numbers"),
        (
            helper.make_node("Relu", ["h"], ["y"], "n"),
            (4, 0),
            r"'y' has shape \[4, 0\], no numbers: choose",
        ),
        (
            helper.make_node("GatherND", ["h", "i"], ["y"], "n", batch_dims=-(2**31)),
            X,
            "'n'.*batch_dims is -2147",
        ),
        (helper.make_node("Flatten", ["h"], ["y"], "n", axis=1.5), X, "'axis' of node 'n'.*is of type FLOAT, not INT"),
    ],
)
@pytest.mark.parametrize("target", ["stock", "training"])
def test_what_cannot_be_is_named(node: onnx.NodeProto, x: tuple[int, ...], words: str, target: str) -> None:
    with pytest.raises(InputError, match=words):
        rewrite(model(node, x), loss="mse", device="a72", target=target)


def test_a_conversion_from_an_old_opset_cannot_crash() -> None:
    node = helper.make_node("Upsample", ["h", "factors"], ["y"], "n", mode=0.5)
    old = model(node, opset=9)
    old.graph.initializer.append(helper.make_tensor("factors", 1, [4], [1.0, 1.0, 2.0, 2.0]))
    with pytest.raises(InputError, match=r"'mode' of node 'n'.*is of type FLOAT, not STRING"):
        train_graph(old, loss="mse")


def test_a_body_that_onnx_cannot_write_is_refused() -> None:
    node = helper.make_node("GroupNormalization", ["h", "v", "v"], ["y"], "n", num_groups=2, stash_type=-2)
    with pytest.raises(InputError, match=r"'n'.*do not fit it"):
        train_graph(model(node, opset=21), loss="mse")


@pytest.mark.parametrize("ratio", [1.0, math.nan, -0.5, 2.0, math.inf, 1 - 1e-12])
@pytest.mark.parametrize("form", ["attribute", "float", "double", "computed"])
def test_a_dropout_that_keeps_nothing_is_refused(form: str, ratio: float) -> None:
    """In torch a ratio of 1 makes zeros; ONNX Runtime's kernel refuses it amid a step."""
    kind = np.float64 if form == "double" else np.float32
    if np.isnan(ratio) and form in ("float", "double"):
        pytest.skip("refused as a parameter that is not finite")
    graph = onnx.parser.parse_graph(
        "g (float[2, 3] x) => (float[2, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, bool on = {1}>"
        "{ a = MatMul(x, w) y = Dropout(a, r, on) }"
    )
    if form == "attribute":
        graph.node[1].CopyFrom(helper.make_node("Dropout", ["a"], ["y"], ratio=ratio))
        del graph.initializer[1]
    elif form == "computed":
        graph.node.insert(0, helper.make_node("Cast", ["given"], ["r"], to=onnx.TensorProto.FLOAT))
        value = onnx.numpy_helper.from_array(np.array(ratio, np.float64))
        graph.node.insert(0, helper.make_node("Constant", [], ["given"], value=value))
    else:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(ratio, kind), "r"))
    opset = helper.make_opsetid("", 10 if form == "attribute" else 15)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    for target in ("training", "stock"):
        with pytest.raises(InputError, match=r"operator Dropout\) .*: its ratio is .* and must be at least 0 and"):
            rewrite(model, device="a72", loss="mse", target=target)


def test_a_dropout_that_is_off_may_have_any_ratio() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 15]> g (float[2, 3] x) => (float[2, 2] y)'
        "<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float r = {1}, bool off = {0}>"
        "{ a = MatMul(x, w) y = Dropout(a, r, off) }"
    )
    with pytest.warns(PoetWarning, match="was exported for inference and drops nothing"):
        rewrite(model, device="a72", loss="mse")


@pytest.mark.parametrize("ratio", [1.0, math.nan])
def test_a_training_graph_with_a_dropout_that_keeps_nothing_is_refused(
    model_path: Callable[..., Path], ratio: float
) -> None:
    path = model_path("transformer")
    model = onnx.load(path)
    dropout = next(node for node in model.graph.node if node.op_type == "Dropout")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(ratio, np.float32), "all"))
    dropout.input[1] = "all"
    with pytest.raises(InputError, match=r"operator Dropout\) .*: its ratio is"):
        rewrite(model, device="a72")
    with pytest.raises(InputError, match=r"operator Dropout\) has the ratio"):
        TrainingSession(model, path.with_name("checkpoint"))
