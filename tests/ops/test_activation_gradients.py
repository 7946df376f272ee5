"""Gradients of activations and of softmaxes by one kernel each, beside torch in float64.

The stock runtime runs these tests, too (test_ops.py).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from activation_functions import FUNCTIONS, SHAPES
from single_nodes import Array, distance, run_node

from poet_onnx.graph.operators.activations import ACTIVATIONS

ERROR = 1e-6


def right(kind: str, d_y: Array, x: Array) -> Array:
    """Return torch's gradient in float64 of an activation, or of a softmax over the last dimension."""
    leaf = torch.tensor(x.astype(np.float64), requires_grad=True)
    y = leaf.softmax(-1) if kind == "softmax" else FUNCTIONS[kind](leaf)
    y.backward(torch.tensor(d_y.astype(np.float64)))
    assert leaf.grad is not None
    return leaf.grad.numpy()


def found(kind: str, *given: Array) -> Array:
    attributes = {"activation": ACTIVATIONS.index(kind), "biased": len(given) - 2}
    (made,) = run_node("ActivationGradient", list(given), **attributes)
    return made


@pytest.mark.parametrize("shape", [*SHAPES, (), (0, 4), (5, 3, 1), (2, 20_000)], ids=str)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_slopes_are_those_of_float64_with_a_bias_and_without(kind: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(3)
    d_y, x = (np.asarray(random.standard_normal(shape) * 3, np.float32) for _ in range(2))
    np.testing.assert_allclose(found(kind, d_y, x), right(kind, d_y, x), rtol=ERROR, atol=ERROR)
    if shape:
        bias = random.standard_normal(shape[-1:]).astype(np.float32)
        np.testing.assert_allclose(found(kind, d_y, x, bias), right(kind, d_y, x + bias), rtol=ERROR, atol=ERROR)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_inputs_of_any_size_are_borne(kind: str) -> None:
    x = np.array([-1e10, -200, -90, -20, -5, -1e-30, 0, 1e-30, 5, 20, 90, 200, 1e10], np.float32)
    ones = np.ones_like(x)
    np.testing.assert_allclose(found(kind, ones, x), right(kind, ones, x), rtol=ERROR, atol=ERROR)


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 7, 33), (4099,), (5, 3, 1), (0, 4), (4, 0), (2, 20_000)], ids=str)
def test_gradients_of_softmax_are_those_of_float64(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(4)
    d_y, x = (np.asarray(random.standard_normal(shape) * 3, np.float32) for _ in range(2))
    y = torch.from_numpy(x).double().softmax(-1).float().numpy()
    (made,) = run_node("SoftmaxGradient", [d_y, y])
    assert distance(made, right("softmax", d_y, x)) <= ERROR
