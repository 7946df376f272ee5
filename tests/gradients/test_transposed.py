"""Weights that were transposed for a product: a training graph reads them as they are, with torch's gradients."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir
import pytest
import torch
from forward_models import parse, random, step
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import InputError

WIDE = 600
"""Columns with which a weight is too large for an evaluation graph that transposes it."""


def operators(model: ir.Model) -> set[str]:
    return {node.op_type for node in model.graph}


def layers(size: str, *, reader: str = "") -> ir.Model:
    """Return two layers, of which both matrices are transposed for their product."""
    text = f"""g (float[{size}, 3] x) => (float[{size}, 5] y) {{
        first = Transpose <perm = [1, 0]> (w1)
        h = MatMul (x, first)
        t = Tanh (h)
        second = Transpose <perm = [1, 0]> (w2)
        {"z" if reader else "y"} = MatMul (t, second)
        {reader}
    }}"""
    return parse(text, {"w1": random(WIDE, 3), "w2": random(5, WIDE)})


@pytest.mark.parametrize("size", ["4", "2, 3"])
def test_products_read_transposed_weights_as_they_are(size: str) -> None:
    made = poet_onnx.train_graph(layers(size), loss="mse")
    assert "Transpose" not in operators(made.training)
    assert "Transpose" in operators(made.evaluation), "what is exported keeps the exporter's nodes"
    shape = [int(each) for each in size.split(",")]
    x, labels = random(*shape, 3), random(*shape, 5)
    loss, gradients = step(made, x=x, target=labels)
    leaves = [torch.tensor(made.values[name], dtype=torch.float64, requires_grad=True) for name in ("w1", "w2")]
    expected = functional.mse_loss(
        torch.tanh(torch.tensor(x).double() @ leaves[0].T) @ leaves[1].T, torch.tensor(labels).double()
    )
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    for name, leaf in zip(("w1", "w2"), leaves, strict=True):
        assert leaf.grad is not None
        assert np.abs(gradients[name] - leaf.grad.numpy()).max() < 1e-5 * leaf.grad.abs().max().item()


@pytest.mark.parametrize(
    ("train", "rows", "left"),
    [
        ("w2", "2, 3", set()),  # w1 is frozen, and there as it is read
        (None, "4", {"Transpose"}),
    ],
)
def test_a_copy_stays_for_other_readers_alone(train: str | None, rows: str, left: Collection[str]) -> None:
    reader = "squares = Mul (second, second) sum = ReduceSum <keepdims = 0> (squares) y = Add (z, sum)"
    made = poet_onnx.train_graph(layers(rows, reader=reader if left else ""), loss="mse", train=train)
    assert operators(made.training) & {"Transpose"} == set(left)
    assert "FusedMatMul" in operators(made.training)


def test_a_vector_is_multiplied_with_the_copy() -> None:
    text = "g (float[3] x) => (float[5] y) { t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t) }"
    made = poet_onnx.train_graph(parse(text, {"w": random(5, 3)}), loss="mse")
    assert "FusedMatMul" not in operators(made.training)


def test_large_weights_are_evaluated_as_they_are_trained() -> None:
    text = "g (float[2, 600] x) => (float[2, 500] y) { t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t) }"
    made = poet_onnx.train_graph(parse(text, {"w": random(500, 600)}), loss="mse")
    assert made.fused is not None
    assert "Transpose" not in operators(made.fused)


def test_other_products_of_the_runtime_are_refused_by_name() -> None:
    text = "g (float[3, 4] x) => (float[4, 5] y) { y = com.microsoft.FusedMatMul <transA = 1> (x, w) }"
    model = parse(text, {"w": random(3, 5)})
    model.opset_imports["com.microsoft"] = 1
    with pytest.raises(InputError, match=r"FusedMatMul of other operands than rows and one transposed matrix"):
        poet_onnx.train_graph(model, loss="mse")
