"""Adapters that are single nodes train alike in RAM and in a store, whatever the optimizer, and with dropout."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from deep import sampled
from forward_models import parse, random
from onnxruntime import InferenceSession
from safetensors.numpy import load_file, save_file

import poet_onnx
from poet_onnx import SGD, AdamW, Lora, TrainingSession
from poet_onnx.description.names import handle_name
from poet_onnx.passes.layout_nodes import NEXT_STEP
from poet_onnx.runtime import count_arena

WIDTH, RANK, WORDS, SHAPE = 512, 8, 40, (2, 6)
"""A and B have 16 KiB each: they may be in a store, where their nodes read them."""

RNG = np.random.default_rng(4)
ARRAYS = {
    name: RNG.standard_normal(shape).astype(np.float32) / 20
    for name, shape in {
        "table": (WORDS, WIDTH),
        "first": (WIDTH, WIDTH),
        "second": (WIDTH, WIDTH),
        "third": (WIDTH, WIDTH),
        "head": (WIDTH, WORDS),
    }.items()
}
TEXT = f"""g (int64[2, 6] ids) => (float[2, 6, {WORDS}] y) {{
    e = Gather(table, ids) a = MatMul(e, first) h = Tanh(a)
    b = MatMul(h, second) c = MatMul(h, third) d = Mul(b, c) y = MatMul(d, head) }}"""
LORA = Lora(("first", "second", "third"), rank=RANK, alpha=64)
VALUES = {f"{name}.lora_{matrix}" for name in ("first", "second", "third") for matrix in "AB"}
OPERATORS = ("AddLowRank", "AddLowRankGradient", "AddLowRankWeightGradient")
SETTINGS: dict[str, Any] = {
    "device": "host",
    "target": "stock",
    "loss": "causal-lm",
    "optimizer": "sgd",
    "lora": LORA,
    "gap": 0.5,
}


def rewritten(path: Path, **options: Any) -> poet_onnx.RewriteResult:
    result = poet_onnx.rewrite(parse(TEXT, ARRAYS), **(SETTINGS | options))
    result.save(path)
    return result


def batch(number: int) -> dict[str, np.ndarray[Any, Any]]:
    ids = np.random.default_rng(number).integers(0, WORDS, SHAPE)
    return {"ids": ids, "labels": ids}


def session_of(path: Path, **how: Any) -> TrainingSession:
    return TrainingSession(path, path.with_suffix(".safetensors"), **how)


def trained(session: TrainingSession, folder: Path) -> tuple[list[float], dict[str, bytes]]:
    """Return losses of some batches, and all that is trained and kept afterwards."""
    with count_arena() as counter:
        losses = [session.step(batch(number)) for number in range(4)]
        assert counter.statistics.unplanned == 0 < counter.statistics.planned
    session.save_checkpoint(folder / "state.safetensors")
    return losses, {name: array.tobytes() for name, array in load_file(folder / "state.safetensors").items()}


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {"optimizer": SGD(0.5)}, marks=pytest.mark.deep, id="within the step"),
        pytest.param(
            {"optimizer": "adamw", "accumulation_steps": 2, "clip_norm": True},
            {"optimizer": AdamW(0.01), "clip_norm": 0.1},
            id="collected and clipped",
        ),
    ],
)
def test_adapters_in_a_store_give_the_bits_of_those_in_ram(
    options: dict[str, Any], how: dict[str, Any], tmp_path: Path
) -> None:
    rewritten(tmp_path / "ram.onnx", store="never", **options)
    result = rewritten(tmp_path / "disk.onnx", store="always", **options)
    handles = {handle_name(name) for name in VALUES}
    assert set(result.plan.stored) >= VALUES
    nodes = onnx.load(tmp_path / "disk.onnx").graph.node
    read = [len(handles.intersection(node.input)) for node in nodes if node.op_type in OPERATORS]
    assert sorted(read) == [1, 2, 2, 2, 2, 2]
    assert any(attribute.name == NEXT_STEP for node in nodes for attribute in node.attribute)
    assert not any(node.op_type == "LoadStored" and handles.intersection(node.input) for node in nodes)
    resident = session_of(tmp_path / "ram.onnx", **how)
    stored = session_of(tmp_path / "disk.onnx", store=tmp_path / "store", **how)
    assert trained(stored, tmp_path) == trained(resident, tmp_path)


def test_with_frozen_weights_alone_in_a_store_a_step_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    result = rewritten(path, store="frozen")
    assert result.plan.stored
    assert VALUES.isdisjoint(result.plan.stored)
    session = session_of(path, store=tmp_path / "store", commit_every=1000)
    written = []
    for number in range(3):
        session.step(batch(number))
        assert session.store_statistics is not None
        written.append((session.store_statistics.read_bytes > 0, session.store_statistics.written_bytes))
    assert written == [(True, written[0][1])] * 3


@pytest.mark.parametrize(
    ("targets", "store"),
    sampled(
        itertools.product(["first", "second", "first,second"], ["never", "frozen"]),
        ("first", "never"),
        ("second", "frozen"),
    ),
)
def test_an_adapter_is_merged_into_its_own_weight_where_others_have_the_same_numbers(
    tmp_path: Path, targets: str, store: str
) -> None:
    model = parse(TEXT, ARRAYS | {"second": ARRAYS["first"], "third": ARRAYS["first"]})
    chosen = {"lora": Lora(tuple(targets.split(",")), rank=RANK, alpha=64), "store": store}
    written = poet_onnx.rewrite(model, **(SETTINGS | chosen)).save(tmp_path / "net.onnx")
    stored = {} if store == "never" else {"store": tmp_path / "store"}
    session = TrainingSession(*written[:2], eval_model=written[2], optimizer=SGD(1.0), **stored)
    ids = RNG.integers(0, WORDS, SHAPE)
    for _ in range(3):
        session.step({"ids": ids, "labels": ids})
    scores = []
    for merge in (True, False):
        session.export_inference_model(tmp_path / "out.onnx", outputs=["y"], merge=merge)
        found = InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"]).run(None, {"ids": ids})
        scores.append(found[0])
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)


def test_what_is_dropped_in_front_of_adapters_is_dropped_of_their_gradients(tmp_path: Path) -> None:
    """A first step draws the same numbers each time: its loss along the gradient has the gradient's norm as slope."""
    path = tmp_path / "dropped.onnx"
    rewritten(path, lora=replace(LORA, dropout=0.3))
    values = {name: random(*array.shape) / 20 for name, array in load_file(path.with_suffix(".safetensors")).items()}

    def step(change: dict[str, np.ndarray[Any, Any]]) -> tuple[float, dict[str, np.ndarray[Any, Any]]]:
        begin = {name: array + change.get(name, np.float32(0)) for name, array in values.items()}
        save_file(begin, tmp_path / "begin.safetensors")
        session = TrainingSession(path, tmp_path / "begin.safetensors", optimizer=SGD(1.0))
        loss = session.step(batch(0))
        session.save_checkpoint(tmp_path / "after.safetensors")
        after = load_file(tmp_path / "after.safetensors")
        return loss, {name: begin[name].astype(np.float64) - after[name] for name in begin}

    loss, gradient = step({})
    assert step({})[0] == loss
    norm = float(np.sqrt(sum((each**2).sum() for each in gradient.values())))
    length = 0.01
    ahead, behind = (
        step({name: (sign * length / norm * each).astype(np.float32) for name, each in gradient.items()})[0]
        for sign in (1, -1)
    )
    assert (ahead - behind) / (2 * length) == pytest.approx(norm, rel=2e-3)
