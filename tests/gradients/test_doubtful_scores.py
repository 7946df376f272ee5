"""Scores of which a loss computes again what the model has computed; what torch makes of both ways."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from forward_models import parse, random, step
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import PoetWarning

BODIES = {
    "plain": "s = MatMul(x, w)\n y = Softmax(s)",
    "reshaped": "h = MatMul(x, w)\n s = Reshape(h, image)\n f = Flatten(s)\n p = Softmax(f)\n y = Reshape(p, image)",
}


@pytest.mark.parametrize("body", BODIES)
def test_cross_entropy_of_a_softmax_is_warned_of_and_what_is_named_instead_is_trained(body: str) -> None:
    shape = (4, 5) if body == "plain" else (4, 5, 1, 1)
    arrays = {"w": random(3, 5)} | ({} if body == "plain" else {"image": np.array(shape)})
    model = parse(f"g (float[4, 3] x) => (float{list(shape)} y) {{ {BODIES[body]} }}", arrays)
    x, labels = random(4, 3), np.array([0, 4, 2, 1]).reshape(4, *shape[2:])
    with pytest.warns(PoetWarning, match=r"'y' comes from Softmax '.*computed twice.*give the loss 'cross-entropy:s'"):
        twice = poet_onnx.train_graph(model)
    once = poet_onnx.train_graph(model, loss="cross-entropy:s")
    assert [value.name for value in once.evaluation.graph.outputs] == ["loss", "y"]
    leaf = torch.tensor(arrays["w"], requires_grad=True)
    scores = (torch.tensor(x) @ leaf).reshape(shape)
    for made, given in ((twice, scores.softmax(1)), (once, scores)):
        found, gradients = step(made, x=x, labels=labels)
        expected = functional.cross_entropy(given, torch.tensor(labels))
        assert found == pytest.approx(expected.item(), rel=1e-5)
        (gradient,) = torch.autograd.grad(expected, leaf, retain_graph=True)
        np.testing.assert_allclose(gradients["w"], gradient.numpy(), rtol=1e-4, atol=1e-6)


def test_cross_entropy_of_bits_behind_a_sigmoid_is_warned_of() -> None:
    model = parse("g (float[4, 3] x) => (float[4, 5] y) { s = MatMul(x, w)\n y = Sigmoid(s) }", {"w": random(3, 5)})
    with pytest.warns(PoetWarning, match="'y' comes from Sigmoid '.*give the loss 'bce-logits:s'"):
        poet_onnx.train_graph(model, loss="bce-logits")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        poet_onnx.train_graph(model, loss="bce-logits:s")
        poet_onnx.train_graph(model, loss="mse")
        poet_onnx.train_graph(model, loss="cross-entropy")
