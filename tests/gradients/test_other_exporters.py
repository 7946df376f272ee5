"""What tf2onnx, paddle2onnx and jax2onnx write: variables train, and numbers of the program stand still."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning


def made(
    nodes: list[onnx.NodeProto], weights: dict[str, Any], shape: list[int], writer: str, samples: int = 2
) -> onnx.ModelProto:
    """Return a model from 'x' to 'scores'."""
    graph = helper.make_graph(
        nodes,
        "exported",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [samples, 3])],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name=writer, ir_version=8)
    onnx.checker.check_model(model)
    return model


def normalized(epsilon: str, exponent: str, scale: str, shift: str) -> list[onnx.NodeProto]:
    """Return a layer normalization as arithmetic."""
    return [
        helper.make_node("ReduceMean", ["h"], ["mean"], axes=[-1]),
        helper.make_node("Sub", ["h", "mean"], ["away"]),
        helper.make_node("Pow", ["away", exponent], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["variance"], axes=[-1]),
        helper.make_node("Add", ["variance", epsilon], ["above"]),
        helper.make_node("Sqrt", ["above"], ["root"]),
        helper.make_node("Div", ["away", "root"], ["unit"]),
        helper.make_node("Mul", ["unit", scale], ["scaled"]),
        helper.make_node("Add", ["scaled", shift], ["normal"]),
    ]


RANDOM = np.random.default_rng(0)
WEIGHT, HEAD = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(6, 3))


def test_paddle_trains_fresh_scales_and_no_number_of_a_formula() -> None:
    names = {"helper.constant.0": 1e-5, "helper.constant.1": 2.0, "helper.reshape.0": np.ones(6)}
    weights = {"linear_0.w_0": WEIGHT, "linear_1.w_0": HEAD, "helper.reshape.1": np.zeros(6), **names}
    weights["auto.cast.4"] = np.array([0.35])
    nodes = [
        helper.make_node("MatMul", ["x", "linear_0.w_0"], ["product"]),
        helper.make_node("Mul", ["product", "auto.cast.4"], ["h"]),
        *normalized("helper.constant.0", "helper.constant.1", "helper.reshape.0", "helper.reshape.1"),
        helper.make_node("MatMul", ["normal", "linear_1.w_0"], ["scores"]),
    ]
    found = poet_onnx.train_graph(made(nodes, weights, [2, 4], ""))
    assert set(found.values) == {"linear_0.w_0", "linear_1.w_0", "helper.reshape.0", "helper.reshape.1"}


def test_paddle_trains_no_ones_and_zeros_of_a_group_normalization() -> None:
    ones, zeros = "helper.constant.1", "helper.constant.2"
    weights = {"conv2d_0.w_0": RANDOM.normal(size=(4, 2, 1)), ones: np.ones(4), zeros: np.zeros(4)}
    weights |= {"helper.unsqueeze.0": RANDOM.normal(size=(4, 1)), "linear_0.w_0": RANDOM.normal(size=(4, 3))}
    nodes = [
        helper.make_node("Conv", ["x", "conv2d_0.w_0"], ["h"]),
        helper.make_node("InstanceNormalization", ["h", ones, zeros], ["unit"]),
        helper.make_node("Mul", ["unit", "helper.unsqueeze.0"], ["scaled"]),
        helper.make_node("ReduceMax", ["scaled"], ["pooled"], axes=[-1], keepdims=0),
        helper.make_node("MatMul", ["pooled", "linear_0.w_0"], ["scores"]),
    ]
    found = poet_onnx.train_graph(made(nodes, weights, [5, 2, 7], "", samples=5))
    assert set(found.values) == {"conv2d_0.w_0", "helper.unsqueeze.0", "linear_0.w_0"}


def test_tensorflow_trains_no_table_or_number_that_the_program_has() -> None:
    weights = {"net/dense/Cast/ReadVariableOp:0": WEIGHT, "net/head/Cast/ReadVariableOp:0": HEAD}
    weights |= {"net/norm/Reshape:0": RANDOM.normal(size=6), "net/norm/Reshape_1:0": RANDOM.normal(size=6)}
    weights |= {"net/norm/add/y:0": 1e-3, "net/norm/pow/y:0": 2.0}
    weights |= {"net/positions/add/y:0": RANDOM.normal(size=(2, 4)), "net/Gelu/mul/x:0": 0.5}
    nodes = [
        helper.make_node("Add", ["x", "net/positions/add/y:0"], ["placed"]),
        helper.make_node("MatMul", ["placed", "net/dense/Cast/ReadVariableOp:0"], ["product"]),
        helper.make_node("Mul", ["net/Gelu/mul/x:0", "product"], ["h"]),
        *normalized("net/norm/add/y:0", "net/norm/pow/y:0", "net/norm/Reshape:0", "net/norm/Reshape_1:0"),
        helper.make_node("MatMul", ["normal", "net/head/Cast/ReadVariableOp:0"], ["scores"]),
    ]
    with pytest.warns(PoetWarning, match="No bias is trained beside"):
        found = poet_onnx.train_graph(made(nodes, weights, [2, 4], "tf2onnx"))
    variables = {name for name in weights if "ReadVariableOp" in name or "Reshape" in name}
    assert set(found.values) == variables


def test_tensorflow_trains_no_running_variance_of_a_batch_normalization_without_a_scale() -> None:
    weights = {"net/conv/ReadVariableOp:0": RANDOM.normal(size=(4, 2, 1)), "net/conv/Squeeze:0": RANDOM.normal(size=4)}
    weights |= {"net/bn/batchnorm/Rsqrt:0": RANDOM.random((1, 4, 1)), "net/head/ReadVariableOp:0": HEAD[:4]}
    weights |= {"net/head/add/ReadVariableOp:0": RANDOM.normal(size=3)}
    conv, bias, deviation, head, shift = weights
    nodes = [
        helper.make_node("Conv", ["x", conv, bias], ["h"]),
        helper.make_node("Mul", ["h", deviation], ["unit"]),
        helper.make_node("ReduceMax", ["unit"], ["pooled"], axes=[-1], keepdims=0),
        helper.make_node("MatMul", ["pooled", head], ["product"]),
        helper.make_node("Add", ["product", shift], ["scores"]),
    ]
    found = poet_onnx.train_graph(made(nodes, weights, [5, 2, 7], "tf2onnx", samples=5))
    assert set(found.values) == set(weights) - {deviation}


def test_tensorflow_trains_fresh_scales_of_a_normalization_that_it_writes_as_poolings() -> None:
    dense, head, scale = (f"net/{name}/ReadVariableOp:0" for name in ("dense", "head", "norm/mul"))
    weights = {dense: RANDOM.normal(size=(4, 2, 1)), head: RANDOM.normal(size=(7, 3)), scale: np.ones((1, 1, 7))}
    weights |= {"net/norm/Reshape:0": np.zeros((1, 1, 7)), "net/norm/add/y:0": 1e-3, "bias": RANDOM.normal(size=4)}
    weights |= {"other": RANDOM.normal(size=3)}
    nodes = [
        helper.make_node("Conv", ["x", dense, "bias"], ["h"]),
        helper.make_node("GlobalAveragePool", ["h"], ["mean"]),
        helper.make_node("Sub", ["h", "mean"], ["away"]),
        helper.make_node("Mul", ["away", "away"], ["square"]),
        helper.make_node("GlobalAveragePool", ["square"], ["variance"]),
        helper.make_node("Add", ["variance", "net/norm/add/y:0"], ["above"]),
        helper.make_node("Sqrt", ["above"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["inverse"]),
        helper.make_node("Mul", ["inverse", scale], ["factor"]),
        helper.make_node("Mul", ["h", "factor"], ["scaled"]),
        helper.make_node("Neg", ["mean"], ["negative"]),
        helper.make_node("Mul", ["negative", "factor"], ["shift"]),
        helper.make_node("Add", ["shift", "net/norm/Reshape:0"], ["below"]),
        helper.make_node("Add", ["scaled", "below"], ["normal"]),
        helper.make_node("ReduceMax", ["normal"], ["pooled"], axes=[1], keepdims=0),
        helper.make_node("Gemm", ["pooled", head, "other"], ["scores"]),
    ]
    found = poet_onnx.train_graph(made(nodes, weights, [2, 2, 7], "tf2onnx"))
    assert set(found.values) == {*weights} - {"net/norm/add/y:0"}


def test_what_tensorflow_computed_of_numbers_or_variables_is_in_doubt() -> None:
    weights = {"net/dense/Cast/ReadVariableOp:0": WEIGHT, "net/head/Cast/ReadVariableOp:0": HEAD}
    weights["net/rescaling/add:0"] = RANDOM.normal(size=(1, 4))  # an offset, and the mean of pictures
    nodes = [
        helper.make_node("Add", ["x", "net/rescaling/add:0"], ["moved"]),
        helper.make_node("MatMul", ["moved", "net/dense/Cast/ReadVariableOp:0"], ["h"]),
        helper.make_node("MatMul", ["h", "net/head/Cast/ReadVariableOp:0"], ["scores"]),
    ]
    with (
        pytest.warns(PoetWarning),
        pytest.raises(InputError, match=r"'net/rescaling/add:0' \(1x4, may be a parameter") as refused,
    ):
        poet_onnx.train_graph(made(nodes, weights, [2, 4], "tf2onnx"))
    assert "\n" not in str(refused.value)


def recurrent(operator: str, bias: Any, writer: str) -> onnx.ModelProto:
    """Return a model with a recurrent layer that starts from zeros."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    weights = {"W0": RANDOM.normal(size=(1, gates * 5, 4)), "R0": RANDOM.normal(size=(1, gates * 5, 5)), "B0": bias}
    weights |= {"net/head/Cast/ReadVariableOp:0": RANDOM.normal(size=(5, 3)), "start": np.zeros((1, 2, 5))}
    weights["bias"] = RANDOM.normal(size=3)
    nodes = [
        helper.make_node(operator, ["x", "W0", "R0", "B0", "", "start"], ["", "last"], hidden_size=5),
        helper.make_node("Squeeze", ["last", "axes"], ["h"]),
        helper.make_node("Gemm", ["h", "net/head/Cast/ReadVariableOp:0", "bias"], ["scores"]),
    ]
    return made([helper.make_node("Constant", [], ["axes"], value_ints=[0]), *nodes], weights, [6, 2, 4], writer)


