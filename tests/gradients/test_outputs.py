"""What a model returns as it got it, and what is chosen of scores, is no output of the graphs that are made of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from forward_models import parse, random
from onnx import helper

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning


@pytest.mark.parametrize(("name", "kind"), [("x", "float[4, 3]"), ("w", "float[3, 5]")])
def test_an_input_or_a_weight_that_a_model_returns_is_left_out(name: str, kind: str, tmp_path: Path) -> None:
    model = parse(f"g (float[4, 3] x) => (float[4, 5] y, {kind} {name}) {{ y = MatMul(x, w) }}", {"w": random(3, 5)})
    path = tmp_path / "net.onnx"
    with pytest.warns(PoetWarning, match=f"returns '{name}' as it is, .*: evaluation and exported models leave it out"):
        result = poet_onnx.rewrite(model, loss="mse", train="w", device="host", target="stock", optimizer="sgd")
    result.save(path)
    session = poet_onnx.TrainingSession(path, path.with_suffix(".safetensors"), eval_model=tmp_path / "net.eval.onnx")
    session.step(random(4, 3), random(4, 5))
    session.export_inference_model(tmp_path / "out.onnx")
    assert [value.name for value in onnx.load(tmp_path / "out.onnx").graph.output] == ["y"]


def test_a_label_that_a_classifier_chooses_is_left_out(tmp_path: Path) -> None:
    """As of skl2onnx's MLPClassifier: no shape of ArrayFeatureExtractor is known, and none is needed."""
    text = "g (float[4, 3] x) => (float[4, 5] p) { s = MatMul(x, w) p = Softmax(s) }"
    model = ir.to_proto(parse(text, {"w": random(3, 5)}))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(5, dtype=np.int64), "classes"))
    chosen = [
        helper.make_node("ArgMax", ["p"], ["place"], axis=1),
        helper.make_node("ArrayFeatureExtractor", ["classes", "place"], ["label"], domain="ai.onnx.ml"),
    ]
    model.graph.node.extend(chosen)
    model.graph.output.insert(0, helper.make_tensor_value_info("label", onnx.TensorProto.INT64, [1, 4]))
    with pytest.warns(PoetWarning, match=r"Operators of ai.onnx.ml make 'label' of the other outputs"):
        result = poet_onnx.rewrite(model, loss="cross-entropy:s", device="host", target="stock", optimizer="sgd")
    path = result.save(tmp_path / "net.onnx")[0]
    session = poet_onnx.TrainingSession(path, path.with_suffix(".safetensors"), eval_model=tmp_path / "net.eval.onnx")
    session.step(random(4, 3), np.arange(4))
    session.export_inference_model(tmp_path / "out.onnx")
    assert [value.name for value in onnx.load(tmp_path / "out.onnx").graph.output] == ["p"]


def test_what_the_loss_reads_stays_where_only_a_label_was_made_of_it() -> None:
    text = "g (float[4, 3] x) => (float[4, 5] p) { s = MatMul(x, w) p = MatMul(x, v) }"
    model = ir.to_proto(parse(text, {"w": random(3, 5), "v": random(3, 5)}))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(5, dtype=np.int64), "classes"))
    model.graph.node.append(helper.make_node("ArgMax", ["s"], ["place"], axis=1))
    model.graph.node.append(
        helper.make_node("ArrayFeatureExtractor", ["classes", "place"], ["label"], domain="ai.onnx.ml")
    )
    model.graph.output.append(helper.make_tensor_value_info("label", onnx.TensorProto.INT64, [1, 4]))
    with pytest.warns(PoetWarning, match=r"make 'label' of the other outputs"):
        made = poet_onnx.train_graph(model, loss="cross-entropy:s")
    assert list(made.values) == ["w"]
    assert not {"ArgMax", "ArrayFeatureExtractor"}.intersection(node.op_type for node in made.training.graph)


