"""Models that other programs made: taken as training graphs, or refused in a sentence that says what to do."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.numpy
from cli_runs import Cli, assert_one_sentence
from own_environment import make_environment

import poet_onnx

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'

STEP = """onnxsim_train_step (float[4,3] x, float[4,1] y, float[3,1] m, float[3,1] w, float[1] n, float[1] b, float lr)
    => (float[3,1] m_next, float[3,1] w_next, float[1] n_next, float[1] b_next, float loss)
    <int64[1] first = {0}, float share = {0.5}, float momentum = {0.9}>
{
    s = MatMul(x, w)
    t = Add(s, b)
    d = Sub(t, y)
    q = Mul(d, d)
    loss = ReduceMean <keepdims = 0> (q)
    e = Mul(d, share)
    xt = Transpose <perm = [1, 0]> (x)
    dw = MatMul(xt, e)
    db = ReduceSum <keepdims = 0> (e, first)
    mm = Mul(momentum, m)
    m_next = Add(mm, dw)
    u = Mul(lr, m_next)
    w_next = Sub(w, u)
    nn = Mul(momentum, n)
    n_next = Add(nn, db)
    v = Mul(lr, n_next)
    b_next = Sub(b, v)
}"""
"""What onnxsim compiles: no operator and no name of its own tells of gradients, only the graph's name does."""

ADJOINT = """net (float[4,3] x, float[4,2] adj_y) => (float[4,2] y, float[4,3] adj_x)
    <float[3,2] w = {1, 2, 3, 4, 5, 6}>
{
    y = MatMul(x, w)
    wt = Transpose <perm = [1, 0]> (w)
    adj_x = MatMul(adj_y, wt)
}"""

TANGENT = """net (float[4,3] x, float[4,3] fwd2_x) => (float[4,2] y, float[4,2] fwd2_y)
    <float[3,2] w = {1, 2, 3, 4, 5, 6}>
{
    y = MatMul(x, w)
    fwd2_y = MatMul(fwd2_x, w)
}"""

MAKE = """
import onnx, onnx_ad
from onnxsim.compile_training import compile_training_loop
for name in ("adam", "sgd_momentum"):
    loop = compile_training_loop(onnx.load("with_loss.onnx"), "loss", ["w", "v"], optimizer=name)
    onnx.save(loop.step_graph.model, f"{name}.onnx")
for name in ("plain", "with_loss"):
    onnx.save(onnx_ad.reverse(onnx.load(f"{name}.onnx")), f"adj_{name}.onnx")
    onnx.save(onnx_ad.forward(onnx.load(f"{name}.onnx")), f"fwd_{name}.onnx")
"""

PLAIN = """net (float[4,3] x) => (float[4,2] s)
    <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] v = {1, 2}>
{
    h = MatMul(x, w)
    r = Relu(h)
    s = Mul(r, v)
}"""

WITH_LOSS = PLAIN.replace("(float[4,2] s)", "(float loss)").removesuffix("}")
WITH_LOSS += "    q = Mul(s, s)\n    loss = ReduceMean <keepdims = 0> (q)\n}"


def write(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(HEADER + text), path)
    return path


def assert_refused_everywhere(cli: Cli, model: Path, *said: str) -> None:
    """Check that no command takes a model, and each says why."""
    folder = model.parent / "made"
    for command in (
        ("inspect", model),
        ("rewrite", model, "--device", "a72"),
        ("rewrite", model, "--device", "a72", "--loss", "mse"),
        ("train-graph", model, "-o", folder),
    ):
        assert_one_sentence(cli(*command), 2, *said)


def assert_step_is_taken(cli: Cli, model: Path) -> None:
    """Check that a compiled step is planned and computes the same bits in a session of the user's own."""
    out = model.with_suffix(".poet.onnx")
    done = cli("rewrite", model, out, "--device", "a72", "--no-paging", "--check", 1)
    assert done.code == 0, done.err
    refused = cli("train-graph", model, "-o", model.parent / "made")
    assert_one_sentence(refused, 2, "computes gradients already", "`poet-onnx rewrite`")

    random = np.random.default_rng(0)
    options = poet_onnx.session_options()
    plain = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    fitted = onnxruntime.InferenceSession(out, options, providers=["CPUExecutionProvider"])
    feeds = {each.name: random.random(each.shape, dtype=np.float32) for each in plain.get_inputs()}
    for expected, found in zip(plain.run(None, feeds), fitted.run(None, feeds), strict=True):
        assert np.array_equal(expected, found)


def test_a_step_that_onnxsim_compiles_is_a_training_graph(cli: Cli, tmp_path: Path) -> None:
    model = write(STEP, tmp_path / "step.onnx")
    assert_step_is_taken(cli, model)


@pytest.mark.parametrize(("text", "seed"), [(ADJOINT, "adj_y"), (TANGENT, "fwd2_x")])
def test_what_onnx_ad_makes_is_refused(cli: Cli, tmp_path: Path, text: str, seed: str) -> None:
    model = write(text, tmp_path / "derivative.onnx")
    assert_refused_everywhere(cli, model, f"'{seed}' seeds", "`poet-onnx rewrite MODEL", "`poet-onnx train-graph")


def test_names_alone_make_no_derivative(cli: Cli, tmp_path: Path) -> None:
    text = PLAIN.replace("x)", "fwd_x)").replace("x,", "fwd_x,").replace("s)", "adj_s)").replace("s =", "adj_s =")
    made = cli("train-graph", write(text, tmp_path / "net.onnx"), "-o", tmp_path / "made", "--loss", "mse")
    assert made.code == 0, made.err


@pytest.mark.deep
def test_what_the_packages_themselves_make(cli: Cli, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment", "onnxsim>=0.8", "onnx-ad>=0.3")
    write(PLAIN, tmp_path / "plain.onnx")
    write(WITH_LOSS, tmp_path / "with_loss.onnx")
    subprocess.run([python, "-c", MAKE], cwd=tmp_path, check=True)
    for name in ("adam", "sgd_momentum"):
        assert_step_is_taken(cli, tmp_path / f"{name}.onnx")
    for kind in ("adj", "fwd"):
        for name in ("plain", "with_loss"):
            assert_refused_everywhere(cli, tmp_path / f"{kind}_{name}.onnx", "onnx-ad made", "`poet-onnx rewrite MODEL")


def test_what_lies_beside_a_training_graph_is_none(cli: Cli, tmp_path: Path, model_path: Callable[..., Path]) -> None:
    beside = model_path("mlp-mse").parent
    for name, said in (
        ("eval_model.onnx", "give the model that was exported"),
        ("optimizer_model.onnx", "give the model that was exported"),
        ("checkpoint", "give the training_model.onnx"),
    ):
        assert_one_sentence(cli("train-graph", beside / name, "-o", tmp_path / "made"), 2, said)


def test_files_of_other_kinds_are_known(cli: Cli, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "module.pt", "w") as archive:
        archive.writestr("module/data.pkl", b"\x80\x02}q\x00.")
    safetensors.numpy.save_file({"w": np.ones(3, np.float32)}, tmp_path / "weights.safetensors")
    (tmp_path / "net.ort").write_bytes(b"\x18\x00\x00\x00ORTM" + bytes(64))
    (tmp_path / "net.tflite").write_bytes(b"\x1c\x00\x00\x00TFL3" + bytes(64))
    said = {
        "module.pt": "torch.onnx.export",
        "weights.safetensors": "holds tensors in safetensors",
        "net.ort": "ORT format",
        "net.tflite": "TensorFlow Lite",
    }
    for name, words in said.items():
        assert_one_sentence(cli("inspect", tmp_path / name), 2, name, words)
