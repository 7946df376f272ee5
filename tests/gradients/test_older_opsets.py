"""Forward models of opsets before 13, in which operators meant something else, train as in torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from forward_models import random, step
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import InputError

ARRAYS = {"weight": random(4, 3, 3, 3), "last": random(256, 5), "scales": np.array([1, 1, 2, 2], np.float32)}
BODY = """{
    c = Conv (x, weight)
    r = Relu (c)
    u = Upsample <mode = "nearest"> (r, scales)
    p = Pad <pads = [0, 0, 1, 1, 0, 0, 1, 1]> (u)
    s = Softmax <axis = 1> (p)
    f = Flatten (s)
    y = MatMul (f, last)
}"""
NORMALIZED = "{ y, mean, variance, saved, sums = BatchNormalization (x, scale, bias, old_mean, old_variance) }"


def older(ir_version: int) -> onnx.ModelProto:
    """Return a network of opset 9; up to IR version 3 its weights are inputs, too."""
    inputs = "float[2,3,5,5] x"
    if ir_version < 4:
        sizes = {name: ",".join(map(str, array.shape)) for name, array in ARRAYS.items()}
        inputs += "".join(f", float[{size}] {name}" for name, size in sizes.items())
    text = f'<ir_version: {ir_version}, opset_import: ["" : 9]> net ({inputs}) => (float[2,5] y) {BODY}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in ARRAYS.items())
    return model


@pytest.mark.parametrize("ir_version", [3, 8])
def test_the_loss_and_the_gradients_are_torchs(ir_version: int) -> None:
    made = poet_onnx.train_graph(older(ir_version))
    assert made.warnings == ()
    images, labels = random(2, 3, 5, 5), np.array([1, 4])
    loss, gradients = step(made, x=images, labels=labels)
    weight, last = (torch.tensor(ARRAYS[name], requires_grad=True) for name in ("weight", "last"))
    hidden = functional.conv2d(torch.from_numpy(images), weight).relu()
    hidden = functional.pad(functional.interpolate(hidden, scale_factor=2), (1, 1, 1, 1))
    right = functional.cross_entropy(hidden.flatten(1).softmax(1) @ last, torch.from_numpy(labels))
    right.backward()
    assert loss == pytest.approx(right.item(), rel=1e-6)
    assert gradients.keys() == {"weight", "last"}
    for name, parameter in (("weight", weight), ("last", last)):
        assert parameter.grad is not None
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-7)


SCALES = {"scales": [1, 1, 1.5, 2], "small": [1, 1, 0.75, 1], "mixed": [1, 1, 1.5, 0.75]}


def resized(opset: int, body: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> net (float[1,3,4,4] x) => (float[a,b,c,d] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    arrays = {"weight": random(3, 3, 1, 1)} | {name: np.array(each, np.float32) for name, each in SCALES.items()}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if f", {name})" in body
    )
    return model


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        (10, 'h = Conv (x, weight) y = Resize <mode = "linear"> (h, scales)'),
        (9, 'h = Conv (x, weight) y = Upsample <mode = "linear"> (h, scales)'),
        (10, 'h = Conv (x, weight) y = Resize <mode = "nearest"> (h, scales)'),
        (10, 'h = Conv (x, weight) y = Resize <mode = "nearest"> (h, small)'),
        (11, "h = Conv (x, weight) c = Hardmax (h) y = Mul (h, c)"),
        (11, "h = Conv (x, weight) c = Hardmax <axis = 2> (h) y = Mul (h, c)"),
    ],
)
def test_what_newer_operators_do_otherwise_is_computed_as_onnxruntime_does(opset: int, body: str) -> None:
    model, x = resized(opset, body), random(1, 3, 4, 4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    (y,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    made = poet_onnx.train_graph(model, loss="mse", train="weight")
    loss, _ = step(made, x=x, target=np.zeros_like(y))
    assert loss == pytest.approx(float(np.mean(np.square(y))), rel=1e-5)


def test_a_resize_that_no_newer_one_does_is_refused() -> None:
    model = resized(10, 'h = Conv (x, weight) y = Resize <mode = "nearest"> (h, mixed)')
    with pytest.raises(InputError, match="makes one size larger and another one smaller"):
        poet_onnx.train_graph(model, loss="mse", train="weight")


def test_weights_in_another_file_come_along(tmp_path: Path) -> None:
    onnx.save(older(8), tmp_path / "old.onnx", save_as_external_data=True, size_threshold=0)
    made = poet_onnx.train_graph(tmp_path / "old.onnx", freeze="scales")
    assert {name: array.tobytes() for name, array in made.values.items()} == {
        name: ARRAYS[name].tobytes() for name in ("weight", "last")
    }


def test_what_cannot_be_converted_is_refused_in_one_sentence() -> None:
    inputs = "float[2,3] x, float[3] scale, float[3] bias, float[3] old_mean, float[3] old_variance"
    text = f'<ir_version: 8, opset_import: ["" : 9]> net ({inputs}) => (float[2,3] y) {NORMALIZED}'
    message = (
        r"of ONNX opset 9, and onnx cannot convert it to 17 \(.* 4 and 5 are not supported in Opset 14\): export it"
    )
    with pytest.raises(InputError, match=message):
        poet_onnx.train_graph(onnx.parser.parse_model(text))
