"""Copies go, and numbers that are made of numbers are constants, unless they are there for something."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
from forward_models import parse

from poet_onnx.description.names import STOPS_GRADIENT
from poet_onnx.passes.fused.fuse import fuse_layers
from poet_onnx.passes.fused.plain import DropCopies, FoldNumbers
from poet_onnx.passes.normalize import WriteShapes

SCALE, ROW = np.array(0.3, np.float32), np.array([0.3, 0.5], np.float32)


def model_of(body: str, scale: np.ndarray = SCALE, outputs: str = "float[4, 2] y") -> ir.Model:
    arrays = {"scale": scale, "three": np.array(3.0), "same": np.array([4, 2]), "other": np.array([2, 4])}
    arrays |= {"none": np.array(0, np.float32), "on": np.array(True)}
    model = parse(f"g (float[4, 2] x) => ({outputs}) {{ {body} }}", arrays)
    WriteShapes()(model)
    return model


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_copies_of_what_nodes_make_go() -> None:
    model = model_of("a = Relu(x) b = Identity(a) c = Identity(b) y = Mul(c, scale)")
    assert DropCopies()(model).modified
    assert operators(model) == ["Relu", "Mul"]
    assert not DropCopies()(model).modified


def test_views_of_the_same_shape_go() -> None:
    model = model_of("a = Relu(x) b = Reshape(a, same) c = Reshape(b, other) d = Relu(c) y = Reshape(d, same)")
    assert DropCopies()(model).modified
    assert operators(model) == ["Relu", "Reshape", "Relu", "Reshape"]


@pytest.mark.parametrize(
    ("drop", "stays"),
    [("b = Dropout(a, none, on)", False), ("b, m = Dropout(a, none, on)", False), ("b = Dropout(a, scale, on)", True)],
)
def test_dropouts_that_drop_nothing_go(drop: str, stays: bool) -> None:
    """As of a module in training mode whose ratio is 0."""
    model = model_of(f"a = Relu(x) {drop} y = Mul(b, scale)")
    assert DropCopies()(model).modified != stays
    assert ("Dropout" in operators(model)) == stays


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("a = Relu(x) y = Identity(a)", "float[4, 2] y"),
        ("a = Relu(x) b = Identity(a) y = Neg(b)", "float[4, 2] y, float[4, 2] b"),
        ("a = Identity(x) y = Relu(a)", "float[4, 2] y"),
        ("a = Identity(scale) y = Mul(x, a)", "float[4, 2] y"),
    ],
    ids=["the output", "another output", "of an input", "of a parameter"],
)
def test_copies_that_give_a_name_stay(body: str, outputs: str) -> None:
    model = model_of(body, outputs=outputs)
    assert not DropCopies()(model).modified
    assert "Identity" in operators(model)


def test_a_copy_that_stops_gradients_stays() -> None:
    model = model_of("a = Relu(x) b = Identity(a) y = Mul(b, scale)")
    next(node for node in model.graph if node.op_type == "Identity").metadata_props[STOPS_GRADIENT] = "1"
    fuse_layers(model, ())
    assert operators(model) == ["Relu", "Identity", "Mul"]


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("r = Sqrt(scale) y = Mul(x, r)", np.sqrt(SCALE)),
        ("d = Sqrt(three) c = CastLike(d, scale) r = Div(scale, c) y = Mul(x, r)", SCALE / np.float32(np.sqrt(3.0))),
        ("d = Sqrt(three) c = Cast <to = 1> (d) y = Mul(x, c)", np.float32(np.sqrt(3.0))),
        ("a = Add(scale, scale) b = Mul(a, a) c = Sub(b, scale) y = Mul(x, c)", (SCALE + SCALE) ** 2 - SCALE),
    ],
    ids=["a root", "a quotient", "of doubles", "several"],
)
def test_numbers_of_numbers_are_constants(body: str, number: np.float32) -> None:
    model = model_of(body)
    assert FoldNumbers()(model).modified
    (node,) = model.graph
    factor = node.inputs[1]
    assert factor is not None
    assert factor.const_value is not None
    assert factor.const_value.dtype == ir.DataType.FLOAT
    assert factor.const_value.numpy() == number
    assert model.graph.initializers[factor.name or ""] is factor


@pytest.mark.parametrize(
    ("body", "scale", "trained", "outputs"),
    [
        ("r = Sqrt(scale) y = Mul(x, r)", SCALE, ["scale"], "float[4, 2] y"),
        ("r = Sqrt(scale) y = Mul(x, r)", ROW, [], "float[4, 2] y"),
        ("r = Sqrt(scale) y = Mul(x, r)", SCALE, [], "float[4, 2] y, float r"),
        ("r = Sin(scale) y = Mul(x, r)", SCALE, [], "float[4, 2] y"),
    ],
    ids=["trained", "a row", "an output", "rounded as the runtime likes"],
)
def test_other_numbers_stay(body: str, scale: np.ndarray, trained: Sequence[str], outputs: str) -> None:
    model = model_of(body, scale, outputs)
    before = operators(model)
    fuse_layers(model, trained)
    assert operators(model) == before
