"""Numbers that a program was given are in doubt, or stand still, where an exporter names them as it names weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forward_models import parse

import poet_onnx
from poet_onnx.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM = np.random.default_rng(4)


def drawn(*shape: int) -> Array:
    """Return numbers as those of a layer."""
    return RANDOM.standard_normal(shape).astype(np.float32)


LAYERS = {"const_0": drawn(6, 6), "const_1": drawn(6), "const_2": drawn(6, 3), "const_3": drawn(3)}
NET = """g (float[4, 6] x) => (float[4, 3] y) {{
    {before} h = Gemm ({x}, const_0, const_1) r = Relu (h) {between} {y} = Gemm ({r}, const_2, const_3) {behind}
}}"""


def net(numbers: Array, *, before: str = "", between: str = "", behind: str = "") -> Any:
    """Return a model of two layers with other numbers before, between or behind them."""
    text = NET.format(
        before=before,
        between=between,
        behind=behind,
        x="x0" if before else "x",
        r="r0" if between else "r",
        y="y0" if behind else "y",
    )
    return parse(text, {**LAYERS, "const_4": numbers.astype(np.float32)})


SYMMETRIC = drawn(4, 4) + np.eye(4, dtype=np.float32)
DOUBTFUL = {
    "a scale of what is given": net(drawn(6), before="x0 = Mul (x, const_4)"),
    "a shift of what is given": net(drawn(1, 6), before="x0 = Add (const_4, x)"),
    "a shift of what was scaled": net(drawn(6), before="s = Abs (x) x1 = Mul (x, const_4) x0 = Add (x1, const_4)"),
    "a scale of what is returned": net(drawn(3), behind="y = Mul (y0, const_4)"),
    "a shift of what is returned": net(drawn(3), behind="y = Add (y0, const_4)"),
    "a limit": net(drawn(6), between="r0 = Min (r, const_4)"),
    "a symmetric matrix": net(SYMMETRIC + SYMMETRIC.T, between="r0 = MatMul (const_4, r)"),
    "a grid of places": net(np.arange(4)[:, None] * drawn(6), between="g = MatMul (const_4, const_0) r0 = Add (r, g)"),
    "another order as a product": net(np.eye(6)[::-1], between="r0 = MatMul (r, const_4)"),
}


@pytest.mark.parametrize("model", DOUBTFUL.values(), ids=DOUBTFUL)
@pytest.mark.parametrize("writer", ["jax2onnx", "", "pytorch"])
def test_what_may_be_given_is_in_doubt(model: Any, writer: str) -> None:
    model = model.clone()
    model.producer_name = writer
    with pytest.raises(InputError, match=r"In doubt are 'const_4' \(.*; trained without doubt are const_0, const_1"):
        poet_onnx.train_graph(model, loss="mse")
    assert "const_4" in poet_onnx.train_graph(model.clone(), loss="mse", train="+const_4").values


def test_a_filter_that_is_its_own_mirror_is_in_doubt() -> None:
    text = """g (float[4, 2, 5, 5] x) => (float[4, 3, 3, 3] y) {
        s = Conv <group = 2, pads = [1, 1, 1, 1]> (x, blur) y = Conv (s, const_0)
    }"""
    blur = np.outer([1, 2, 1], [1, 2, 1]).astype(np.float32) / 16
    model = parse(text, {"const_0": drawn(3, 2, 3, 3), "blur": np.stack([blur, blur])[:, None]})
    with pytest.raises(InputError, match=r"In doubt are 'blur' .*; trained without doubt are const_0\.$"):
        poet_onnx.train_graph(model, loss="mse")


@pytest.mark.parametrize(
    ("before", "between", "size"),
    [("x0 = Mul (x, const_4)", "", 6), ("", "r0 = Mul (r, const_4)", 6), ("x0 = Mul (const_4, x)", "", (1, 6))],
)
def test_a_mask_of_zeros_and_ones_stands_still(before: str, between: str, size: Any) -> None:
    mask = np.resize([1, 0, 1, 1, 0, 1], size)
    found = poet_onnx.train_graph(net(mask, before=before, between=between), loss="mse")
    assert set(found.values) == set(LAYERS)
    assert "const_4" in found.frozen


@pytest.mark.parametrize(
    "model",
    [
        net(drawn(6), between="r0 = Mul (r, const_4)"),  # as a scale behind a normalization
        net(drawn(4, 6), before="x0 = Add (x, const_4)"),  # as a table of positions
        net(drawn(6, 6), between="r0 = MatMul (r, const_4)"),
        net(np.zeros((6, 6)), between="r0 = MatMul (r, const_4)"),  # as a fresh last layer
        net(np.ones((6, 6)), between="r0 = MatMul (r, const_4)"),  # as in a first try
    ],
    ids=["a scale", "positions", "a matrix", "zeros", "ones"],
)
def test_what_layers_have_is_trained(model: Any) -> None:
    assert set(poet_onnx.train_graph(model, loss="mse").values) == {*LAYERS, "const_4"}


@pytest.mark.parametrize("name", ["Mu_Mulcst", "Ad_Addcst1"])
def test_what_scikit_learn_fitted_before_a_network_stands_still(name: str) -> None:
    operator = {"Mu": "Mul", "Ad": "Add"}[name[:2]]
    text = NET.format(before=f"x0 = {operator} (x, {name})", between="", behind="", x="x0", r="r", y="y")
    found = poet_onnx.train_graph(parse(text, {**LAYERS, name: drawn(6)}), loss="mse")
    assert set(found.values) == set(LAYERS)
