"""Nodes that compute a Gelu or a layer normalization stay as they are where a constant of theirs adds dimensions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from forward_models import parse, random, step
from torch.nn import functional

import poet_onnx

ONE = np.ones((1, 1, 1), np.float32)
GELU = "d = Div(h, r) e = Erf(d) f = Add(e, one) g = Mul(h, f) y = Mul(g, half)"
NORMALIZATION = """m = ReduceMean <axes = [-1]> (h) d = Sub(h, m) q = Pow(d, two) v = ReduceMean <axes = [-1]> (q)
    e = Add(v, epsilon) r = Sqrt(e) n = Div(d, r) t = Mul(n, s) y = Add(t, b)"""


@pytest.mark.parametrize(
    ("nodes", "constants", "computed"),
    [
        (GELU, {"r": np.float32(2**0.5), "one": ONE, "half": np.float32(0.5)}, functional.gelu),
        (
            NORMALIZATION,
            {"two": np.float32(2), "epsilon": 1e-5 * ONE, "s": np.ones(6, np.float32), "b": np.zeros(6, np.float32)},
            lambda h: functional.layer_norm(h, (6,)),
        ),
    ],
    ids=["gelu", "layer-normalization"],
)
def test_a_constant_of_more_dimensions_keeps_them(
    nodes: str, constants: dict[str, np.ndarray], computed: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    arrays = {name: np.asarray(value, np.float32) for name, value in constants.items()} | {"w": random(3, 6)}
    text = f"g (float[4, 3] x) => (float[1, 4, 6] y) {{ h = MatMul(x, w) {nodes} }}"
    made = poet_onnx.train_graph(parse(text, arrays), loss="mse", train=("w",))
    x, target = random(4, 3), random(1, 4, 6)
    loss, gradients = step(made, x=x, target=target)
    w = torch.tensor(arrays["w"], requires_grad=True)
    right = functional.mse_loss(computed(torch.from_numpy(x) @ w)[None], torch.from_numpy(target))
    right.backward()
    assert w.grad is not None
    assert loss == pytest.approx(right.item(), rel=1e-5)
    np.testing.assert_allclose(gradients["w"], w.grad.numpy(), rtol=1e-4, atol=1e-6)
