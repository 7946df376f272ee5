"""Tensors of a model that are named as gradients will be are in nobody's way."""

from __future__ import annotations

import numpy as np
import pytest
from forward_models import parse, random, step

import poet_onnx
from poet_onnx.errors import InputError

CHAIN = "g (float[4, 3] x) => (float[4, 5] y) { h = MatMul(x, w) INNER = Tanh(h) y = MatMul(INNER, v) }"


@pytest.mark.parametrize("inner", ["w_grad", "h_grad", "h_grad_1", "v_grad"])
def test_a_tensor_inside_gives_way(inner: str) -> None:
    arrays = {"w": random(3, 5), "v": random(5, 5)}
    x, target = random(4, 3), random(4, 5)
    plain, named = (
        step(poet_onnx.train_graph(parse(CHAIN.replace("INNER", name), arrays), loss="mse"), x=x, target=target)
        for name in ("t", inner)
    )
    assert named[0] == plain[0]
    for name, gradient in plain[1].items():
        np.testing.assert_array_equal(named[1][name], gradient)


def test_a_parameter_is_asked_to_give_way() -> None:
    text = "g (float[4, 3] x) => (float[4, 5] y) { h = MatMul(x, w) y = MatMul(h, w_grad) }"
    model = parse(text, {"w": random(3, 5), "w_grad": random(5, 5)})
    with pytest.raises(InputError, match=r"The gradient of 'w' is named 'w_grad', as another .*: rename that one"):
        poet_onnx.train_graph(model, loss="mse")
