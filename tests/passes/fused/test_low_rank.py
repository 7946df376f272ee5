"""Adapters become single nodes where they may, and learn as torch computes it in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from adapter_models import relative_error
from forward_models import parse, step
from torch import Tensor
from torch.nn import functional

import poet_onnx
from poet_onnx import Lora, TrainGraph

WORDS, WIDTH, WIDE, TOKENS = 40, 6, 10, 7
ERROR = 1e-5
RNG = np.random.default_rng(3)
SHAPES: dict[str, tuple[int, ...]] = {
    "table": (WORDS, WIDTH),
    "body": (WIDTH, WIDTH),
    "up": (WIDTH, WIDE),
    "gate": (WIDTH, WIDE),
    "turned": (WIDE, WIDTH),
    "down": (WIDE, WIDTH),
    "bias": (WIDE,),
    "head": (WIDTH, WORDS),
}
ARRAYS = {name: RNG.standard_normal(shape).astype(np.float32) / 2 for name, shape in SHAPES.items()}
IDS = RNG.integers(0, WORDS, (2, TOKENS))
BEHIND = "b = MatMul(e, body) h = Tanh(b)"
SHARED = f"{BEHIND} u = MatMul(h, up) g = MatMul(h, gate) p = Mul(u, g) d = MatMul(p, down) s = Add(h, d)"
ROWS = "rows = Constant <value_ints = [-1, 6]> () m = Reshape(h, rows)"
BACK = f"all = Constant <value_ints = [2, {TOKENS}, 10]> () u = Reshape(v, all)"
Weights = Mapping[str, Tensor]


def decoder(body: str) -> ir.Model:
    """Return a model of some layers; `e` are rows of the table, and `s` is what scores are made of."""
    return parse(
        f"""g (int64[2, {TOKENS}] ids) => (float[2, {TOKENS}, {WORDS}] y) {{
        e = Gather(table, ids) {body} y = MatMul(s, head) }}""",
        {name: array for name, array in ARRAYS.items() if name in f"{body} table head"},
    )


def train(body: str, targets: str, **options: Any) -> TrainGraph:
    options = {"rank": 2, "alpha": 3} | options
    trained = options.pop("train", None)
    lora = Lora(tuple(targets.split()), **options)
    return poet_onnx.train_graph(decoder(body), loss="causal-lm", lora=lora, train=trained)


def operators(made: TrainGraph) -> Counter[str]:
    return Counter(node.op_type for node in made.training.graph)


def check(made: TrainGraph, compute: Callable[[Tensor, Weights], Tensor]) -> None:
    """Compare loss and gradients with those of torch; compute(embedding, weights) has the adapters in the weights."""
    values = {
        name: np.random.default_rng(len(name)).standard_normal(array.shape).astype(np.float32) / 4
        for name, array in made.values.items()
    }
    loss, found = step(replace(made, values=values), ids=IDS, labels=IDS)
    leaves = {name: torch.tensor(array.astype(np.float64), requires_grad=True) for name, array in values.items()}
    weights = {name: torch.tensor(array).double() for name, array in ARRAYS.items()} | {
        name: leaf for name, leaf in leaves.items() if name in ARRAYS
    }
    for name in ARRAYS:
        if f"{name}.lora_A" in leaves:
            assert made.adapters is not None
            change = leaves[f"{name}.lora_A"] @ leaves[f"{name}.lora_B"] * made.adapters.lora.scale_of(name)
            weights[name] = weights[name] + (change.T if name == "turned" else change)
    scores = compute(weights["table"][IDS], weights) @ weights["head"]
    expected = functional.cross_entropy(scores[:, :-1].flatten(0, 1), torch.tensor(IDS[:, 1:]).flatten())
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert set(found) == set(leaves)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        assert relative_error(found[name], leaf.grad.numpy()) <= ERROR, name


def shared(e: Tensor, weights: Weights) -> Tensor:
    h = torch.tanh(e @ weights["body"])
    return h + ((h @ weights["up"]) * (h @ weights["gate"])) @ weights["down"]


@pytest.mark.parametrize("alpha", [3, 2])
def test_layers_that_share_what_they_read_have_no_sums_of_gradients(alpha: int) -> None:
    """Five terms, one of which goes past the layers, are added where those of adapters are; alpha 2 scales by 1."""
    made = train(SHARED, "body up gate down", alpha=alpha)
    found = operators(made)
    assert (found["AddLowRank"], found["AddLowRankGradient"], found["AddLowRankWeightGradient"]) == (4, 3, 1)
    assert (found["Sum"], found["Add"], found["FusedMatMul"]) == (0, 1, 3)
    check(made, shared)


def test_every_gradient_takes_the_place_of_a_term_that_nobody_else_reads() -> None:
    made = train(SHARED, "body up gate down")
    added = {}
    for node in made.training.graph:
        if node.op_type == "AddLowRankGradient":
            added[node.inputs[-2].name] = node.attributes["added"].as_int()
            assert node.inputs[0] is not None
            assert len(node.inputs[0].uses()) == 1
    assert sorted(added.values()) == [1, 2, 2]


FEED_FORWARD = {"table": (WORDS, 16), "up": (16, 256), "gate": (16, 256), "down": (256, 16), "head": (16, WORDS)}
LAYERS = Lora(("up", "gate", "down"), rank=2)


def feed_forward(rows: int) -> ir.Model:
    return parse(
        f"""g (int64[1, {rows}] ids) => (float[1, {rows}, {WORDS}] y) {{
        e = Gather(table, ids) u = MatMul(e, up) g = MatMul(e, gate) k = Sigmoid(g) a = Mul(g, k) p = Mul(a, u)
        d = MatMul(p, down) s = Add(e, d) y = MatMul(s, head) }}""",
        {name: RNG.standard_normal(shape).astype(np.float32) / 8 for name, shape in FEED_FORWARD.items()},
    )


def test_a_wide_input_may_be_gone_before_its_gradient_is_made() -> None:
    """The last layer of a feed-forward block reads what two wide ones give: with its gradient, four would be there."""
    rows = 256
    made = poet_onnx.train_graph(feed_forward(rows), loss="causal-lm", lora=LAYERS)
    parted = [node for node in made.training.graph if node.attributes.get_int("transposed", 0)]
    (names,) = ([value.name for value in node.inputs[2:4] if value is not None] for node in parted)
    assert names == ["down.lora_A", "down.lora_B"]
    wide_bytes = 4 * rows * FEED_FORWARD["up"][1]
    result = poet_onnx.rewrite(
        feed_forward(rows),
        loss="causal-lm",
        lora=LAYERS,
        device="a72",
        target="stock",
        optimizer="sgd",
        paging=False,
        activation_budget=int(3.6 * wide_bytes),
    )
    assert not any(step.copy for step in result.plan.steps)  # nothing runs again


def test_one_that_is_small_is_not_worth_a_node() -> None:
    made = poet_onnx.train_graph(feed_forward(8), loss="causal-lm", lora=LAYERS)
    assert not any(node.attributes.get_int("transposed", 0) for node in made.training.graph)


BIASES = {
    "behind": "u0 = MatMul(h, up) u = Add(bias, u0)",
    "in a Gemm": f"{ROWS} v = Gemm (m, up, bias) {BACK}",
    "behind a Gemm": f"{ROWS} v0 = Gemm <alpha = 0.5> (m, up) v = Add(v0, bias) {BACK}",
    "behind a transposed one": f"{ROWS} v = Gemm <transB = 1> (m, turned, bias) {BACK}",
}


@pytest.mark.parametrize("where", BIASES)
def test_a_bias_is_part_of_the_node_or_of_the_product(where: str) -> None:
    name = "turned" if "turned" in BIASES[where] else "up"
    made = train(f"{BEHIND} {BIASES[where]} s = MatMul(u, down)", f"body {name} down")
    found = operators(made)
    assert (found["AddLowRank"], found["Add"]) == (3, 0)
    factor = 0.5 if "alpha" in BIASES[where] else 1

    def compute(e: Tensor, weights: Weights) -> Tensor:
        h = torch.tanh(e @ weights["body"])
        matrix = weights[name].T if name == "turned" else weights[name]
        return (factor * h @ matrix + weights["bias"]) @ weights["down"]

    check(made, compute)


def test_a_bias_that_is_trained_stays_by_itself() -> None:
    made = train(f"{BEHIND} {BIASES['behind']} s = MatMul(u, down)", "up", train="bias")
    assert (operators(made)["AddLowRank"], operators(made)["Add"]) == (1, 1)
    check(made, lambda e, w: (torch.tanh(e @ w["body"]) @ w["up"] + w["bias"]) @ w["down"])


def test_what_is_dropped_in_front_of_an_adapter_is_not_dropped_of_the_product() -> None:
    """The adapter reads what Dropout leaves: its gradient by that goes back through it, and is added behind it."""
    made = train(SHARED, "body up gate down", dropout=0.25)
    graph = made.training.graph
    found = operators(made)
    assert (found["AddLowRank"], found["Dropout"]) == (4, 4)
    for node in graph:
        if node.op_type == "AddLowRank":
            base, x = node.inputs[:2]
            assert base is not None
            assert x is not None
            dropped, product = x.producer(), base.producer()
            assert dropped is not None
            assert product is not None
            assert dropped.op_type == "Dropout"
            assert product.inputs[0] is dropped.inputs[0]
        elif node.op_type == "AddLowRankGradient":
            assert node.attributes["added"].as_int() == 0
            (reader,) = node.outputs[0].consumers()
            assert reader.op_type == "DropoutGrad"


LEFT = {
    "a product that something else reads": ("u = MatMul(e, body) t = Tanh(u) s = Add(t, u)", "body"),
    "a table": ("s = Tanh(e)", "table"),
    "a matrix of two layers": ("b = MatMul(e, body) h = Tanh(b) s = MatMul(h, body)", "body"),
}


@pytest.mark.parametrize("what", LEFT)
def test_what_else_has_an_adapter_stays_as_it_is(what: str) -> None:
    body, target = LEFT[what]
    made = train(body, target)
    name = f"{target}.lora_{'embedding_' if target == 'table' else ''}A"
    assert name in made.values
    readers = 0 if target == "table" or "two" in what else 1
    assert operators(made)["AddLowRank"] == readers


def written(changes: Mapping[str, str]) -> Counter[str]:
    """Return the operators of a model that has an adapter of its own, changed in some places."""
    body = {
        "base": "z = MatMul(e, body)",
        "low": "l = MatMul(e, a)",
        "scale": "k = Mul(l, factor)",
        "high": "m = MatMul(k, c)",
        "sum": "s = Add(z, m)",
        "head": "y = MatMul(s, head)",
    } | changes
    arrays = {name: ARRAYS[name] for name in ("table", "body", "head")}
    arrays |= {"a": RNG.standard_normal((WIDTH, 2)).astype(np.float32), "factor": np.array(2, np.float32)}
    arrays |= {"c": RNG.standard_normal((2, WIDTH)).astype(np.float32), "row": np.ones(2, np.float32)}
    text = f"g (int64[2, {TOKENS}] ids) => (float[2, {TOKENS}, {WORDS}] y) {{ e = Gather(table, ids) "
    model = parse(text + " ".join(body.values()) + " }", arrays)
    return operators(poet_onnx.train_graph(model, loss="causal-lm", train=["a", "c"]))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sum": "s = Add(m, z)"},
        {"scale": "", "high": "m = MatMul(l, c)"},
    ],
    ids=str,
)
def test_an_adapter_of_the_model_itself_is_found(changes: dict[str, str]) -> None:
    assert written(changes)["AddLowRank"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"sum": "s = Sub(z, m)"},
        {"base": "z = Identity(e)", "sum": "s0 = Add(z, m) s = Add(s0, e)", "low": "l = MatMul(z, a)"},
        {"scale": "k = Mul(l, row)"},
        {"scale": "k = Div(l, factor)"},
        {"sum": "t = Add(z, m) s = Add(t, m)"},
        {"high": "m = MatMul(k, c) r = ReduceSum<keepdims = 1>(k)", "sum": "t = Add(z, m) s = Add(t, r)"},
        {"base": "z = MatMul(e, body)", "sum": "t = Add(z, m) s = Add(t, z)"},
        {"low": "n = Neg(a) l = MatMul(e, n)"},
    ],
    ids=str,
)
def test_what_is_no_adapter_stays_as_it_is(changes: dict[str, str]) -> None:
    assert written(changes)["AddLowRank"] == 0