@pytest.mark.parametrize(
    ("operator", "first", "second", "writer", "trained"),
    [
        ("LSTM", 1.0, 0.0, "tf2onnx", 20),
        ("LSTM", 0.0, 0.0, "tf2onnx", 20),
        ("RNN", 0.0, 0.0, "tf2onnx", 5),
        ("GRU", 1.0, 0.0, "tf2onnx", 15),
        ("GRU", 0.0, 0.0, "tf2onnx", 30),  # one that has two, as Keras's with reset_after
        ("LSTM", 1.0, 0.0, "", 20),
        ("LSTM", 0.0, 0.0, "", 40),
        ("LSTM", 1.0, 2.0, "tf2onnx", 40),
        ("LSTM", 1.0, 0.0, "pytorch", 40),
    ],
)
def test_one_bias_of_a_recurrent_layer_trains_where_the_framework_has_one(
    operator: str, first: float, second: float, writer: str, trained: int
) -> None:
    size = {"LSTM": 20, "GRU": 15, "RNN": 5}[operator]
    bias = np.repeat([first, second], size)[None]
    is_told = (writer, first) == ("tf2onnx", 0.0)  # Keras may have none
    with pytest.warns(PoetWarning, match="'B0' is a recurrent layer's bias of zeros") if is_told else nullcontext():
        found = poet_onnx.train_graph(recurrent(operator, bias, writer), freeze="start" if writer == "pytorch" else ())
    assert found.values["B0"].size == trained
    assert np.array_equal(found.values["B0"], bias[:, :trained].astype(np.float32))
    assert "start" not in found.values


