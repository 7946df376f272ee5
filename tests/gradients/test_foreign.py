"""Operators of other programs train as what they compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from forward_models import parse, random, step
from torch.nn import functional

import poet_onnx


def test_the_gelu_of_keras_trains_as_that_of_torch() -> None:
    arrays = {"w": random(5, 4), "root": np.float32(-np.sqrt(0.5)), "half": np.float32(0.5)}
    text = """g (float[3, 5] x) => (float[3, 4] y) {
        m = MatMul(x, w) s = Mul(m, root) e = Erfc(s) p = Mul(e, m) y = Mul(p, half) }"""
    made = poet_onnx.train_graph(parse(text, arrays), loss="mse", train="w")
    x, labels = random(3, 5), random(3, 4)
    loss, gradients = step(made, x=x, target=labels)
    w = torch.tensor(arrays["w"], requires_grad=True)
    right = functional.mse_loss(functional.gelu(torch.from_numpy(x) @ w), torch.from_numpy(labels))
    right.backward()
    assert w.grad is not None
    assert loss == pytest.approx(right.item(), rel=1e-6)
    np.testing.assert_allclose(gradients["w"], w.grad.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", ["0.5, 2.0, -1.0", "3.0"])
def test_a_scaler_stands_still_before_what_trains(scale: str) -> None:
    text = f"""g (int64[2, 3] x) => (float[2, 4] y) {{
        s = ai.onnx.ml.Scaler <offset = [1.0, -2.0, 0.5], scale = [{scale}]> (x) y = MatMul(s, w) }}"""
    weight = random(3, 4)
    made = poet_onnx.train_graph(parse(text, {"w": weight}), loss="mse")
    x, labels = np.array([[1, 2, 3], [-4, 5, 6]]), random(2, 4)
    loss, gradients = step(made, x=x, target=labels)
    scaled = (x - np.array([1.0, -2.0, 0.5])) * np.fromstring(scale, sep=",")
    away = scaled @ weight - labels
    assert set(made.values) == {"w"}
    assert loss == pytest.approx((away**2).mean(), rel=1e-6)
    np.testing.assert_allclose(gradients["w"], scaled.T @ away * 2 / away.size, rtol=1e-5)
