"""Equal tensors of a file are one parameter or several, as they are in the network that was exported."""

from __future__ import annotations

import warnings

import numpy as np
import onnx_ir as ir
import pytest
import torch
from forward_models import parse, step

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning

RNG = np.random.default_rng(7)
WIDTH = 6
X = RNG.standard_normal((4, WIDTH)).astype(np.float32)
DRAWN = {name: RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 2 for name in ("w", "v")}
ZEROS, GATE = np.zeros(WIDTH, np.float32), np.repeat(np.float32([0, 1, 0]), 2)


def keras(body: str, **arrays: np.ndarray) -> ir.Model:
    """Return a model whose tensors but `x` and `y` have names that torch's legacy exporter gives, as all of Keras's."""
    model = parse(f"g (float[4, {WIDTH}] x) => (float[4, {WIDTH}] y) {{ {body} }}", DRAWN | arrays)
    model.producer_name = "pytorch"
    for node in list(model.graph):
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.name and len(value.name) == 1 and value.name not in "xy":
                value.name = f"onnx::{value.name}"
    return model


def trained(model: ir.Model, **options: object) -> set[str]:
    return {name.removeprefix("onnx::") for name in poet_onnx.train_graph(model, loss="mse", **options).values}


TWICE = "a = MatMul(x, w) h = Tanh(a) u = Identity(w) y = MatMul(h, u)"


def test_a_weight_that_is_read_twice_is_one() -> None:
    assert trained(keras(TWICE)) == {"w"}
    made = poet_onnx.train_graph(keras(TWICE), loss="mse")
    _, found = step(made, x=X, target=np.zeros_like(X))
    weight = torch.tensor(DRAWN["w"], requires_grad=True)
    (torch.tanh(torch.tensor(X) @ weight) @ weight).square().mean().backward()
    assert weight.grad is not None
    np.testing.assert_allclose(found["onnx::w"], weight.grad.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="Nothing is left to train"):
        trained(keras(TWICE), freeze="onnx::w")


def test_in_files_of_others_an_identity_is_one() -> None:
    model = keras(TWICE)
    model.producer_name = "somebody"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(model, train="*w") == {"w"}


@pytest.mark.parametrize("bias", [ZEROS, GATE], ids=["zeros", "an open gate"])
def test_equal_biases_are_of_the_weights_beside_them(bias: np.ndarray) -> None:
    """One layer at two places has one bias; two layers have two, which are equal at the start."""
    first = "a = MatMul(x, w) b = Add(a, c) h = Tanh(b) d = Identity(c)"
    assert trained(keras(f"{first} u = Identity(w) e = MatMul(h, u) y = Add(e, d)", c=bias)) == {"w", "c"}
    with pytest.warns(PoetWarning, match="merged parameters of equal numbers into 'onnx::c'"):
        assert trained(keras(f"{first} e = MatMul(h, v) y = Add(e, d)", c=bias)) == {"w", "v", "c", "d"}


@pytest.mark.parametrize("train", [None, "*"])
def test_a_bias_that_another_program_merged_is_told(train: str | None) -> None:
    """An optimizer for inference makes one of equal tensors, and leaves no Identity that tells."""
    body = "a = MatMul(x, w) b = Add(a, c) h = Tanh(b) e = MatMul(h, v) y = Add(e, c)"
    with pytest.warns(PoetWarning, match="'onnx::c' is the bias of 2 layers of other weights, and is trained as one"):
        assert trained(keras(body, c=ZEROS), train=train) == {"w", "v", "c"}
    again = body.replace("MatMul(h, v)", "MatMul(h, w)")  # one layer at two places
    assert trained(keras(again, c=ZEROS), train=train) == {"w", "c"}
    trained(keras(body, c=ZEROS), freeze="onnx::c")


def test_the_bias_of_a_single_unit_is_trained() -> None:
    body = "a = MatMul(x, t) s = Cast <to = 1> (a) b = Add(s, c) y = Mul(b, x)"
    one = {"t": DRAWN["w"][:, :1].copy(), "c": np.zeros(1, np.float32)}
    assert trained(keras(body, **one)) == {"t", "c"}
    assert trained(keras(body.replace("MatMul(x, t)", "MatMul(x, w)"), **one)) == {"w"}


def test_a_normalization_that_was_never_trained_is_told() -> None:
    """A mean of zeros is taken off; ones and zeros that scale and shift may be anything."""
    fresh = {"m": ZEROS, "o": np.ones(WIDTH, np.float32), "z": ZEROS}
    model = keras("a = MatMul(x, w) c = Sub(a, m) s = Mul(c, o) b = Add(s, z) y = MatMul(b, v)", **fresh)
    with pytest.warns(PoetWarning, match=r"stand still, such as 'onnx::o', 'onnx::z'\. If one .* --train"):
        assert trained(model.clone()) == {"w", "v"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(model.clone(), freeze=["onnx::[moz]"]) == {"w", "v"}
        assert trained(model, train="*", freeze="onnx::m") == {"w", "v", "o", "z"}
        assert trained(model, train=["+onnx::o", "+onnx::z"], freeze="onnx::m") == {"w", "v", "o", "z"}


def test_zeros_that_were_computed_of_a_parameter_are_told() -> None:
    """As the rows that Swin's scores get of a table of zeros."""
    model = keras("a = MatMul(x, w) b = Add(a, z) y = MatMul(b, v)", z=np.zeros((len(X), WIDTH), np.float32))
    with pytest.warns(PoetWarning, match=r"stand still, such as 'onnx::z'\. .* export with do_constant_folding=False"):
        assert trained(model) == {"w", "v"}
