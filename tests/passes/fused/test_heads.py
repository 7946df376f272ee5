"""Rotate and Attend read heads in rows, as products make them, and no Reshape is left between them."""

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
    "heads": np.array([0, 0, HEADS, -1]),
    "flat": np.array([2, TOKENS, 32]),
    "rows": np.array([2 * TOKENS, 32]),
    "again": np.array([2, TOKENS, HEADS, WIDTH]),
    "cos": np.cos(ANGLES),
    "sin": np.sin(ANGLES),
    "half": np.array([4, 4]),
    "head": RNG.standard_normal((32, WORDS)).astype(np.float32) / 4,
}
IDS = RNG.integers(0, WORDS, (2, TOKENS))
ATTENDED = "h = Reshape(ty, flat)"


def rotated(x: str, y: str) -> str:
    """Return nodes that rotate."""
    return f"""{y}a, {y}b = Split <axis = -1> ({x}, half) {y}n = Neg({y}b) {y}c = Concat <axis = -1> ({y}n, {y}a)
        {y}0 = Mul({x}, cos) {y}1 = Mul({y}c, sin) {y} = Add({y}0, {y}1)"""


def decoder(split: str = "r{x} = Reshape(m{x}, heads)", behind: str = ATTENDED) -> ir.Model:
    operands = " ".join(
        f"m{x} = MatMul(e, w{x}) {split.format(x=x)} t{x} = Transpose <perm = [0, 2, 1, 3]> (r{x})" for x in "qkv"
    )
    text = f"""e = Gather(table, ids) {operands} {rotated("tq", "q")} {rotated("tk", "k")}
        kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, kt) p = Softmax <axis = -1> (s) a = MatMul(p, tv)
        ty = Transpose <perm = [0, 2, 1, 3]> (a) {behind} y = MatMul(h, head)"""
    return parse(
        f"g (int64[2, {TOKENS}] ids) => (float[2, {TOKENS}, {WORDS}] y) {{ {text} }}",
        {name: array for name, array in ARRAYS.items() if name in text},
    )


def made(model: ir.Model) -> poet_onnx.TrainGraph:
    graph = poet_onnx.train_graph(model, loss="causal-lm", lora=Lora(("wq", "wk", "wv"), rank=2, alpha=4))
    values = {name: np.full_like(array, 0.2) + array / 2 for name, array in graph.values.items()}
    return poet_onnx.TrainGraph(**{**vars(graph), "values": values})


def heads_of(graph: poet_onnx.TrainGraph) -> dict[str, list[list[int]]]:
    """Return the attributes of Attend and Rotate."""
    found: dict[str, list[list[int]]] = {"Attend": [], "Rotate": []}
    for node in graph.training.graph:
        if node.op_type in found:
            value = node.attributes["heads"]
            is_list = value.type == ir.AttributeType.INTS
            found[node.op_type].append(list(value.as_ints()) if is_list else [value.as_int()])
    return found


SPLIT = "r{x} = Reshape(m{x}, heads)"
FROM_ROWS_OF_ALL = "g{x} = Reshape(m{x}, rows) r{x} = Reshape(g{x}, again)"
TWICE = "h0 = Reshape(ty, flat) z = Neg(ty) h1 = Reshape(z, flat) h = Add(h0, h1)"


@pytest.mark.parametrize(
    ("model", "heads", "reshapes"),
    [
        (decoder(), {"Attend": [[4, 4, 4, 4]], "Rotate": [[4]] * 4}, 1),
        (decoder(FROM_ROWS_OF_ALL), {"Attend": [[0, 0, 0, 4]], "Rotate": [[0]] * 4}, 13),
        (decoder(behind=TWICE), {"Attend": [[4, 4, 4, 0]], "Rotate": [[4]] * 4}, 5),
    ],
    ids=["all in rows", "rows of all samples", "another reader"],
)
def test_reshapes_go(
    monkeypatch: pytest.MonkeyPatch, model: ir.Model, heads: dict[str, list[list[int]]], reshapes: int
) -> None:
    """Loss and gradients are those of many nodes; one Reshape is of the loss."""
    one = made(model.clone())
    assert heads_of(one) == heads
    assert Counter(node.op_type for node in one.training.graph)["Reshape"] == reshapes
    monkeypatch.setattr(module, "fuse_layers", lambda *_: None)
    (loss, gradients), (expected_loss, expected) = (step(each, ids=IDS, labels=IDS) for each in (one, made(model)))
    assert loss == pytest.approx(expected_loss, rel=2e-6)
    for name, gradient in gradients.items():
        assert np.linalg.norm(gradient - expected[name]) <= 1e-5 * np.linalg.norm(expected[name]), name
