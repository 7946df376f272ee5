"""Models of opsets that onnxruntime-training does not load: written in the newest that it does, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.passes.lowering.opset import DeclareKnownOpset
from poet_onnx.passes.normalize import Normalization
from poet_onnx.runtime import installed_runtime

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
        assert written.ir_version <= 10
        assert {each.domain: each.version for each in written.opset_import}[""] <= 21
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


def bit_cast() -> ir.Model:
    """Return a model with an operator that is new in opset 26 and has no body."""
    text = '<ir_version: 12, opset_import: ["" : 26]> g (float[2] x) => (int32[2] y) { y = BitCast <to = 6> (x) }'
    return ir.from_proto(onnx.parser.parse_model(text))


def test_operators_without_a_body_are_refused_by_name() -> None:
    model = bit_cast()
    with pytest.raises(InputError, match=r"up to opset 21, and not BitCast .* in opset 26: give `--target stock`"):
        Normalization(DeclareKnownOpset("training"))(model)


def test_what_some_stock_runtimes_load_stays_as_it_is() -> None:
    model = bit_cast()
    Normalization(DeclareKnownOpset("stock"))(model)
    assert model.opset_imports[""] == 26


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 27, reason="needs an onnx that is newer than the runtimes")
def test_a_model_of_the_newest_onnx_trains(tmp_path: Path) -> None:
    """What `onnx.helper.make_model` makes by default is of an IR version and an opset that no runtime loads."""
    newest = onnx.defs.onnx_opset_version()
    model = forward("Relu", "Mul", 17)
    model.ir_version, model.opset_import[0].version = onnx.IR_VERSION, newest
    onnx.save(model, tmp_path / "net.onnx")
    target = "training" if installed_runtime().has_training else "stock"
    for given in (tmp_path / "net.onnx", model, ir.from_proto(model)):
        original = poet_onnx.train_graph(given, loss="cross-entropy").training
        original.opset_imports[""] = newest
        result = poet_onnx.rewrite(original, device="a72", target=target)
        report = poet_onnx.verify(original, result.model, feeds=1)
        assert report.passed, report.problems
    result = poet_onnx.rewrite(model, loss="cross-entropy", device="a72", target=target)
    net, values, evaluation = result.save(tmp_path / "made.onnx")
    session = poet_onnx.TrainingSession(net, values, eval_model=evaluation)
    session.step(np.ones((2, 3, 5, 5), np.float32), np.array([0, 3]))
    session.eval()
    session.step(np.ones((2, 3, 5, 5), np.float32), np.array([0, 3]))
    session.export_inference_model(tmp_path / "trained.onnx", model=tmp_path / "net.onnx")
    assert {onnx.load(path).ir_version for path in tmp_path.glob("*.onnx")} == {10, onnx.IR_VERSION}
    assert onnx.load(tmp_path / "trained.onnx").ir_version == 10
    stock = poet_onnx.rewrite(model, loss="cross-entropy", device="a72", target="stock").model
    assert (stock.ir_version, stock.opset_imports[""]) == (10, 23)
