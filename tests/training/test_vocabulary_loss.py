"""A language model trains without scores of all words, and is evaluated and exported with them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import poet_onnx
from poet_onnx import SGD, Lora, TrainingSession

WORDS, WIDTH, SHAPE = 3000, 64, (2, 12)
RNG = np.random.default_rng(1)
IDS = RNG.integers(0, WORDS, SHAPE)
LABELS = np.where(np.arange(SHAPE[1]) < 3, -100, IDS)
BATCH = {"ids": IDS, "labels": LABELS}
ARRAYS = {
    "table": RNG.standard_normal((WORDS, WIDTH)).astype(np.float32) / 4,
    "body": RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8,
    "head": RNG.standard_normal((WIDTH, WORDS)).astype(np.float32) / 4,
    "bias": RNG.standard_normal(WORDS).astype(np.float32),
    "cap": np.array(5, np.float32),
}
OPTIONS: dict[str, Any] = {"loss": "causal-lm", "lora": Lora(("body",), rank=4, alpha=8), "optimizer": "sgd"}


def decoder(*, tied: bool) -> onnx.ModelProto:
    """Return an embedding, a layer, and the embedding once more as a capped head, or a head of its own with a bias."""
    node = helper.make_node
    head = (
        [
            node("Transpose", ["table"], ["t"], "turn", perm=[1, 0]),
            node("MatMul", ["h", "t"], ["p"], "head"),
            node("Div", ["p", "cap"], ["part"], "part"),
            node("Tanh", ["part"], ["bent"], "bent"),
            node("Mul", ["bent", "cap"], ["scores"], "capped"),
        ]
        if tied
        else [node("MatMul", ["h", "head"], ["p"], "head"), node("Add", ["p", "bias"], ["scores"], "added")]
    )
    nodes = [node("Gather", ["table", "ids"], ["e"], "embed"), node("MatMul", ["e", "body"], ["b"], "body")]
    graph = helper.make_graph(
        [*nodes, node("Tanh", ["b"], ["h"], "tanh"), *head],
        "decoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, SHAPE)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, (*SHAPE, WORDS))],
        [
            numpy_helper.from_array(array, name)
            for name, array in ARRAYS.items()
            if name in (("table", "body", "cap") if tied else ("table", "body", "head", "bias"))
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def loss_of(scores: np.ndarray[Any, Any]) -> float:
    """Return the loss of all scores in double precision."""
    rows, following = scores[:, :-1].astype(np.float64), LABELS[:, 1:]
    counted = following != -100
    sums = (
        np.log(np.exp(rows).sum(-1)) - np.take_along_axis(rows, np.where(counted, following, 0)[..., None], -1)[..., 0]
    )
    return float(sums[counted].mean())


@pytest.mark.parametrize(
    ("tied", "target", "options"),
    [
        (True, "stock", {}),
        pytest.param(False, "training", {}, marks=pytest.mark.deep),
        (False, "stock", {"quantize": "4bit", "store": "always"}),
        pytest.param(True, "training", {"quantize": "4bit"}, marks=pytest.mark.deep),
        pytest.param(True, "stock", {"store": "always"}, marks=pytest.mark.deep),
        pytest.param(False, "stock", {"store": "always"}, marks=pytest.mark.deep),
        pytest.param(True, "stock", {"quantize": "8bit"}, marks=pytest.mark.deep),
    ],
)
def test_a_decoder_trains_is_evaluated_and_exported(
    tied: bool, target: str, options: dict[str, Any], tmp_path: Path
) -> None:
    device = "host" if "store" in options else "a72"
    result = poet_onnx.rewrite(decoder(tied=tied), device=device, target=target, **OPTIONS, **options)
    model, values, evaluation = result.save(tmp_path / "model.onnx")
    operators = [Counter(node.op_type for node in onnx.load(path).graph.node) for path in (model, evaluation)]
    assert (operators[0]["VocabularyLossGradient"], operators[1]["VocabularyLoss"]) == (1, 1)
    assert operators[0]["DequantizeLinear"] == operators[1]["DequantizeLinear"] == 0
    assert result.train_graph is not None
    report = poet_onnx.verify(result.train_graph.training, model, feeds=1, page_dir=tmp_path)
    assert report.passed, report.problems
    where = {"store": tmp_path / "store"} if result.plan.stored else {}
    session = TrainingSession(model, values, eval_model=evaluation, optimizer=SGD(0.5), **where)
    before = session.evaluate([BATCH])["loss"]
    losses = [session.step(BATCH) for _ in range(3)]
    assert losses[0] == before
    assert losses == sorted(losses, reverse=True)
    after = session.evaluate([BATCH])["loss"]
    session.export_inference_model(tmp_path / "trained.onnx", merge="quantize" not in options)
    onnx.checker.check_model(onnx.load(tmp_path / "trained.onnx"), full_check=True)
    inference = onnxruntime.SessionOptions()
    inference.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (scores,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx", inference).run(None, {"ids": IDS})
    assert np.asarray(scores).shape == (*SHAPE, WORDS)
    assert after == pytest.approx(loss_of(np.asarray(scores)), rel=1e-6)


def test_training_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    files = poet_onnx.rewrite(decoder(tied=True), device="a72", target="stock", **OPTIONS).save(tmp_path / "model.onnx")
    first, second = (TrainingSession(files[0], files[1], eval_model=files[2], optimizer=SGD(0.5)) for _ in range(2))
    losses = [first.step(BATCH) for _ in range(2)]
    first.save_checkpoint(tmp_path / "saved.safetensors")
    losses += [first.step(BATCH) for _ in range(2)]
    second.load_checkpoint(tmp_path / "saved.safetensors")
    assert [second.step(BATCH) for _ in range(2)] == losses[2:]
    wrong = LABELS.copy()
    wrong[0, 5] = WORDS
    with pytest.raises(poet_onnx.errors.InputError, match="labels"):
        first.step(BATCH | {"labels": wrong})
