"""No rewritten graph makes ONNX Runtime warn of initializers that nobody reads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import poet_onnx
from poet_onnx.passes.unread import RemoveUnread
from poet_onnx.verify import verify

LOAD = """
import sys, onnxruntime, poet_onnx
for path in sys.argv[1:]:
    options = poet_onnx.session_options()
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
"""
CASES = [
    ("bert-2", "stock", "100%"),
    ("bert-2", "training", "60%"),
    ("mobilenet", "stock", "70%"),
    ("resnet18", "stock", "100%"),
]


def test_what_nobody_reads_is_removed() -> None:
    text = """<ir_version: 8, opset_import: ["" : 15]>
    g (float[2] x, float[2] given) => (float[2] y, float[2] kept)
    <float[2] given = {1, 2}, float[2] kept = {1, 2}, float[2] read = {1, 2}, float[2] unread = {1, 2}>
    { y = Add (x, read) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert RemoveUnread()(model).modified
    assert set(model.graph.initializers) == {"given", "kept", "read"}
    assert [value.name for value in model.graph.inputs] == ["x", "given"]
    assert not RemoveUnread()(model).modified


@pytest.fixture(scope="module")
def rewritten(model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str]]:
    """Return files of rewritten models and their targets; of BERT, parts and expansions drop what has read shapes."""
    folder = tmp_path_factory.mktemp("rewritten")
    made = []
    for name, target, budget in CASES:
        ask = {"device": "a72", "target": target, "activation_budget": budget, "gap": 0.9}
        result = poet_onnx.rewrite(model_path(name), **ask)  # type: ignore[arg-type]
        if name == "bert-2":
            assert verify(model_path(name), result.model, feeds=1).passed
        made.append((folder / f"{name}-{target}.onnx", target))
        result.save(made[-1][0])
    return made


def test_sessions_of_rewritten_models_say_nothing(rewritten: list[tuple[Path, str]]) -> None:
    runs = [(sys.executable, [str(path) for path, _ in rewritten])]
    if "POET_STOCK_PYTHON" in os.environ:
        runs.append((os.environ["POET_STOCK_PYTHON"], [str(path) for path, target in rewritten if target == "stock"]))
    for python, paths in runs:
        done = subprocess.run([python, "-c", LOAD, *paths], capture_output=True, text=True, check=True)
        assert done.stderr == ""


def test_a_training_session_does_not_count_what_nobody_reads(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("mlp-mse")
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1000, np.float32), "unread"))
    onnx.save(model, tmp_path / "more.onnx")
    plain, more = (
        poet_onnx.TrainingSession(each, path.with_name("checkpoint")) for each in (path, tmp_path / "more.onnx")
    )
    assert more.resident_bytes == plain.resident_bytes
