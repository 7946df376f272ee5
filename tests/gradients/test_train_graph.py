"""From a forward model to training: `train_graph`, its losses and parameters, and `poet-onnx train-graph`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from cli_runs import Cli
from forward_models import LINEAR, NORM_ARRAYS, linear, normalized, parse, random, step
from gradient_models import export
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning


def exported_in_eval_mode(module: torch.nn.Module, path: Path) -> Path:
    """Export as torch's legacy exporter does it by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (torch.ones(2, 4),), str(path), dynamo=False, opset_version=17)
    return path


def test_parameters_that_an_exporter_merged_because_they_were_equal_are_trained_apart(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4), torch.nn.Tanh())
    torch.nn.init.zeros_(module[0].bias)
    torch.nn.init.zeros_(module[2].bias)
    path = exported_in_eval_mode(module, tmp_path / "forward.onnx")
    assert len(onnx.load(path).graph.initializer) == 4
    with pytest.warns(PoetWarning, match="of equal numbers into '0.bias': each"):
        made = poet_onnx.train_graph(path, loss="mse")
    assert dict(made.values).keys() == dict(module.named_parameters()).keys()
    x, target = random(2, 4), random(2, 4)
    _, gradients = step(made, **{made.training.graph.inputs[0].name or "": x, "target": target})
    functional.mse_loss(module(torch.from_numpy(x)), torch.from_numpy(target)).backward()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_tied_parameters_stay_one_in_a_module_exported_in_eval_mode(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    module[2].weight = module[0].weight
    made = poet_onnx.train_graph(exported_in_eval_mode(module, tmp_path / "forward.onnx"), loss="mse")
    assert made.values.keys() == {"0.weight", "0.bias", "2.bias"}


@pytest.mark.parametrize(
    ("loss", "options", "function"),
    [
        ("cross-entropy", {}, functional.cross_entropy),
        ("cross-entropy", {"ignore_index": 2}, lambda y, t: functional.cross_entropy(y, t, ignore_index=2)),
        ("cross-entropy", {"label_smoothing": 0.1}, lambda y, t: functional.cross_entropy(y, t, label_smoothing=0.1)),
        (
            "cross-entropy",
            {"label_smoothing": 0.2, "ignore_index": 2},
            lambda y, t: functional.cross_entropy(y, t, label_smoothing=0.2, ignore_index=2),
        ),
        ("mse", {}, functional.mse_loss),
        ("l1:y", {}, functional.l1_loss),
        ("bce-logits", {}, functional.binary_cross_entropy_with_logits),
    ],
)
def test_losses_are_those_of_torch(loss: str, options: dict[str, Any], function: Callable[..., torch.Tensor]) -> None:
    made = poet_onnx.train_graph(linear(), loss=loss, **options)
    x, w = random(4, 3), made.values["w"]
    labels = (
        np.array([0, 2, 4, 1]) if loss == "cross-entropy" else np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)
    )
    name = "labels" if loss == "cross-entropy" else "target"
    found, gradients = step(made, x=x, **{name: labels})
    leaf = torch.tensor(w, requires_grad=True)
    expected = function(torch.tensor(x) @ leaf, torch.tensor(labels))
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    assert leaf.grad is not None
    np.testing.assert_allclose(gradients["w"], leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_loss_that_the_model_computes_is_taken_as_it_is() -> None:
    text = "g (float[4, 3] x) => (float[4, 5] y, float own) { y = MatMul(x, w)\n own = ReduceMean <keepdims = 0> (y) }"
    made = poet_onnx.train_graph(parse(text, {"w": random(3, 5)}), loss="output:own")
    assert made.loss == "own"
    assert [value.name for value in made.evaluation.graph.outputs] == ["own", "y"]
    assert [value.name for value in made.training.graph.inputs][:2] == ["x", "w"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "There is no loss 'hinge'"),
        ({"loss": "mse:z"}, "no output 'z'"),
        ({"loss": "output"}, "Name the output"),
        ({"loss": "mse", "ignore_index": 1}, "no labels to ignore"),
        ({"label_smoothing": 1.0}, "cannot be 1.0"),
        ({"train": "v*"}, r"No parameter is named 'v\*', which train names"),
        ({"freeze": ["w"]}, "Nothing is left to train"),
        ({"dims": {"batch": 8}}, "no dimension named 'batch'"),
        ({"frozen_batch_norm": "bn*"}, "No batch normalization"),
    ],
)
def test_refusals_say_what_is_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        poet_onnx.train_graph(linear(), **options)


