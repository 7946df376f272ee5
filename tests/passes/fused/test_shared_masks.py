"""Layers that hide the same read one mask, and others their own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from forward_models import parse

from poet_onnx.passes.fused.attention import UseAttention
from poet_onnx.passes.fused.fuse import fuse_layers
from poet_onnx.passes.normalize import WriteShapes

TOKENS = 33
"""So that a mask is no small constant, which nodes are folded to."""

LAYER = """k{i} = Transpose <perm = [0, 1, 3, 2]> ({x}) s{i} = MatMul({x}, k{i}) m{i} = {mask} a{i} = Add(s{i}, m{i})
    p{i} = Softmax <axis = -1> (a{i}) {y} = MatMul(p{i}, {x})"""
SEEN = np.tril(np.ones((TOKENS, TOKENS), np.bool_))
ARRAYS = {
    "seen": SEEN,
    "others": SEEN.T,
    **{f"zero{i}": np.array(0, np.float32) for i in (0, 1)},
    **{f"low{i}": np.array([-1e9], np.float32) for i in (0, 1)},
    "lower": np.array([-2e9], np.float32),
    "square": np.full((TOKENS, TOKENS), -1e9, np.float32),
}
WHERE = "Where(seen, zero{i}, low{i})"


def model_of(first: str, second: str) -> ir.Model:
    """Return two layers of attention with masks of their own."""
    layers = [("x", "h", first), ("h", "y", second)]
    body = " ".join(LAYER.format(i=i, x=x, y=y, mask=mask.format(i=i)) for i, (x, y, mask) in enumerate(layers))
    sizes = f"float[1, 2, {TOKENS}, 8]"
    model = parse(f"g ({sizes} x) => ({sizes} y) {{ {body} }}", {n: v for n, v in ARRAYS.items() if n in body})
    WriteShapes()(model)
    return model


def masks(model: ir.Model) -> set[ir.Value | None]:
    found = [node for node in model.graph if node.op_type == "Attend"]
    assert len(found) == 2
    return {node.inputs[4] for node in found}


def test_equal_masks_are_made_once() -> None:
    """Their nodes read constants of their own, of the same numbers."""
    model = model_of(WHERE, WHERE)
    apart = model.clone()
    UseAttention(())(apart)
    assert len(masks(apart)) == 2
    fuse_layers(model, ())
    assert len(masks(model)) == 1
    assert [node.op_type for node in model.graph].count("Where") == 1
    assert {name for name in model.graph.initializers if name in ARRAYS} == {"seen", "zero0", "low0"}


@pytest.mark.parametrize(
    "second",
    [
        "Where(others, zero{i}, low{i})",
        "Where(seen, zero{i}, lower)",
        "Where(seen, low{i}, zero{i})",
    ],
    ids=["another choice", "another number", "turned round"],
)
def test_other_masks_stay(second: str) -> None:
    model = model_of(WHERE, second)
    fuse_layers(model, ())
    assert len(masks(model)) == 2


def test_masks_that_are_drawn_stay() -> None:
    drawn = f"RandomUniform <shape = [{TOKENS}, {TOKENS}], seed = 1.0> ()"
    model = model_of(drawn, drawn)
    fuse_layers(model, ())
    assert len(masks(model)) == 2


def test_masks_of_another_attribute_stay() -> None:
    model = model_of("Trilu <upper = 0> (square)", "Trilu <upper = 1> (square)")
    fuse_layers(model, ())
    assert len(masks(model)) == 2