def test_a_step_computes_no_output_that_the_loss_does_not_read(tmp_path: Path) -> None:
    text = """g (float[4, 3] x) => (float[4, 5] s, float[4, 5] p, float[4, 5] more)
        { h = MatMul(x, w) s = Relu(h) p = Softmax(s) twice = Mul(s, two) more = Tanh(twice) }"""
    model = ir.to_proto(parse(text, {"w": random(3, 5), "two": np.array([2], np.float32)}))
    result = poet_onnx.rewrite(model, loss="cross-entropy:s", device="host", target="stock", train=["w"])
    assert not {"Softmax", "Mul", "Tanh"}.intersection(node.op_type for node in result.model.graph)
    path = result.save(tmp_path / "net.onnx")[0]
    session = poet_onnx.TrainingSession(path, path.with_suffix(".safetensors"), eval_model=tmp_path / "net.eval.onnx")
    session.step(random(4, 3), np.arange(4))
    session.export_inference_model(tmp_path / "out.onnx")
    assert [value.name for value in onnx.load(tmp_path / "out.onnx").graph.output] == ["s", "p", "more"]


def test_a_large_constant_of_an_output_stays_one_that_step_and_evaluation_share() -> None:
    text = """g (float[4, 3] x) => (float[4, 3] s, float[4, 900] more)
        { s = MatMul(x, w) far = MatMul(s, wide) more = Tanh(far) }"""
    model = ir.to_proto(parse(text, {"w": random(3, 3), "wide": random(3, 900)}))
    made = poet_onnx.train_graph(model, loss="cross-entropy:s", train=["w"])
    assert "wide" in made.training.graph.initializers
    assert "Tanh" not in {node.op_type for node in made.training.graph}


def test_a_weight_that_a_product_reads_transposed_stays_with_its_product() -> None:
    text = """g (float[4, 3] x) => (float[4, 3] s, float[4, 900] more)
        { s = MatMul(x, w) turned = Transpose <perm = [1, 0]> (wide) far = MatMul(s, turned) more = Tanh(far) }"""
    model = ir.to_proto(parse(text, {"w": random(3, 3), "wide": random(900, 3)}))
    made = poet_onnx.train_graph(model, loss="cross-entropy:s", train=["w"])
    assert "far" in {node.outputs[0].name for node in made.training.graph}
    assert "Tanh" not in {node.op_type for node in made.training.graph}


def test_statistics_of_a_batch_move_where_nobody_reads_what_it_is_normalized_to() -> None:
    text = """g (float[8, 3] x) => (float[8, 5] s, float[8, 5] p)
        { s = MatMul(x, w) n = BatchNormalization(s, one, nil, mean, var) p = Softmax(n) }"""
    numbers = {"w": random(3, 5), "one": np.ones(5, np.float32), "nil": np.zeros(5, np.float32)}
    numbers |= {"mean": np.zeros(5, np.float32), "var": np.ones(5, np.float32)}
    model = ir.to_proto(parse(text, numbers))
    made = poet_onnx.train_graph(model, loss="cross-entropy:s", train=["w"], frozen_batch_norm="none")
    found = [node.op_type for node in made.training.graph]
    assert "BatchNormInternal" in found
    assert "Softmax" not in found


def test_numbers_in_attributes_are_not_trained() -> None:
    node = helper.make_node(
        *("LinearClassifier", ["x"], ["label", "scores"]),
        domain="ai.onnx.ml",
        coefficients=[0.1] * 12,
        intercepts=[0.0] * 3,
        classlabels_ints=[0, 1, 2],
    )
    made = [("label", onnx.TensorProto.INT64, [4]), ("scores", onnx.TensorProto.FLOAT, [4, 3])]
    given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 4])]
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info(*each) for each in made])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    with pytest.raises(InputError, match="LinearClassifier have their numbers in attributes, which have no gradients"):
        poet_onnx.rewrite(model, loss="cross-entropy:scores", device="host", target="stock")
