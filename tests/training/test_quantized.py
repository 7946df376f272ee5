"""Training beside weights of a few bits: what moves, what is written of it, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from forward_models import random
from quantized_models import Weight, product_model

import poet_onnx
from poet_onnx import SGD, Lora, TrainingSession
from poet_onnx.errors import InputError

WEIGHT = Weight(24, 64, has_zeros=True)
BATCH = {"x": random(2, 5, 64), "target": random(2, 5, 24)}


@pytest.mark.parametrize("target", ["training", "stock"])
def test_adapters_learn_beside_frozen_weights_and_stay_beside_them(target: str, tmp_path: Path) -> None:
    result = poet_onnx.rewrite(
        product_model(WEIGHT), device="a72", target=target, loss="mse", lora=Lora("w", rank=4), optimizer="sgd"
    )
    model, values, evaluation = result.save(tmp_path / "model.onnx")
    assert result.train_graph is not None
    report = poet_onnx.verify(result.train_graph.training, model, feeds=1)
    assert report.passed, report.problems
    session = TrainingSession(model, values, eval_model=evaluation, optimizer=SGD(0.1))
    losses = [session.step(BATCH) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert session.evaluate([BATCH])["loss"] < losses[-1]
    with pytest.raises(InputError, match=r"adapter of 'w' cannot be merged into a weight of a few bits.*merge=False"):
        session.export_inference_model(tmp_path / "merged.onnx")
    assert not (tmp_path / "merged.onnx").exists()
    session.export_inference_model(tmp_path / "nodes.onnx", merge=False)
    onnx.checker.check_model(onnx.load(tmp_path / "nodes.onnx"), full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (found,) = onnxruntime.InferenceSession(tmp_path / "nodes.onnx", options).run(None, {"x": BATCH["x"]})
    first, second = (session.parameters[f"w.lora_{each}"] for each in "AB")
    expected = BATCH["x"] @ (WEIGHT.floats.T.astype(np.float64) + 2 * first @ second)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
