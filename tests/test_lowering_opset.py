"""Models of opsets that onnxruntime-training does not load: written in the newest that it does, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.passes.lowering.opset import NEWEST_IR_VERSION, NEWEST_OPSET, DeclareKnownOpset
from poet_onnx.passes.normalize import Normalization

SEED = 5
SHAPES = {"weight": (4, 3, 3, 3), "scale": (36,), "last": (36, 5)}
PLAIN = """
    c = Conv (x, weight)
    a = {activation} (c)
    f = Flatten (a)
    n = {norm} (f, scale)
    y = MatMul (n, last)
"""


def forward(activation: str, norm: str, opset: int) -> onnx.ModelProto:
    """Return a network with two operators to choose."""
    body = PLAIN.format(activation=activation, norm=norm)
    text = f'<ir_version: 12, opset_import: ["" : {opset}]> net (float[2,3,5,5] x) => (float[2,5] y) {{{body}}}'
    model = onnx.parser.parse_model(text)
    draw = np.random.default_rng(SEED)
    values = {name: draw.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in values.items())
    return model


def first_gradients(model: onnx.ModelProto, folder: Path) -> dict[str, bytes]:
    """Rewrite for onnxruntime-training, run a step, and return the loss and the gradients."""
    result = poet_onnx.rewrite(model, loss="cross-entropy", device="a72", optimizer="none")
    net, values, evaluation = result.save(folder / "net.onnx")
    for path in (net, evaluation):
        written = onnx.load(path)
        assert written.ir_version <= NEWEST_IR_VERSION
        assert {each.domain: each.version for each in written.opset_import}[""] <= NEWEST_OPSET
    session = poet_onnx.TrainingSession(
        net, values, eval_model=evaluation, optimizer=poet_onnx.SGD(0.1), keep_gradients=True
    )
    images = np.random.default_rng(SEED).normal(size=(2, 3, 5, 5)).astype(np.float32)
    labels = np.array([0, 3])
    session.eval()
    before = session.step(images, labels)
    session.train()
    loss = session.step(images, labels)
    assert loss == pytest.approx(before, rel=1e-5)
    return {name: array.tobytes() for name, array in session.gradients.items()} | {"loss": np.float32(loss).tobytes()}


def test_operators_that_are_the_same_keep_their_bits(tmp_path: Path) -> None:
    (tmp_path / "older").mkdir()
    found = first_gradients(forward("Softplus", "Mul", 23), tmp_path)
    assert found == first_gradients(forward("Softplus", "Mul", 21), tmp_path / "older")


def test_new_operators_become_their_bodies(tmp_path: Path) -> None:
    assert first_gradients(forward("Swish", "RMSNormalization <axis = -1>", 24), tmp_path).keys() == {*SHAPES, "loss"}


def test_operators_without_a_body_are_refused_by_name() -> None:
    text = '<ir_version: 12, opset_import: ["" : 26]> g (float[2] x) => (int32[2] y) { y = BitCast <to = 6> (x) }'
    model = ir.from_proto(onnx.parser.parse_model(text))
    with pytest.raises(InputError, match=r"up to opset 21, and not BitCast .* in opset 26: give `--target stock`"):
        Normalization(DeclareKnownOpset())(model)
