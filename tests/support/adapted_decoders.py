"""Decoders of one layer as text, with adapters; single nodes in their training graphs, held against many nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from forward_models import parse, step

import poet_onnx
from poet_onnx import Lora
from poet_onnx.gradients import train_graph as module

WORDS, TOKENS, HEADS, WIDTH = 40, 6, 4, 8
_RNG = np.random.default_rng(7)
_ANGLES = _RNG.uniform(0, 3, (1, 1, TOKENS, WIDTH)).astype(np.float32)
_OF_HEADS = _ANGLES + np.arange(HEADS, dtype=np.float32).reshape(1, HEADS, 1, 1)
_ARRAYS = {
    "table": _RNG.standard_normal((WORDS, 32)).astype(np.float32),
    **{name: _RNG.standard_normal((32, 32)).astype(np.float32) / 4 for name in ("wq", "wk", "wv")},
    "heads": np.array([2, TOKENS, HEADS, WIDTH]),
    "open": np.array([0, 0, HEADS, -1]),
    "flat": np.array([2, TOKENS, 32]),
    "rows": np.array([2 * TOKENS, 32]),
    "cos": np.cos(_ANGLES),
    "sin": np.sin(_ANGLES),
    "cos_of_heads": np.cos(_OF_HEADS),
    "sin_of_heads": np.sin(_OF_HEADS),
    "half": np.array([4, 4]),
    "head": _RNG.standard_normal((32, WORDS)).astype(np.float32) / 4,
}
_IDS = np.random.default_rng(5).integers(0, WORDS, (2, TOKENS))
BATCH = {"ids": _IDS, "labels": _IDS}

SPLIT = "r{x} = Reshape(m{x}, heads)"
JOIN = "h = Reshape(ty, flat)"


def rotating_decoder(*, split: str = SPLIT, tables: str = "", join: str = JOIN) -> ir.Model:
    """Return a decoder whose queries and keys are rotated.

    Args:
        split: nodes that give what a product makes a dimension of heads: m{x} becomes r{x}, for q, k and v.
        tables: behind the names of the tables of q.
        join: nodes behind attention, which make h of ty.
    """
    operands = " ".join(
        f"m{x} = MatMul(e, w{x}) {split.format(x=x)} t{x} = Transpose <perm = [0, 2, 1, 3]> (r{x})" for x in "qkv"
    )
    text = f"""e = Gather(table, ids) {operands} {_rotated("tq", "q", tables)} {_rotated("tk", "k")}
        kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, kt) p = Softmax <axis = -1> (s) a = MatMul(p, tv)
        ty = Transpose <perm = [0, 2, 1, 3]> (a) {join} y = MatMul(h, head)"""
    return parse(
        f"g (int64[2, {TOKENS}] ids) => (float[2, {TOKENS}, {WORDS}] y) {{ {text} }}",
        {name: array for name, array in _ARRAYS.items() if name in text},
    )


def _rotated(x: str, y: str, tables: str = "") -> str:
    """Return nodes that rotate."""
    return f"""{y}a, {y}b = Split <axis = -1> ({x}, half) {y}n = Neg({y}b) {y}c = Concat <axis = -1> ({y}n, {y}a)
        {y}0 = Mul({x}, cos{tables}) {y}1 = Mul({y}c, sin{tables}) {y} = Add({y}0, {y}1)"""


def adapted(model: ir.Model, **options: Any) -> poet_onnx.TrainGraph:
    """Return the training graph with adapters that are not 0, of q, k and v unless told otherwise."""
    given = {"loss": "causal-lm", "lora": Lora(("wq", "wk", "wv"), rank=2, alpha=4)}
    graph = poet_onnx.train_graph(model, **given | options)
    values = {name: np.full_like(array, 0.2) + array / 2 for name, array in graph.values.items()}
    return poet_onnx.TrainGraph(**{**vars(graph), "values": values})


def check_beside_many_nodes(
    monkeypatch: pytest.MonkeyPatch,
    one: poet_onnx.TrainGraph,
    model: ir.Model,
    batch: dict[str, np.ndarray[Any, Any]],
    **options: Any,
) -> None:
    """Compare a step of a training graph with one of that which has the exporter's nodes."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "fuse_layers", lambda *_: None)
        many = adapted(model, **options)
    (loss, gradients), (expected_loss, expected) = (step(each, **batch) for each in (one, many))
    assert loss == pytest.approx(expected_loss, rel=2e-6)
    for name, gradient in gradients.items():
        assert np.linalg.norm(gradient - expected[name]) <= 1e-5 * np.linalg.norm(expected[name]), name
