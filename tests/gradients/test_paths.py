"""What gradients flow through, and what they would flow through but are not known for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from forward_models import parse, random

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning

TRAINED = {
    "OneHot": ("o = OneHot(labels, five, v)\nc = MatMul(x, w)\ny = Mul(c, o)", {"v": random(2)}),
    "DequantizeLinear": ("d = DequantizeLinear(bits, v)\ny = MatMul(x, d)", {"v": np.float32(0.3)}),
    "Range": ("r = Range(v, two, half)\nc = MatMul(x, w)\ny = Add(c, r)", {"v": np.float32(-0.4)}),
    "Dropout": ("c = MatMul(x, w)\ny = Dropout(c, v, yes)", {"v": np.float32(0.3)}),
}
"""For each operator nodes in which it reads a trained tensor, and this."""

CONSTANTS = {
    "five": np.array(5),
    "bits": np.arange(-15, 15, dtype=np.int8).reshape(6, 5),
    "two": np.float32(2),
    "half": np.float32(0.5),
    "yes": np.array(True),
}


@pytest.mark.parametrize("operator", TRAINED)
def test_a_trained_tensor_is_refused_where_an_operators_gradient_by_it_is_not_known(operator: str) -> None:
    """Though others of its readers have one: it would train by a part of its gradient."""
    nodes, trained = TRAINED[operator]
    arrays = {"w": random(6, 5), **trained, **{name: each for name, each in CONSTANTS.items() if name in nodes}}
    labels = ", int64[4] labels" if "labels" in nodes else ""
    text = f"""g (float[4, 6] x{labels}) => (float[4, 5] z) {{
        {nodes}
        s = ReduceSum <keepdims = 0> (v)
        z = Add(y, s)
    }}"""
    with pytest.raises(
        InputError, match=rf"not known: {operator} \(an operand that trains\).*Freeze the parameters before them"
    ):
        poet_onnx.train_graph(parse(text, arrays), loss="mse", train="v")


@pytest.mark.parametrize("between", ["h = Identity(i)", "h = Abs(i)"])
def test_nothing_flows_through_integers(between: str) -> None:
    text = f"""g (float[4, 6] x) => (float[4, 5] y) {{
        c = MatMul(x, w)
        i = Cast <to = 7> (c)
        {between}
        y = Cast <to = 1> (h)
    }}"""
    with pytest.raises(InputError, match="No gradient of 'loss' leads to 'w'"):
        poet_onnx.train_graph(parse(text, {"w": random(6, 5)}), loss="mse")


ENDS = {
    "Round": "h = Round(c)",
    "Cast": "i = Cast <to = 7> (c)\nh = Cast <to = 1> (i)",
    "Greater": "b = Greater(c, v)\nh = Cast <to = 1> (b)",
}


@pytest.mark.parametrize("operator", ENDS)
def test_where_all_gradients_of_a_parameter_end_is_told(operator: str) -> None:
    with pytest.warns(PoetWarning, match=f"leads to 'w': not trained. That of {operator} '.*' is zero"):
        assert set(trained_with(ENDS[operator])) == {"v"}


NO_ENDS = {
    "another way": ("b = Greater(c, v)\nh = Where(b, c, v)", {"v", "w"}),
    "a shape": ("n = Shape(c)\nh = Expand(v, n)", {"v"}),
}


@pytest.mark.parametrize("what", NO_ENDS)
def test_gradients_that_go_another_way_or_end_at_a_shape_are_not_told_of(what: str) -> None:
    nodes, trained = NO_ENDS[what]
    assert set(trained_with(nodes)) == trained


def trained_with(nodes: str) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return what trains of two weights, with nodes between them that make h of c."""
    text = f"""g (float[4, 6] x) => (float[4, 4] y) {{
        c = MatMul(x, w)
        {nodes}
        t = Transpose(v)
        y = MatMul(h, t)
    }}"""
    return poet_onnx.train_graph(parse(text, {"w": random(6, 5), "v": random(4, 5)}), loss="mse").values


def test_a_trained_operand_is_found_far_from_what_trains_and_from_what_it_is_joined_with() -> None:
    text = """g (float[4, 6] x, int64[4] labels) => (float[4, 5] y) {
        bent = Tanh(v)
        one = OneHot(labels, five, bent)
        flat = Flatten(one)
        c = MatMul(x, w)
        joined = Mul(c, flat)
        s = ReduceSum <keepdims = 0> (v)
        y = Add(joined, s)
    }"""
    arrays = {"w": random(6, 5), "v": random(2), "five": np.array(5)}
    with pytest.raises(InputError, match=r"OneHot \(an operand that trains\)"):
        poet_onnx.train_graph(parse(text, arrays), loss="mse", train="v")
