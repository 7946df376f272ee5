"""What becomes a gated activation in one node, and what does not."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from forward_models import random

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.activations import ACTIVATIONS, GATED_ACTIVATE
from poet_onnx.passes.fused.gated_activation import UseGatedActivation
from poet_onnx.passes.normalize import WriteShapes
from poet_onnx.verification.double import DoubleForward

ARRAYS = {
    "one": np.array(1, np.float32),
    "half": np.array(0.5, np.float32),
    "three": np.array(3, np.float32),
    "cubic": np.array(0.044715, np.float32),
    "factor": np.array(math.sqrt(2 / math.pi), np.float32),
    "root": np.array([math.sqrt(2)], np.float32),
    "other": np.array(1.702, np.float32),
    "row": random(1, 8),
}
TANH = "t = Mul(factor, s) h = Tanh(t) p = Add(one, h)"
FOUND = {
    "silu": ("silu", "s = Sigmoid(g) a = Mul(g, s) y = Mul(a, u)"),
    "silu, the other way round": ("silu", "s = Sigmoid(g) a = Mul(s, g) y = Mul(u, a)"),
    "silu by division": ("silu", "n = Neg(g) e = Exp(n) p = Add(e, one) a = Div(g, p) y = Mul(a, u)"),
    "gelu": ("gelu", "d = Div(g, root) e = Erf(d) p = Add(e, one) m = Mul(g, p) a = Mul(m, half) y = Mul(a, u)"),
    "gelu, halved first": (
        "gelu",
        "d = Div(g, root) e = Erf(d) p = Add(e, one) h = Mul(half, p) a = Mul(g, h) y = Mul(a, u)",
    ),
    "gelu of tanh": (
        "gelu_tanh",
        f"q = Mul(g, g) c = Mul(g, q) k = Mul(cubic, c) s = Add(g, k) {TANH} m = Mul(g, p) a = Mul(half, m)"
        " y = Mul(a, u)",
    ),
    "gelu of tanh by a power": (
        "gelu_tanh",
        f"c = Pow(g, three) k = Mul(cubic, c) s = Add(g, k) {TANH} h2 = Mul(half, p) a = Mul(g, h2) y = Mul(a, u)",
    ),
    "ONNX Runtime's": ("gelu_tanh", "a = com.microsoft.FastGelu(g) y = Mul(a, u)"),
}
LEFT = {
    "another activation": "k = Mul(other, g) s = Sigmoid(k) a = Mul(g, s) y = Mul(a, u)",
    "a sigmoid alone": "s = Sigmoid(g) y = Mul(s, u)",
    "an activation that is read besides": "s = Sigmoid(g) a = Mul(g, s) m = Mul(a, u) y = Add(m, a)",
    "a part that is read besides": "s = Sigmoid(g) a = Mul(g, s) m = Mul(a, u) y = Add(m, s)",
    "a factor that is repeated": "s = Sigmoid(g) a = Mul(g, s) y = Mul(a, row)",
    "a gate that is a factor": "s = Sigmoid(g) a = Mul(u, s) y = Mul(a, g)",
}


def model(body: str, opset: int = 17) -> ir.Model:
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    gates = "g = Add(x, base) u = Neg(x)"  # what an adapter is added to
    proto = onnx.parser.parse_model(f"{head} f (float[5, 8] x) => (float[5, 8] y) {{ {gates} {body} }}")
    arrays = {"base": random(5, 8)} | {name: array for name, array in ARRAYS.items() if name in body}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    made = ir.from_proto(proto)
    WriteShapes()(made)
    return made


def fused(given: ir.Model) -> list[ir.Node]:
    """Return the nodes that are left behind the gate and the factor, after values were compared in float64."""
    x = {"x": random(5, 8) * 4}
    before = DoubleForward(given, "y", x).values["y"]
    UseGatedActivation()(given)
    given.graph.opset_imports[POET_DOMAIN] = 1
    np.testing.assert_allclose(DoubleForward(given, "y", x).values["y"], before, rtol=1e-5, atol=1e-6)
    return list(given.graph)[2:]


@pytest.mark.parametrize(("kind", "body"), FOUND.values(), ids=FOUND)
def test_what_exporters_write_becomes_one_node(kind: str, body: str) -> None:
    (node,) = fused(model(body))
    assert node.op_type == GATED_ACTIVATE
    assert ACTIVATIONS[node.attributes["activation"].as_int()] == kind


@pytest.mark.parametrize(("way", "kind"), [("none", "gelu"), ("tanh", "gelu_tanh")])
def test_onnx_has_an_operator(way: str, kind: str) -> None:
    (node,) = fused(model(f'a = Gelu<approximate = "{way}">(g) y = Mul(u, a)', opset=20))
    assert ACTIVATIONS[node.attributes["activation"].as_int()] == kind


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_what_is_something_else_stays(body: str) -> None:
    given = model(body)
    operators = [node.op_type for node in given.graph][2:]
    assert [node.op_type for node in fused(given)] == operators