def test_what_tensorflow_left_out_or_folded_is_told() -> None:
    folded, head = "net/conv/convolution/merged_input:0", "net/head/Cast/ReadVariableOp:0"
    weights = {folded: RANDOM.normal(size=(4, 2, 1)), "net/bn/batchnorm/sub:0": RANDOM.normal(size=4)}
    weights |= {"const_fold_opt__3": RANDOM.normal(size=(2, 1, 1)), head: RANDOM.normal(size=(4, 3))}
    nodes = [
        helper.make_node("Conv", ["x", "const_fold_opt__3"], ["part"], group=2),
        helper.make_node("Conv", ["part", folded, "net/bn/batchnorm/sub:0"], ["h"]),
        helper.make_node("ReduceMax", ["h"], ["pooled"], axes=[-1], keepdims=0),
        helper.make_node("MatMul", ["pooled", head], ["scores"]),
    ]
    with pytest.warns(PoetWarning):
        found = poet_onnx.train_graph(made(nodes, weights, [2, 2, 7], "tf2onnx")).warnings
    assert len(found) == 2
    assert f"'{folded}' and 1 more was" in found[0]
    assert "folds batch normalizations for inference" in found[0]
    assert found[1].startswith(f"No bias is trained beside '{head}', for TensorFlow")
    assert not poet_onnx.train_graph(made(nodes, weights, [2, 2, 7], "another")).warnings


