"""No rewritten graph makes ONNX Runtime warn of initializers that nobody reads."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from stock_environment import STOCK_PYTHON

import poet_onnx
from poet_onnx.passes.unread import RemoveUnread

LOAD = """
import sys, onnxruntime, poet_onnx
for path in sys.argv[1:]:
    onnxruntime.InferenceSession(path, poet_onnx.session_options(), providers=["CPUExecutionProvider"])
"""


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


@pytest.mark.deep
def test_sessions_of_stock_graphs_say_nothing(
    model_path: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In BERT's graph the gradients of embeddings read their tables' shapes, and what they are lowered to does not."""
    paths = []
    for name in ("bert-2", "mobilenet", "resnet18"):
        paths.append(tmp_path / f"{name}.onnx")
        poet_onnx.rewrite(model_path(name), device="tx2", target="stock").save(paths[-1])
    capfd.readouterr()
    for path in paths:
        onnxruntime.InferenceSession(path, poet_onnx.session_options(), providers=["CPUExecutionProvider"])
    assert capfd.readouterr().err == ""
    if STOCK_PYTHON:
        command = [STOCK_PYTHON, "-c", LOAD, *map(str, paths)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""


def test_a_training_session_does_not_count_what_nobody_reads(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("mlp-mse")
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1000, np.float32), "unread"))
    onnx.save(model, tmp_path / "more.onnx")
    plain, more = (
        poet_onnx.TrainingSession(each, path.with_name("checkpoint")) for each in (path, tmp_path / "more.onnx")
    )
    assert more.resident_bytes == plain.resident_bytes