def test_a_chosen_parameter_that_no_gradient_reaches_is_warned_of() -> None:
    text = """g (float[4, 3] x) => (float[4, 5] y, float[4, 2] aside) {
        y = MatMul(x, w)
        aside = MatMul(x, v)
    }"""
    model = parse(text, {"w": random(3, 5), "v": random(3, 2)})
    with pytest.warns(poet_onnx.PoetWarning, match="leads to 'v': not trained"):
        made = poet_onnx.train_graph(model, loss="mse", train=["w", "v"])
    assert set(made.values) == {"w"}
    with pytest.raises(InputError, match="leads to 'v': train others"):
        poet_onnx.train_graph(model, loss="mse", train="v")


def test_control_flow_and_quantized_operators_are_refused_together() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        y = If (c) <
            then_branch = a () => (float[4] p) { p = Neg(d) },
            else_branch = b () => (float[4] r) { r = Abs(d) }
        >
    }"""
    arrays = {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}
    with pytest.raises(InputError, match=r"DequantizeLinear in .*; If in .*; QuantizeLinear in"):
        poet_onnx.train_graph(parse(text, arrays), loss="mse")


def test_weights_in_constant_nodes_are_parameters() -> None:
    proto = ir.to_proto(linear())
    weight = proto.graph.initializer.pop()
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=weight))
    made = poet_onnx.train_graph(proto, loss="mse")
    np.testing.assert_array_equal(made.values["w"], random(3, 5))


@pytest.mark.parametrize("identities", [False, True])
def test_a_bias_beside_a_weight_in_constant_nodes_is_one(identities: bool) -> None:
    body = "h = MatMul(x, w)\ny = Add(h, b)\nz = Add(y, shift)"
    if identities:
        body = "wi = Identity(w)\nbi = Identity(b)\nh = MatMul(x, wi)\ny = Add(h, bi)\nz = Add(y, shift)"
    proto = ir.to_proto(parse(f"g (float[4, 3] x) => (float[4, 5] z) {{ {body} }}", {}))
    for name, array in {"w": random(3, 5), "b": random(5), "shift": random(1)}.items():
        tensor = onnx.numpy_helper.from_array(array, name)
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], [name], value=tensor))
    assert set(poet_onnx.train_graph(proto, loss="mse").values) == {"w", "b"}
    assert set(poet_onnx.train_graph(proto, loss="mse", train="b").values) == {"b"}
    assert set(poet_onnx.train_graph(proto, loss="mse", train=["w", "shift"]).values) == {"w", "shift"}


@pytest.mark.parametrize("ratio", [0.0, 0.8])
def test_a_dropout_for_inference_scales_no_gradient_where_its_mask_is_read(ratio: float) -> None:
    text = """g (float[4, 3] x) => (float[4, 5] y) {
        h = MatMul(x, w)
        d, mask = Dropout(h, ratio)
        m = Cast <to = 1> (mask)
        y = Mul(d, m)
    }"""
    x, target, w = random(4, 3), random(4, 5), random(3, 5)
    model = parse(text, {"w": w, "ratio": np.array(ratio, np.float32)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoetWarning)  # of the dropout, which drops nothing
        made = poet_onnx.train_graph(model, loss="mse", train="w")
    _, gradients = step(made, x=x, target=target)
    np.testing.assert_allclose(gradients["w"], x.T @ (x @ w - target) * 2 / target.size, rtol=1e-4, atol=1e-6)


def test_an_operator_that_onnx_runtime_takes_for_another_function_is_refused() -> None:
    text = "g (float[4, 3] x) => (float[4, 5] y) { h = MatMul(x, w)\n y = Celu <alpha = -2.0> (h) }"
    with pytest.raises(InputError, match="Celu 'y' has a negative alpha"):
        poet_onnx.train_graph(parse(text, {"w": random(3, 5)}), loss="mse")


def test_a_copy_that_the_exporter_transposed_is_trained_with_its_original() -> None:
    text = """g (int64[4] x) => (float[4, 6] y) {
        h = Gather(embedding, x)
        y = MatMul(h, "onnx::MatMul_7")
    }"""
    table = random(6, 3)
    made = poet_onnx.train_graph(
        parse(text.replace('"onnx::MatMul_7"', "val_7"), {"embedding": table, "val_7": table.T})
    )
    assert list(made.values) == ["embedding"]
    assert made.tied == (("val_7", "embedding"),)
    x, labels = np.array([0, 2, 2, 5]), np.array([1, 2, 3, 4])
    _, gradients = step(made, x=x, labels=labels)
    leaf = torch.tensor(table, requires_grad=True)
    functional.cross_entropy(leaf[torch.tensor(x)] @ leaf.T, torch.tensor(labels)).backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(gradients["embedding"], leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_masks_and_numbers_of_the_exporter_are_not_trained() -> None:
    text = """g (float[4, 3] x) => (float[4, 5] y) {
        h = MatMul(x, w)
        i = Add(h, mask)
        y = Mul(i, val_3)
    }"""
    arrays = {"w": random(3, 5), "mask": np.full(5, -1e4, np.float32), "val_3": np.array(0.5, np.float32)}
    made = poet_onnx.train_graph(parse(text, arrays))
    assert (list(made.values), made.frozen) == (["w"], ("mask", "val_3"))


@pytest.mark.parametrize(
    ("exported", "frozen", "operator"),
    [
        (1, "auto", "BatchNormalizationGrad"),
        (0, "none", "BatchNormalizationGrad"),
        (1, "all", None),
        (1, "norm_*", None),
    ],
)
def test_batch_normalizations_train_or_keep_to_their_statistics(
    exported: int, frozen: str, operator: str | None
) -> None:
    made = poet_onnx.train_graph(normalized(exported), loss="mse", frozen_batch_norm=frozen)
    found = [node.op_type for node in made.training.graph if node.op_type.startswith("BatchNorm")]
    assert found == (["BatchNormInternal", operator] if operator else ["BatchNormalization"])
    assert sorted(made.values) == ["norm_bias", "norm_scale", "w"]
    x, target = random(4, 3, 2, 2), random(4, 3, 2, 2)[::-1].copy()
    _, gradients = step(made, x=x, target=target)
    leaves = {name: torch.tensor(made.values[name], requires_grad=True) for name in made.values}
    statistics = None if operator else torch.zeros(3), None if operator else torch.ones(3)
    y = functional.batch_norm(
        torch.tensor(x), *statistics, leaves["norm_scale"], leaves["norm_bias"], training=operator is not None
    )
    functional.mse_loss(y * leaves["w"], torch.tensor(target)).backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        np.testing.assert_allclose(gradients[name], leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


def old_normalization() -> onnx.ModelProto:
    """Return a model as exporters wrote it in 2018: opset 6, and all initializers are inputs."""
    names = ("norm_scale", "norm_bias", "mean", "variance")
    nodes = [
        onnx.helper.make_node("BatchNormalization", ["x", *names], ["h"], is_test=1),
        onnx.helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1, broadcast=1),
    ]
    nodes.insert(1, onnx.helper.make_node("Flatten", ["h"], ["f"]))
    arrays = {name: NORM_ARRAYS[name] for name in names} | {"w": random(5, 12), "b": random(5)}
    inputs = {"x": (4, 3, 2, 2)} | {name: array.shape for name, array in arrays.items()}
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()],
        [onnx.helper.make_tensor_value_info("y", 1, (4, 5))],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 6)], ir_version=3)


def test_a_model_of_an_old_opset_is_raised_and_its_weights_are_no_inputs() -> None:
    with pytest.warns(PoetWarning, match="exported for inference"):
        made = poet_onnx.train_graph(old_normalization())
    assert made.training.opset_imports[""] == 17
    assert sorted(made.values) == ["b", "norm_bias", "norm_scale", "w"]
    assert not {"mean", "variance"} & {each.name for each in made.training.graph.inputs}
    feeds = {"x": random(4, 3, 2, 2), "labels": np.array([0, 1, 2, 3])}
    loss, gradients = step(made, **feeds)
    flat, labels = torch.tensor(feeds["x"] / np.sqrt(np.float32(1 + 1e-5))).flatten(1), torch.tensor(feeds["labels"])
    weight = torch.tensor(made.values["w"], requires_grad=True)
    expected = functional.cross_entropy(flat @ weight.T + torch.tensor(made.values["b"]), labels)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert weight.grad is not None
    np.testing.assert_allclose(gradients["w"], weight.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_batch_normalization_exported_for_inference_is_warned_of() -> None:
    with pytest.warns(PoetWarning, match="was exported for inference and keeps to its running statistics"):
        poet_onnx.train_graph(normalized(0), loss="mse")


def test_a_vector_of_several_normalizations_is_warned_of() -> None:
    text = """g (float[4, 3] x) => (float[4, 3] y) {
        h = LayerNormalization(x, ones, w)
        y = LayerNormalization(h, ones, w)
    }"""
    model = parse(text, {"ones": np.ones(3, np.float32), "w": random(3)})
    model.opset_imports[""] = 17
    with pytest.warns(PoetWarning, match="'ones' belongs to 2 normalizations"):
        made = poet_onnx.train_graph(model, loss="mse")
    assert sorted(made.values) == ["ones", "w"]


@pytest.fixture
def forward(tmp_path: Path) -> Path:
    """Return the file of a small perceptron without a loss."""
    path = tmp_path / "forward.onnx"
    onnx.save(export("mlp-mse")[0], path)
    return path


def test_the_command_writes_what_training_takes(cli: Cli, forward: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    done = cli("train-graph", forward, "-o", folder, "--loss", "mse", "--freeze", "0.*")
    assert (done.code, done.err) == (0, "")
    assert "6 parameters are trained for 'loss'" in done.out
    assert "not trained: 0.weight, 0.bias" in done.out
    session = poet_onnx.TrainingSession(
        folder / "training_model.onnx",
        folder / "parameters.safetensors",
        eval_model=folder / "eval_model.onnx",
        optimizer=poet_onnx.SGD(learning_rate=0.1),
    )
    batch = {"input": random(1, 32), "target": random(1, 8)}
    losses = [session.step(batch) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    session.eval()
    assert session.step(batch) < losses[-1]
    session.export_inference_model(tmp_path / "inference.onnx")
    inference = onnx.load(tmp_path / "inference.onnx")
    assert [value.name for value in inference.graph.output] == ["output"]


def test_existing_files_stay_unless_they_may_be_replaced(cli: Cli, forward: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "eval_model.onnx").write_text("mine")
    refused = cli("train-graph", forward, "-o", folder, "--loss", "mse")
    assert (refused.code, [path.name for path in folder.iterdir()]) == (2, ["eval_model.onnx"])
    assert refused.err.startswith(f"error: --output {folder / 'eval_model.onnx'} exists; give --force"), refused.err
    assert cli("train-graph", forward, "-o", folder, "--loss", "mse", "--force").code == 0
    assert len(list(folder.iterdir())) == 3


def test_an_error_leaves_no_folder_and_names_the_way_out(cli: Cli, tmp_path: Path) -> None:
    path, folder = tmp_path / "open.onnx", tmp_path / "made"
    ir.save(parse(LINEAR.replace("[4,", "[batch,"), {"w": random(3, 5)}), path)
    refused = cli("train-graph", path, "-o", folder)
    assert (refused.code, folder.exists()) == (2, False)
    assert "--dim batch=8" in refused.err
    done = cli("train-graph", path, "-o", folder, "--dim", "batch=8", "--json")
    assert json.loads(done.out)["trained"] == {"w": [3, 5]}
    labels = {value.name: value.shape for value in ir.load(folder / "training_model.onnx").graph.inputs}["labels"]
    assert list(labels or ()) == [8]


def test_a_training_graph_is_not_differentiated_again(cli: Cli, forward: Path, tmp_path: Path) -> None:
    assert cli("train-graph", forward, "-o", tmp_path / "made", "--loss", "mse").code == 0
    again = cli("train-graph", tmp_path / "made" / "training_model.onnx", "-o", tmp_path / "again")
    assert (again.code, "computes gradients already" in again.err) == (2, True)


def test_dilated_windows_that_keep_the_size_are_evaluated_too(tmp_path: Path) -> None:
    """ONNX Runtime has no kernel for them where the padding is automatic, as torch's legacy exporter writes it."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[1,2,9] x) => (float[1,3,9] y)'
        ' { y = Conv <auto_pad = "SAME_UPPER", dilations = [2], kernel_shape = [4]> (x, weight) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(random(3, 2, 4), "weight"))
    path = tmp_path / "net.onnx"
    poet_onnx.rewrite(model, loss="mse", device="host", target="stock", optimizer="sgd").save(path)
    session = poet_onnx.TrainingSession(path, path.with_suffix(".safetensors"), eval_model=tmp_path / "net.eval.onnx")
    batch = random(1, 2, 9), np.zeros((1, 3, 9), np.float32)
    session.eval()
    loss = session.step(*batch)
    session.export_inference_model(tmp_path / "trained.onnx")
    (y,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": batch[0]})
    assert loss == pytest.approx(np.square(y).mean(), rel=1e-5)
    session.train()
    assert session.step(*batch) == loss
