"""Language models learn without scores of all words: as torch does in float64, and where that can be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from forward_models import parse, step
from torch.nn import functional

import poet_onnx
from poet_onnx import Lora

WORDS, WIDTH, TOKENS = 700, 48, 9
RNG = np.random.default_rng(3)
TABLE, BODY, BIAS = (RNG.standard_normal(shape).astype(np.float32) for shape in ((WORDS, WIDTH), (WIDTH, WIDTH), WORDS))
IDS = RNG.integers(0, WORDS, (2, TOKENS))
LABELS = np.where(np.arange(TOKENS) < 3, -100, IDS)
ARRAYS = {"table": TABLE / 4, "body": BODY / 4, "bias": BIAS, "head": np.ascontiguousarray(TABLE.T) / 4}
ARRAYS |= {"cap": np.array(2, np.float32), "factor": np.array([0.7], np.float32)}
HEADS = {
    "tied": "t = Transpose <perm = [1, 0]> (table) y = MatMul(h, t)",
    "untied": "y = MatMul(h, head)",
    "with a bias": "p = MatMul(h, head) y = Add(bias, p)",
    "with a soft cap": "p = MatMul(h, head) d = Div(p, cap) b2 = Tanh(d) y = Mul(b2, cap)",
    "with a factor": "p = MatMul(h, head) y = Mul(p, factor)",
    "of rows": f"""rows = Constant <value_ints = [-1, {WIDTH}]> () m = Reshape(h, rows)
        p = Gemm <transB = 1> (m, table, bias)
        all = Constant <value_ints = [2, {TOKENS}, {WORDS}]> () y = Reshape(p, all)""",
}
LORA = Lora(("body",), rank=4, alpha=8)


def decoder(head: str) -> ir.Model:
    return parse(
        f"""g (int64[2, {TOKENS}] ids) => (float[2, {TOKENS}, {WORDS}] y) {{
        e = Gather(table, ids) b = MatMul(e, body) h = Tanh(b) {head} }}""",
        {name: array for name, array in ARRAYS.items() if name in f"{head} table body"},
    )


def operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


@pytest.mark.parametrize("head", HEADS)
def test_a_step_is_that_of_torch_in_double_precision(head: str) -> None:
    """Loss and gradients of adapters are within 1e-5."""
    made = poet_onnx.train_graph(decoder(HEADS[head]), loss="causal-lm", lora=LORA)
    found = operators(made.training)
    assert (found["VocabularyLossGradient"], found["SoftmaxCrossEntropyLoss"], found["Transpose"]) == (1, 0, 0)
    assert not any(value.shape and value.shape[-1] == WORDS for node in made.training.graph for value in node.outputs)
    values = {name: RNG.standard_normal(array.shape).astype(np.float32) / 4 for name, array in made.values.items()}
    loss, gradients = step(replace(made, values=values), ids=IDS, labels=LABELS)
    leaves = {name: torch.tensor(array.astype(np.float64), requires_grad=True) for name, array in values.items()}
    table, body, bias = (torch.tensor(ARRAYS[name]).double() for name in ("table", "body", "bias"))
    hidden = torch.tanh(table[IDS] @ (body + 2 * leaves["body.lora_A"] @ leaves["body.lora_B"]))
    scores = hidden @ table.T + (bias if "bias" in HEADS[head] else 0)
    scores = 2 * torch.tanh(scores / 2) if "cap" in head else scores
    scores = scores * float(ARRAYS["factor"][0]) if "factor" in head else scores
    expected = functional.cross_entropy(scores[:, :-1].flatten(0, 1), torch.tensor(LABELS[:, 1:]).flatten())
    expected.backward()
    assert abs(loss - expected.item()) <= 1e-6 * expected.item()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        error = np.linalg.norm(gradients[name] - leaf.grad.numpy()) / np.linalg.norm(leaf.grad.numpy())
        assert error <= 1e-5, name


def test_a_loss_that_is_one_of_several_has_its_share() -> None:
    """The gradient is multiplied with that of the sum."""
    once, half = (
        step(poet_onnx.train_graph(decoder(HEADS["tied"]), loss=loss, lora=LORA), ids=IDS, **{label: LABELS})
        for loss, label in (("causal-lm", "labels"), ("0.5*causal-lm", "labels"))
    )
    assert half[0] == once[0] / 2
    for name, gradient in once[1].items():
        np.testing.assert_array_equal(half[1][name], gradient / 2)


@pytest.mark.parametrize(
    ("head", "options"),
    [
        ("tied", {"lora": None, "train": "*"}),
        ("untied", {"train": "head"}),
        ("with a bias", {"train": "bias"}),
        ("tied", {"lora": Lora(("table",), rank=4)}),
        ("untied", {"label_smoothing": 0.1}),
        ("untied", {"class_weights": [1.0] * WORDS}),
        ("untied", {"loss": "cross-entropy-last"}),
    ],
)
def test_where_it_cannot_be_scores_are_whole(head: str, options: dict[str, Any]) -> None:
    """The head is trained, scores have another reader, or labels do not count alike."""
    made = poet_onnx.train_graph(decoder(HEADS[head]), **({"loss": "causal-lm", "lora": LORA} | options))
    found = operators(made.training)
    assert (found["VocabularyLossGradient"], found["SoftmaxCrossEntropyLoss"]) == (0, 1)


@pytest.mark.parametrize(
    "head",
    [
        "p = MatMul(h, head) d = Div(p, cap) b2 = Tanh(d) y = Mul(b2, factor)",
        "p = MatMul(h, head) q = Add(p, bias) y = Mul(q, factor)",
        "p = MatMul(h, head) q = Add(p, bias) y = Add(q, bias)",
        "p = MatMul(h, head) y = Tanh(p)",
        "p = MatMul(h, head) y = Relu(p)",
    ],
)
def test_behind_other_operators_scores_are_whole(head: str) -> None:
    made = poet_onnx.train_graph(decoder(head), loss="causal-lm", lora=LORA)
    assert operators(made.training)["VocabularyLossGradient"] == 0


def test_scores_that_another_loss_reads_are_whole() -> None:
    made = poet_onnx.train_graph(decoder(HEADS["untied"]), loss="causal-lm:y+0.1*mse:y", lora=LORA)
    assert operators(made.training)["VocabularyLossGradient"] == 0


@pytest.mark.parametrize("head", ["with a bias", "with a soft cap"])
def test_differences_of_the_loss_find_its_gradients(head: str) -> None:
    made = poet_onnx.train_graph(decoder(HEADS[head]), loss="causal-lm", lora=LORA)
    report = poet_onnx.verify_gradients(made.training, directions=1)
    assert report.passed
