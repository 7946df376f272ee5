"""What a model returns as it got it is no output of the graphs that are made of it, which a warning says."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from forward_models import parse, random

import poet_onnx
from poet_onnx.errors import PoetWarning


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
