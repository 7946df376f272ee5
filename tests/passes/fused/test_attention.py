"""Attention becomes one node where its nodes are known, and what else reads them, or trains, is left alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from adapted_decoders import adapted, check_beside_many_nodes
from forward_models import parse

import poet_onnx
from poet_onnx import SGD, Lora, TrainingSession
from poet_onnx.runtime import count_arena

WORDS, TOKENS, HEADS, WIDTH = 40, 6, 4, 8
RNG = np.random.default_rng(5)
LATER = np.triu(np.full((1, 1, TOKENS, TOKENS), np.finfo(np.float32).min, np.float32), 1)
ARRAYS = {
    "table": RNG.standard_normal((WORDS, 32)).astype(np.float32),
    **{name: RNG.standard_normal((32, size)).astype(np.float32) / 4 for name, size in (("wq", 32), ("wk", 16))},
    **{name: RNG.standard_normal(shape).astype(np.float32) / 4 for name, shape in (("wv", (32, 16)), ("wo", (32, 32)))},
    "of_q": np.array([2, TOKENS, HEADS, WIDTH]),
    "of_k": np.array([2, TOKENS, 2, WIDTH]),
    "repeated": np.array([2, 2, 2, TOKENS, WIDTH]),
    "all_heads": np.array([2, HEADS, TOKENS, WIDTH]),
    "flat": np.array([2, TOKENS, 32]),
    "two": np.array([2]),
    "scale": np.array(0.35, np.float32),
    "root": np.array(0.6, np.float32),
    "cap": np.array([1.5], np.float32),
    "zero": np.array(0, np.float32),
    "later": LATER,
    "bias": RNG.standard_normal((HEADS, TOKENS, TOKENS)).astype(np.float32),
    "keys": RNG.standard_normal((1, 1, 1, TOKENS)).astype(np.float32),
    "head": RNG.standard_normal((32, WORDS)).astype(np.float32) / 4,
}
OPERANDS = """e = Gather(table, ids) mq = MatMul(e, wq) mk = MatMul(e, wk) mv = MatMul(e, wv)
    rq = Reshape(mq, of_q) rk = Reshape(mk, of_k) rv = Reshape(mv, of_k)
    q = Transpose <perm = [0, 2, 1, 3]> (rq) tk = Transpose <perm = [0, 2, 1, 3]> (rk)
    tv = Transpose <perm = [0, 2, 1, 3]> (rv) uk = Unsqueeze(tk, two) uv = Unsqueeze(tv, two)
    xk = Expand(uk, repeated) xv = Expand(uv, repeated) k = Reshape(xk, all_heads) v = Reshape(xv, all_heads)"""
TURNED = "kt = Transpose <perm = [0, 1, 3, 2]> (k)"
BEHIND = "ty = Transpose <perm = [0, 2, 1, 3]> (a) fy = Reshape(ty, flat) o = MatMul(fy, wo) h = Add(e, o)"
SEEN = f"{BEHIND.removesuffix('h = Add(e, o)')} m = ReduceMean <keepdims = 0> (p) o2 = Add(o, m) h = Add(e, o2)"
CORES = {
    "scaled and masked": f"{TURNED} s0 = MatMul(q, kt) s1 = Mul(s0, scale) s = Add(s1, later)",
    "divided, mask first": f"{TURNED} s0 = MatMul(q, kt) s1 = Div(s0, scale) s = Add(later, s1)",
    "no mask, no scale": f"{TURNED} s = MatMul(q, kt)",
    "operands scaled": f"{TURNED} sq = Mul(q, root) sk = Mul(root, kt) s0 = MatMul(sq, sk) s = Add(s0, later)",
    "capped": f"""{TURNED} s0 = MatMul(q, kt) s1 = Mul(s0, scale) s2 = Div(s1, cap) s3 = Tanh(s2) s4 = Mul(s3, cap)
        s = Add(s4, later)""",
    "a mask of three sizes": f"{TURNED} s0 = MatMul(q, kt) s = Add(s0, bias)",
    "a mask of keys": f"{TURNED} s0 = MatMul(q, kt) s = Add(s0, keys)",
    "roots that nodes make": f"""{TURNED} r = Sqrt(scale) r2 = CastLike(r, q) sq = Mul(q, r2) sk = Mul(kt, r)
        s0 = MatMul(sq, sk) s = Add(s0, later)""",
    "a mask that nodes make": f"{TURNED} s0 = MatMul(q, kt) hides = Mul(keys, scale) s = Add(s0, hides)",
}
GUARD = "n = IsNaN(p0) p = Where(n, zero, p0)"
LORA = Lora(("wq", "wk", "wv", "wo"), rank=2, alpha=4)
IDS = RNG.integers(0, WORDS, (2, TOKENS))


def decoder(core: str, softmax: str = "p = Softmax <axis = -1> (s)", behind: str = BEHIND) -> ir.Model:
    text = f"{OPERANDS} {core} {softmax} a = MatMul(p, v) {behind} y = MatMul(h, head)"
    return parse(
        f"g (int64[2, {TOKENS}] ids) => (float[2, {TOKENS}, {WORDS}] y) {{ {text} }}",
        {name: array for name, array in ARRAYS.items() if name in text},
    )


def made(model: ir.Model, **options: Any) -> poet_onnx.TrainGraph:
    return adapted(model, **{"lora": LORA, **options})


def operators(graph: poet_onnx.TrainGraph) -> Counter[str]:
    return Counter(node.op_type for node in graph.training.graph)


@pytest.mark.parametrize("core", CORES)
def test_one_node_does_what_many_did(monkeypatch: pytest.MonkeyPatch, core: str) -> None:
    """Repeated heads are read once, and no transposition is left."""
    model = decoder(CORES[core])
    one = made(model.clone())
    found = operators(one)
    assert [found[name] for name in ("Attend", "AttendGradient", "Softmax", "Expand", "Transpose")] == [1, 1, 0, 0, 0]
    check_beside_many_nodes(monkeypatch, one, model, {"ids": IDS, "labels": IDS}, lora=LORA)


def test_weights_that_are_guarded_against_nan_are_known() -> None:
    graph = made(decoder(CORES["scaled and masked"], softmax=f"p0 = Softmax <axis = -1> (s) {GUARD}"))
    (node,) = (node for node in graph.training.graph if node.op_type == "Attend")
    assert node.attributes["guarded"].as_int() == 1
    assert operators(graph)["IsNaN"] == 0


def test_copies_do_not_keep_nodes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that forgets no `clone` has them behind the Softmax and in front of the views of repeated heads."""
    copied = OPERANDS.replace("k = Reshape(xk,", "ck = Identity(xk) k = Reshape(ck,")
    assert copied != OPERANDS
    monkeypatch.setitem(globals(), "OPERANDS", copied)
    model = decoder(CORES["scaled and masked"], softmax="p0 = Softmax <axis = -1> (s) p = Identity(p0)")
    one = made(model.clone())
    found = operators(one)
    assert [found[name] for name in ("Attend", "Softmax", "Expand", "Identity")] == [1, 0, 0, 0]
    check_beside_many_nodes(monkeypatch, one, model, {"ids": IDS, "labels": IDS}, lora=LORA)


