"""Damaged models are refused in a sentence, and what is not refused cannot crash the runtime."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import damaged_models
import onnx
import onnx_ir as ir
import pytest
from deep import sampled
from model_mutations import mutate

from poet_onnx import rewrite
from poet_onnx.errors import InputError, PoetError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.reporting.inspection import inspect

MUTATIONS, RUNS = 45, 3
CHILD = """
import sys
from poet_onnx.errors import PoetError
from poet_onnx.verification import verify
for path in sys.argv[1:]:
    try:
        verify(path, path + ".poet", feeds=1)
    except PoetError:
        pass
"""


@pytest.fixture(scope="module", params=sampled(["images", "sequences"], "images"))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    """Return a small training model."""
    path = getattr(damaged_models, request.param)(tmp_path_factory.mktemp(request.param))
    return onnx.load(path)


def test_damage_gives_a_result_or_an_error_of_ours(model: onnx.ModelProto, tmp_path: Path) -> None:
    passed = []
    for seed in range(MUTATIONS):
        path = tmp_path / f"{seed}.onnx"
        path.write_bytes(mutate(model, seed).SerializeToString())
        target = random.Random(seed).choice(("training", "stock"))
        try:
            result = rewrite(path, device="a72", target=target, time_limit_seconds=1, gap=0.5)
        except PoetError as error:
            assert str(error).endswith("."), seed
            assert "\n" not in str(error), seed
            continue
        if target == "training":
            result.save(f"{path}.poet")
            passed.append(str(path))
    assert RUNS <= len(passed) < MUTATIONS / 2
    done = subprocess.run([sys.executable, "-c", CHILD, *passed[:RUNS]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_looking_at_a_damaged_model_gives_a_result_or_an_error_of_ours(model: onnx.ModelProto, tmp_path: Path) -> None:
    refused = 0
    for seed in range(1000, 1020):
        path = tmp_path / "damaged.onnx"
        path.write_bytes(mutate(model, seed).SerializeToString())
        try:
            inspect(path, device="a72")
        except InputError:
            refused += 1
    assert 0 < refused < 20


HEAD = '<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "g (float[1, 2, 4, 4] d, float[1, 3, 6, 6] x, float[2, 3, 4, 4] w) => (float[] a, float[] b, float[] c)"
            " { [n] a, b, c = com.microsoft.ConvGrad(d, x, w) }",
            r"'n'.*its input 0 has shape \[1, 2, 4, 4\] and must have \[1, 2, 3, 3\]",
        ),
        (
            "g (float[1, 2, 4, 4] d, float[1, 3, 6, 6] x, float[2, 3, 3, 3] w) => (float[] a, float[] b, float[] c)"
            " { [n] a, b, c = com.microsoft.ConvGrad <strides = [0, 1]> (d, x, w) }",
            r"'n'.*strides \[0, 1\].*make no window",
        ),
        (
            "g (float[1, 2, 4, 4] d, float[1, 3, 6, 6] x, float[2, 3, 9, 9] w) => (float[] a, float[] b, float[] c)"
            " { [n] a, b, c = com.microsoft.ConvGrad(d, x, w) }",
            r"'n'.*kernel \[9, 9\] is larger than its padded image",
        ),
        (
            "g (float[1, 2, 4, 4] d, float[1, 3, 6, 6] x, float[2, 3, 3, 3] w) => (float[] a, float[] b, float[] c)"
            ' { [n] a, b, c = com.microsoft.ConvGrad <group = "two"> (d, x, w) }',
            "'n'.*attribute group is not an integer",
        ),
        (
            "g (float[1, 2, 5, 5] x, float[1, 2, 2, 2] d) => (float[1, 2, 3, 3] g)"
            " { y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)"
            " [n] g = MaxPoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (d, i) }",
            r"'n'.*declared as \[1, 2, 3, 3\].*MaxPool.*read \[1, 2, 5, 5\]",
        ),
        (
            "g (float[1, 2, 9, 9] d) => (float[1, 2, 4, 4] g) { [n] g = AveragePoolGrad <kernel_shape = [2, 2]> (d) }",
            r"'n'.*must have \[1, 2, 3, 3\]",
        ),
        (
            "g (float[2, 3] d, float[2, 3] x, float[4] s, float[4] m, float[4] v) => (float[] a, float[] b, float[] c)"
            " { [n] a, b, c = com.microsoft.BatchNormalizationGrad <epsilon = 1e-5> (d, x, s, m, v) }",
            r"'n'.*its input 2 has shape \[4\] and must have \[3\]",
        ),
        (
            "g (float d, float[8, 3] p, int64[9] l) => (float[] a)"
            " { [n] a = com.microsoft.SoftmaxCrossEntropyLossGrad(d, p, l) }",
            r"'n'.*its input 2 has shape \[9\] and must have \[8\]",
        ),
        (
            "g (float[8, 3] d, float[8, 3] x, float[3] s, float[7] m, float[8] v) => (float[] a, float[] b, float[] c)"
            " { [n] a, b, c = com.microsoft.LayerNormalizationGrad <axis = -1> (d, x, s, m, v) }",
            "'n'.*its input 3 has 7 elements and must have 8",
        ),
        (
            "g (int64[5] i, float[4, 6] d) => (float[] a) <int64[2] s = {9, 6}>"
            " { [n] a = com.microsoft.GatherGrad <axis = 0> (s, i, d) }",
            r"'n'.*its input 2 has shape \[4, 6\] and must have \[5, 6\]",
        ),
        (
            "g (float[5] b, float[6] d, bool[1] f) => (bool[] a)"
            " { [n] a = com.microsoft.InPlaceAccumulatorV2(b, d, f) }",
            r"'n'.*its input 1 has shape \[6\] and must have \[5\]",
        ),
        (
            "g (float[5] d, bool[4] m) => (float[] a) { [n] a = com.microsoft.DropoutGrad(d, m) }",
            r"'n'.*its input 1 has shape \[4\] and must have \[5\]",
        ),
        ("g (float[5] d) => (float[] a) { [n] a = com.microsoft.ReluGrad(d) }", "'n'.*its input 1 is missing"),
        (
            "g (float[5] x) => (float[5] y) <float[4] z> { [n] z = Neg(x)  y = Relu(z) }",
            r"'z', made by node 'n' .* is declared as \[4\] and is FLOAT \[5\]",
        ),
        (
            "g (float[5] x) => (int64[5] y) { [n] y = Neg(x) }",
            r"'y', made by node 'n' .* is declared as INT64 and is FLOAT \[5\]",
        ),
        ("g (float[5] x) => (float[5] y) { [n] y = Add(x, nobody) }", "'nobody', read by node 'n'.*made by nothing"),
        (
            "g (float[5, 5] x, int64[2] s) => (float[] y) <int64 zero = {0}, int64[1] two = {2}>"
            " { q = Shape(x) d = Div(two, q) z = Cast <to = 77> (d) y = Reshape(x, z) }",
            "operator Cast",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text: str, words: str) -> None:
    model = ir.from_proto(onnx.parser.parse_model(HEAD + text))
    with pytest.raises(InputError, match=words):
        normalize()(model)


def test_an_exported_model_fits(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "model.onnx")
    loaded = load_model(tmp_path / "model.onnx")
    normalize()(loaded)
    assert {"GatherGrad", "MaxPoolGrad"} & {node.op_type for node in extract(loaded).nodes}