def test_what_tf2onnx_folded_into_a_convolution_is_told_and_variables_of_a_layer_normalization_are_not() -> None:
    weights = {"net/Conv2D_weights_fused_bn": RANDOM.normal(size=(4, 2, 1)), "net/Conv2D_bias_fused_bn": np.ones(4)}
    weights |= {"net/norm/batchnorm/mul/ReadVariableOp:0": RANDOM.normal(size=4)}
    weights |= {"net/head/MatMul/ReadVariableOp:0": RANDOM.normal(size=(4, 3)), "net/head/add/ReadVariableOp:0": [1.0]}
    weight, bias, scale, head, shift = weights
    nodes = [
        helper.make_node("Conv", ["x", weight, bias], ["h"]),
        helper.make_node("ReduceMax", ["h"], ["pooled"], axes=[-1], keepdims=0),
        helper.make_node("Mul", ["pooled", scale], ["scaled"]),
        helper.make_node("MatMul", ["scaled", head], ["product"]),
        helper.make_node("Add", ["product", shift], ["scores"]),
    ]
    with pytest.warns(PoetWarning, match="folds batch normalizations for inference"):
        found = poet_onnx.train_graph(made(nodes, weights, [2, 2, 7], "tf2onnx"))
    assert set(found.values) == set(weights)
    assert len(found.warnings) == 1
    assert f"'{weight}' and 1 more was" in found.warnings[0]


def test_what_tensorflow_computed_of_variables_is_told_where_it_trains() -> None:
    weights = {"net/scaled/mul:0": WEIGHT, "net/rnn/BiasAdd:0": RANDOM.normal(size=(2, 6))}
    weights |= {"net/transform/MatMul/b:0": RANDOM.normal(size=(6, 6)), "net/head/ReadVariableOp:0": HEAD}
    weights |= {"net/head/BiasAdd/ReadVariableOp:0": RANDOM.normal(size=3)}
    scaled, added, number, head, bias = weights
    nodes = [
        helper.make_node("Gemm", ["x", scaled, added], ["h"]),
        helper.make_node("MatMul", ["h", number], ["moved"]),
        helper.make_node("Gemm", ["moved", head, bias], ["scores"]),
    ]
    with pytest.warns(PoetWarning, match=f"TensorFlow computed '{scaled}', '{added}' before"):
        found = poet_onnx.train_graph(made(nodes, weights, [2, 4], "tf2onnx"))
    assert set(found.values) == set(weights) - {number}


def test_a_table_that_tf2onnx_turned_for_the_scores_is_one() -> None:
    table = RANDOM.normal(size=(4, 3))
    weights = {"net/encode/ReadVariableOp:0": table.T, "const_fold_opt__7": table}
    nodes = [
        helper.make_node("Gemm", ["x", "net/encode/ReadVariableOp:0"], ["h"], transB=0),
        helper.make_node("MatMul", ["h", "const_fold_opt__7"], ["scores"]),
    ]
    with pytest.warns(PoetWarning, match="No bias is trained beside"):
        found = poet_onnx.train_graph(made(nodes, weights, [2, 3], "tf2onnx"))
    assert found.tied == (("const_fold_opt__7", "net/encode/ReadVariableOp:0"),)