@pytest.mark.parametrize(
    ("core", "others", "options"),
    [
        ("scaled and masked", {"softmax": "p = Softmax <axis = 2> (s)"}, {}),
        ("scaled and masked", {"behind": SEEN}, {}),
        ("a mask of three sizes", {}, {"train": "bias"}),
        ("scaled and masked", {"softmax": "p0 = Softmax <axis = -1> (s) n = IsNaN(p0) p = Where(n, scale, p0)"}, {}),
    ],
    ids=["another axis", "weights with another reader", "a trained mask", "NaN becomes a number"],
)
def test_what_is_something_else_stays(core: str, others: dict[str, str], options: dict[str, Any]) -> None:
    assert operators(made(decoder(CORES[core], **others), **options))["Attend"] == 0


@pytest.mark.parametrize(
    "core",
    [
        f"{TURNED} s0 = MatMul(q, kt) s1 = Relu(s0) s = Add(s1, later)",
        f"{TURNED} s0 = MatMul(q, kt) s = Mul(s0, keys)",
        f"{TURNED} s0 = MatMul(q, kt) s1 = Tanh(s0) s = Add(s1, later)",
        "kt = Reshape(k, turned) s = MatMul(q, kt)",
    ],
)
def test_other_scores_stay(core: str) -> None:
    arrays = {**ARRAYS, "turned": np.array([2, HEADS, WIDTH, TOKENS])}
    text = f"{OPERANDS} {core} p = Softmax <axis = -1> (s) a = MatMul(p, v) {BEHIND} y = MatMul(h, head)"
    model = parse(
        f"g (int64[2, {TOKENS}] ids) => (float[2, {TOKENS}, {WORDS}] y) {{ {text} }}",
        {name: array for name, array in arrays.items() if name in text},
    )
    assert operators(made(model))["Attend"] == 0


def test_a_session_trains_in_its_region_and_evaluates_the_same_loss(tmp_path: Path) -> None:
    """The workspace of the nodes is planned; the evaluation has many nodes."""
    path = tmp_path / "model.onnx"
    options: dict[str, Any] = {"device": "host", "loss": "causal-lm", "lora": LORA, "optimizer": "sgd"}
    poet_onnx.rewrite(decoder(CORES["capped"]), activation_budget="80%", **options).save(path)
    values, evaluation = (tmp_path / name for name in ("model.safetensors", "model.eval.onnx"))
    session = TrainingSession(path, values, eval_model=evaluation, optimizer=SGD(0.01))
    batch = {"ids": IDS, "labels": IDS}
    evaluated = session.evaluate([batch])["loss"]
    with count_arena() as counter:
        assert session.step(batch) == pytest.approx(evaluated, rel=2e-6)
        assert session.step(batch) < evaluated
        assert counter.statistics.unplanned == 0 < counter.statistics.planned
