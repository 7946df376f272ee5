"""Heads that are rotated stay behind their tokens, as products make them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from forward_models import parse, step

import poet_onnx
from poet_onnx import Lora
from poet_onnx.gradients import train_graph as module

WORDS, TOKENS, HEADS, WIDTH = 40, 6, 4, 8
RNG = np.random.default_rng(7)
ANGLES = RNG.uniform(0, 3, (1, 1, TOKENS, WIDTH)).astype(np.float32)
ARRAYS = {
    "table": RNG.standard_normal((WORDS, 32)).astype(np.float32),
    **{name: RNG.standard_normal((32, 32)).astype(np.float32) / 4 for name in ("wq", "wk", "wv")},
    "heads": np.array([2, TOKENS, HEADS, WIDTH]),
    "flat": np.array([2, TOKENS, 32]),
    "cos": np.cos(ANGLES),
    "sin": np.sin(ANGLES),
    "cos_of_heads": np.cos(ANGLES + np.arange(HEADS, dtype=np.float32).reshape(1, HEADS, 1, 1)),
    "sin_of_heads": np.sin(ANGLES + np.arange(HEADS, dtype=np.float32).reshape(1, HEADS, 1, 1)),
    "half": np.array([4, 4]),
    "head": RNG.standard_normal((32, WORDS)).astype(np.float32) / 4,
}
IDS = RNG.integers(0, WORDS, (2, TOKENS))


def rotated(x: str, y: str, tables: str = "") -> str:
    """Return nodes that rotate."""
    return f"""{y}a, {y}b = Split <axis = -1> ({x}, half) {y}n = Neg({y}b) {y}c = Concat <axis = -1> ({y}n, {y}a)
        {y}0 = Mul({x}, cos{tables}) {y}1 = Mul({y}c, sin{tables}) {y} = Add({y}0, {y}1)"""


def decoder(tables: str = "", behind: str = "h = Reshape(ty, flat)") -> ir.Model:
    operands = " ".join(
        f"m{x} = MatMul(e, w{x}) r{x} = Reshape(m{x}, heads) t{x} = Transpose <perm = [0, 2, 1, 3]> (r{x})"
        for x in "qkv"
    )
    text = f"""e = Gather(table, ids) {operands} {rotated("tq", "q", tables)} {rotated("tk", "k")}
        kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, kt) p = Softmax <axis = -1> (s) a = MatMul(p, tv)
        ty = Transpose <perm = [0, 2, 1, 3]> (a) {behind} y = MatMul(h, head)"""
    return parse(
        f"g (int64[2, {TOKENS}] ids) => (float[2, {TOKENS}, {WORDS}] y) {{ {text} }}",
        {name: array for name, array in ARRAYS.items() if f"{name}" in text},
    )


def made(model: ir.Model) -> poet_onnx.TrainGraph:
    graph = poet_onnx.train_graph(model, loss="causal-lm", lora=Lora(("wq", "wk", "wv"), rank=2, alpha=4))
    values = {name: np.full_like(array, 0.2) + array / 2 for name, array in graph.values.items()}
    return poet_onnx.TrainGraph(**{**vars(graph), "values": values})


@pytest.mark.parametrize(
    ("tables", "behind", "transpositions"),
    [
        ("", "h = Reshape(ty, flat)", 0),
        ("_of_heads", "h = Reshape(ty, flat)", 2),  # of q, there and back
        ("", "h0 = Reshape(ty, flat) h1 = Reshape(q, flat) h = Add(h0, h1)", 2),
    ],
    ids=["both", "tables of heads", "another reader"],
)
def test_transpositions_go(monkeypatch: pytest.MonkeyPatch, tables: str, behind: str, transpositions: int) -> None:
    """Loss and gradients are those of many nodes."""
    model = decoder(tables, behind)
    one = made(model.clone())
    found = Counter(node.op_type for node in one.training.graph)
    assert (found["Attend"], found["Rotate"], found["Transpose"]) == (1, 4, transpositions)
    monkeypatch.setattr(module, "fuse_layers", lambda *_: None)
    (loss, gradients), (expected_loss, expected) = (step(each, ids=IDS, labels=IDS) for each in (one, made(model)))
    assert loss == pytest.approx(expected_loss, rel=2e-6)
    for name, gradient in gradients.items():
        assert np.linalg.norm(gradient - expected[name]) <= 1e-5 * np.linalg.norm(expected[name]), name
