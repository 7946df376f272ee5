"""Training beside weights of few bits: what moves, what is written of it, and what cannot be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from quantized_models import BODY, GAIN, TABLE, UP, Weight, decoder
from safetensors.numpy import load_file
from torch.nn import functional

import poet_onnx
from poet_onnx import SGD, Lora, TrainingSession
from poet_onnx.errors import InputError

IDS, LABELS = np.array([[1, 5, 29], [0, 7, 7]]), np.array([[5, 29, 3], [7, 7, 1]])
BATCH = {"ids": IDS, "labels": LABELS}
OPTIONS: dict[str, Any] = {
    "device": "a72",
    "loss": "cross-entropy-last",
    "lora": Lora(("embed*", "body*"), rank=4),
    "freeze": ["g", "up"],
    "optimizer": "sgd",
}


def unoptimized() -> onnxruntime.SessionOptions:
    """Return options without optimizations: 1.19.2 moves a Transpose through blocks, and leaves their scales."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def scores(session: TrainingSession) -> np.ndarray[Any, Any]:
    """Return what the decoder computes with the adapters of a session, in double precision."""
    values = {name: array.astype(np.float64) for name, array in session.parameters.items()}
    table = TABLE.floats + 2 * values["embed.lora_embedding_A"] @ values["embed.lora_embedding_B"]
    normed = functional.layer_norm(torch.tensor(table[IDS]), (TABLE.columns,), torch.tensor(GAIN).double()).numpy()
    body = BODY.floats.T + 2 * values["body.lora_A"] @ values["body.lora_B"]
    found: np.ndarray[Any, Any] = normed @ UP @ body @ table.T
    return found


@pytest.mark.parametrize("target", ["training", "stock"])
def test_adapters_learn_beside_frozen_weights_and_stay_beside_them(target: str, tmp_path: Path) -> None:
    result = poet_onnx.rewrite(decoder(transposed=True), target=target, **OPTIONS)
    model, values, evaluation = result.save(tmp_path / "model.onnx")
    counts = Counter(node.op_type for node in result.model.graph)
    assert (counts["LinearQuantized"], counts["GatherQuantized"], counts["DequantizeLinear"]) == (4, 1, 0)
    assert result.train_graph is not None
    report = poet_onnx.verify(result.train_graph.training, model, feeds=1)
    assert report.passed, report.problems
    session = TrainingSession(model, values, eval_model=evaluation, optimizer=SGD(0.001))
    losses = [session.step(BATCH) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert session.evaluate([BATCH])["loss"] < losses[-1]
    with pytest.raises(InputError, match=r"adapter of 'embed' cannot be merged into .* a few bits.*merge=False"):
        session.export_inference_model(tmp_path / "merged.onnx")
    assert not (tmp_path / "merged.onnx").exists()
    session.export_inference_model(tmp_path / "nodes.onnx", merge=False)
    proto = onnx.load(tmp_path / "nodes.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert {node.domain for node in proto.graph.node} == {""}
    (found,) = onnxruntime.InferenceSession(tmp_path / "nodes.onnx", unoptimized()).run(None, {"ids": IDS})
    np.testing.assert_allclose(found, scores(session), rtol=1e-4, atol=1e-4)


def test_training_goes_on_from_a_checkpoint_and_adapters_are_files_of_peft(tmp_path: Path) -> None:
    files = poet_onnx.rewrite(decoder(), target="stock", **OPTIONS).save(tmp_path / "model.onnx")
    whole, first, second = (
        TrainingSession(files[0], files[1], eval_model=files[2], optimizer=SGD(0.001)) for _ in range(3)
    )
    losses = [whole.step(BATCH) for _ in range(4)]
    assert [first.step(BATCH) for _ in range(2)] == losses[:2]
    first.save_checkpoint(tmp_path / "saved.safetensors")
    second.load_checkpoint(tmp_path / "saved.safetensors")
    assert [second.step(BATCH) for _ in range(2)] == losses[2:]
    whole.export_adapter(tmp_path / "adapter")
    kept = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    np.testing.assert_array_equal(kept["base_model.model.body.lora_A.weight"], whole.parameters["body.lora_A"].T)


def test_weights_in_a_store_are_read_there_with_the_same_bits(tmp_path: Path) -> None:
    """Codes of the table and of the layer, 20 KB, which no node loads; their scales are small and stay in RAM."""
    forward = decoder(Weight(3000, 128), Weight(128, 320, has_zeros=True))
    options = OPTIONS | {"device": "host", "target": "stock"}
    resident = poet_onnx.rewrite(forward, **options).save(tmp_path / "resident.onnx")
    result = poet_onnx.rewrite(forward, store="always", **options)
    files = result.save(tmp_path / "stored.onnx")
    handles = {value.name for value in result.model.graph.inputs if "/bytes" in (value.name or "")}
    assert len(handles) == 2
    operators = Counter(node.op_type for node in result.model.graph)
    assert (operators["LinearQuantized"], operators["GatherQuantized"], operators["DequantizeLinear"]) == (4, 1, 0)
    assert result.train_graph is not None
    report = poet_onnx.verify(result.train_graph.training, files[0], feeds=1, page_dir=tmp_path)
    assert report.passed, report.problems
    whole = TrainingSession(resident[0], resident[1], eval_model=resident[2], optimizer=SGD(0.001))
    session = TrainingSession(files[0], files[1], eval_model=files[2], optimizer=SGD(0.001), store=tmp_path / "store")
    assert [session.step(BATCH) for _ in range(3)] == [whole.step(BATCH) for _ in range(3)]
    assert session.evaluate([BATCH]) == whole.evaluate([BATCH])
    found = []
    for each in (session, whole):
        each.export_inference_model(tmp_path / "nodes.onnx", merge=False)
        onnx.checker.check_model(onnx.load(tmp_path / "nodes.onnx"), full_check=True)
        inference = onnxruntime.InferenceSession(tmp_path / "nodes.onnx", unoptimized())
        found.append(np.asarray(inference.run(None, {"ids": IDS})[0]).tobytes())
    assert found[0] == found[1]
