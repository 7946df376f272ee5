"""What becomes a normalization by the root mean square in one node, and what does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from forward_models import random

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.normalization import RMS_NORMALIZE
from poet_onnx.passes.fused.rms_norm import UseRmsNormalize
from poet_onnx.passes.normalize import WriteShapes
from poet_onnx.verification.double import DoubleForward

ARRAYS = {
    "two": np.array(2, np.float32),
    "eps": np.array(1e-6, np.float32),
    "one": np.array([1], np.float32),
    "minus_half": np.array(-0.5, np.float32),
    "axis": np.array([-1]),
    "first": np.array([0]),
    "scale": random(8),
    "whole": random(5, 8),
}
MEAN = "p = Pow(x, two) m = ReduceMean<axes = [-1]>(p) a = Add(m, eps)"
INVERSE = f"{MEAN} s = Sqrt(a) i = Reciprocal(s)"
FOUND = {
    "as torch's older exporter writes it": f"{MEAN} s = Sqrt(a) i = Div(one, s) n = Mul(x, i) y = Mul(scale, n)",
    "with a reciprocal": f"{INVERSE} n = Mul(i, x) y = Mul(n, scale)",
    "with a product as square": "p = Mul(x, x) m = ReduceMean<axes = [2]>(p) a = Add(eps, m) s = Sqrt(a)"
    " n = Div(x, s) y = Mul(n, scale)",
    "with a power as inverse": f"{MEAN} i = Pow(a, minus_half) n = Mul(x, i) y = Mul(n, scale)",
    "of a weight and one": f"{INVERSE} n = Mul(x, i) w = Add(one, scale) y = Mul(n, w)",
    "without a scale": f"{INVERSE} y = Mul(x, i)",
}
PARTLY = {
    "a result that is read before it is scaled": f"{INVERSE} n = Mul(x, i) z = Mul(n, scale) y = Add(n, z)",
    "a scale for each element": f"{INVERSE} n = Mul(x, i) y = Mul(n, whole)",
}
LEFT = {
    "a mean along another axis": "p = Pow(x, two) m = ReduceMean<axes = [1]>(p) a = Add(m, eps) s = Sqrt(a)"
    " i = Reciprocal(s) y = Mul(x, i)",
    "a mean that is read besides": f"{INVERSE} n = Mul(x, i) y = Add(n, m)",
    "an inverse that is read besides": f"{INVERSE} n = Mul(x, i) y = Add(n, i)",
    "another power": "p = Pow(x, one) m = ReduceMean<axes = [-1]>(p) a = Add(m, eps) s = Sqrt(a)"
    " i = Reciprocal(s) y = Mul(x, i)",
    "something else that is divided": f"{INVERSE} z = Neg(x) y = Mul(z, i)",
    "two over the root": f"{MEAN} s = Sqrt(a) i = Div(two, s) y = Mul(x, i)",
}


def model(body: str, opset: int = 15) -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2, 5, 8] x) => (float[2, 5, 8] y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    named = [array for array in ARRAYS if array in body]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(ARRAYS[name], name) for name in named)
    made = ir.from_proto(proto)
    WriteShapes()(made)
    return made


def fused(given: ir.Model, trained: Sequence[str] = ()) -> list[str]:
    """Return the operators that are left, in order, after the values were compared in float64."""
    x = {"x": random(2, 5, 8)}
    before = DoubleForward(given, "y", x).values["y"]
    UseRmsNormalize(trained)(given)
    given.graph.opset_imports[POET_DOMAIN] = 1
    after = DoubleForward(given, "y", x).values["y"]
    np.testing.assert_allclose(after, before, rtol=1e-6)
    return [node.op_type for node in given.graph]


@pytest.mark.parametrize("body", FOUND.values(), ids=FOUND)
def test_what_exporters_write_becomes_one_node(body: str) -> None:
    assert fused(model(body)) == [RMS_NORMALIZE]


def test_axes_that_are_an_input_are_known() -> None:
    body = FOUND["with a reciprocal"].replace("ReduceMean<axes = [-1]>(p)", "ReduceMean(p, axis)")
    assert fused(model(body, opset=18)) == [RMS_NORMALIZE]


@pytest.mark.parametrize("operator", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_single_operators_become_ours(operator: str) -> None:
    given = model(f"y = {operator}<axis = -1, epsilon = 1e-6>(x, scale)", opset=23)
    UseRmsNormalize()(given)
    (node,) = given.graph
    assert node.op_type == RMS_NORMALIZE
    assert node.attributes["epsilon"].as_float() == np.float32(1e-6)
    other = model(f"y = {operator}<axis = 1>(x, whole)", opset=23)
    assert not UseRmsNormalize()(other).modified


def test_heads_are_transposed_behind() -> None:
    turned = "Transpose<perm = [0, 2, 1, 3]>"
    body = INVERSE.replace("Pow(x", "Pow(h").replace("axes = [-1]", "axes = [3]")
    body = f"u = Unsqueeze(x, first) h = {turned}(u) {body} n = Mul(h, i) t = Mul(n, scale) v = {turned}(t)"
    given = model(f"{body} y = Squeeze(v, first)")
    assert fused(given) == ["Unsqueeze", RMS_NORMALIZE, "Transpose", "Transpose", "Squeeze"]
    assert next(node for node in given.graph if node.op_type == RMS_NORMALIZE).outputs[1].shape == (1, 2, 5, 1)


def test_a_weight_that_is_trained_keeps_its_sum() -> None:
    assert fused(model(FOUND["of a weight and one"]), ["scale"]) == ["Add", RMS_NORMALIZE]


@pytest.mark.parametrize("body", PARTLY.values(), ids=PARTLY)
def test_what_cannot_be_the_scale_stays_behind(body: str) -> None:
    left = fused(model(body))
    assert left[0] == RMS_NORMALIZE
    assert "ReduceMean" not in left


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_what_is_something_else_stays(body: str) -> None:
    given = model(body)
    operators = [node.op_type for node in given.graph]
    assert fused(given) == operators