def test_equal_biases_that_tf2onnx_merged_are_parted_and_other_tensors_told() -> None:
    first, second, head = (f"net/{name}/Cast/ReadVariableOp:0" for name in ("first", "second", "head"))
    bias, scale = "net/second/BiasAdd/ReadVariableOp:0", "net/norm/Reshape:0"
    square = RANDOM.normal(size=(4, 4))
    weights = {first: square, second: -square, head: HEAD[:4], bias: np.full(4, 0.5), scale: np.full(4, 1.5)}
    nodes = [
        helper.make_node("MatMul", ["x", first], ["a"]),
        helper.make_node("Add", ["a", bias], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", second], ["d"]),
        helper.make_node("Add", [bias, "d"], ["e"]),
        helper.make_node("MatMul", ["e", second], ["f"]),  # the same layer again
        helper.make_node("Add", ["f", bias], ["g"]),
        helper.make_node("Mul", ["g", scale], ["h"]),
        helper.make_node("Tanh", ["h"], ["i"]),
        helper.make_node("Mul", ["i", scale], ["j"]),
        helper.make_node("MatMul", ["j", head], ["k"]),
        helper.make_node("Add", ["k", "net/head/BiasAdd/ReadVariableOp:0"], ["scores"]),
    ]
    weights["net/head/BiasAdd/ReadVariableOp:0"] = RANDOM.normal(size=3)
    with pytest.warns(PoetWarning):
        found = poet_onnx.train_graph(made(nodes, weights, [2, 4], "tf2onnx"))
    assert set(found.values) == {*weights, f"{bias}/1"}
    assert np.array_equal(found.values[f"{bias}/1"], found.values[bias])
    parted, merged = found.warnings
    assert f"merged parameters of equal numbers into '{bias}'" in parted
    assert merged.startswith(f"'{scale}' is read at several places and trained as one")


def test_a_bias_behind_what_turns_a_product_is_seen() -> None:
    weights = {
        "net/dense/Cast/ReadVariableOp:0": WEIGHT[:, :3],
        "net/dense/BiasAdd/ReadVariableOp:0": np.full(3, 1e-30),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "net/dense/Cast/ReadVariableOp:0"], ["product"]),
        helper.make_node("Transpose", ["product"], ["turned"], perm=[0, 1]),
        helper.make_node("Add", ["net/dense/BiasAdd/ReadVariableOp:0", "turned"], ["scores"]),
    ]
    found = poet_onnx.train_graph(made(nodes, weights, [2, 4], "tf2onnx"))
    assert not found.warnings
    assert set(found.values) == set(weights)


def test_shapes_that_jax2onnx_declares_before_a_transposition_are_forgotten() -> None:
    weights = {"kernel_oih_0": RANDOM.normal(size=(4, 2, 1)), "const_1": RANDOM.normal(size=(4, 3))}
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["turned", "kernel_oih_0"], ["product"]),
        helper.make_node("Relu", ["product"], ["relu_out_0"]),
        helper.make_node("ReduceMax", ["relu_out_0"], ["pooled"], axes=[-1], keepdims=0),
        helper.make_node("MatMul", ["pooled", "const_1"], ["scores"]),
    ]
    for writer, message in (("jax2onnx", ""), ("another", "is declared as")):
        model = made(nodes, weights, [2, 7, 2], writer)
        model.graph.value_info.append(helper.make_tensor_value_info("relu_out_0", TensorProto.FLOAT, [2, 7, 4]))
        if message:
            with pytest.raises(InputError, match=message):
                poet_onnx.train_graph(model)
        else:
            assert set(poet_onnx.train_graph(model).values) == set(weights)
        assert [each.dim_value for each in model.graph.value_info[0].type.tensor_type.shape.dim] == [2, 7, 4]
