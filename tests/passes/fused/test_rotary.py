"""What becomes a rotary embedding in one node, and what does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from forward_models import random

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.rotary import ROTATE
from poet_onnx.passes.fused.rotary import UseRotate
from poet_onnx.passes.normalize import WriteShapes
from poet_onnx.verification.double import DoubleForward

ARRAYS = {
    **{name: np.array([number]) for name, number in {"i0": 0, "i1": 1, "i2": 2, "i3": 3, "i4": 4, "i8": 8}.items()},
    "most": np.array([2**63 - 1]),
    "last": np.array([-1]),
    "four": np.array([4, 4]),
    "six": np.array([2, 6]),
    "all": np.array([1, 2, 5, 8]),
    "cos": random(5, 8),
    "sin": random(1, 5, 8),
    "cosine": random(1, 1, 5, 8),
    "sine": random(1, 1, 5, 8),
    "part_cos": random(1, 1, 5, 4),
    "part_sin": random(1, 1, 5, 4),
    "odd": random(1, 1, 1, 1),
    **{name: random(1, 1, 2, 8) for name in ("few_cos", "few_sin")},
    **{name: random(5, 2, 8) for name in ("head_cos", "head_sin")},
}
HALVES = "a = Slice(x, i0, i4, i3, i1) b = Slice(x, i4, most, i3, i1) n = Neg(b) r = Concat<axis = -1>(n, a)"
NEIGHBOURS = """a = Slice(x, i0, most, i3, i2) b = Slice(x, i1, most, i3, i2) n = Neg(b)
    p = Unsqueeze(n, last) q = Unsqueeze(a, last) j = Concat<axis = -1>(p, q) r = Reshape(j, all)"""
SUM = "s = Mul(x, cosine) t = Mul(r, sine) y = Add(s, t)"
PART = """x1 = Slice(x, i0, i4, i3, i1) x2 = Slice(x, i4, most, i3, i1)
    a = Slice(x1, i0, i2, i3, i1) b = Slice(x1, i2, most, i3, i1) n = Neg(b) r = Concat<axis = -1>(n, a)
    s = Mul(x1, part_cos) t = Mul(r, part_sin) m = Add(s, t)"""
FOUND = {
    "halves": (f"{HALVES} {SUM}", (8, 0)),
    "halves, the other way round": (f"{HALVES} s = Mul(cosine, x) t = Mul(sine, r) y = Add(t, s)", (8, 0)),
    "halves of a split": (
        f"a, b = Split<axis = 3>(x, four) n = Neg(b) r = Concat<axis = 3>(n, a) {SUM}",
        (8, 0),
    ),
    "neighbours": (f"{NEIGHBOURS} {SUM}", (8, 1)),
    "a part of each row": (f"{PART} y = Concat<axis = -1>(m, x2)", (4, 0)),
}
LEFT = {
    "no sign": f"a = Slice(x, i0, i4, i3, i1) b = Slice(x, i4, most, i3, i1) r = Concat<axis = -1>(b, a) {SUM}",
    "the other sign": "a = Slice(x, i0, i4, i3, i1) b = Slice(x, i4, most, i3, i1) n = Neg(a)"
    f" r = Concat<axis = -1>(b, n) {SUM}",
    "unequal parts": f"a, b = Split<axis = 3>(x, six) n = Neg(b) r = Concat<axis = 3>(n, a) {SUM}",
    "halves that are stacked": f"""{NEIGHBOURS} {SUM}""".replace("i3, i2", "i3, i1")
    .replace("Slice(x, i0, most", "Slice(x, i0, i4")
    .replace("Slice(x, i1, most", "Slice(x, i4, most"),
    "another value beside it": f"{HALVES} z = Neg(x) s = Mul(z, cosine) t = Mul(r, sine) y = Add(s, t)",
    "a product that is read besides": f"{HALVES} s = Mul(x, cosine) t = Mul(r, sine) z = Add(s, t) y = Mul(z, t)",
    "one cosine": f"{HALVES} s = Mul(x, odd) t = Mul(r, odd) y = Add(s, t)",
}


def model(body: str, opset: int = 17) -> ir.Model:
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> f (float[1, 2, 5, 8] x) => (float[1, 2, 5, 8] y) {{ {body} }}'
    )
    proto = onnx.parser.parse_model(text)
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in ARRAYS.items() if name in used
    )
    made = ir.from_proto(proto)
    WriteShapes()(made)
    return made


def fused(given: ir.Model, trained: Sequence[str] = ()) -> list[ir.Node]:
    """Return the nodes that are left after values were compared in float64."""
    x = {"x": random(1, 2, 5, 8)}
    before = DoubleForward(given, "y", x).values["y"]
    UseRotate(trained)(given)
    given.graph.opset_imports[POET_DOMAIN] = 1
    np.testing.assert_array_equal(DoubleForward(given, "y", x).values["y"], before)
    return list(given.graph)


@pytest.mark.parametrize(("body", "how"), FOUND.values(), ids=FOUND)
def test_what_exporters_write_becomes_one_node(body: str, how: tuple[int, int]) -> None:
    (node,) = fused(model(body))
    assert node.op_type == ROTATE
    assert (node.attributes["rotated"].as_int(), node.attributes["interleaved"].as_int()) == how


TURNED = "{} = Transpose<perm = [0, 2, 1, 3]>({})"
OF_HEADS = f"""{TURNED.format("h", "x")} a = Slice(h, i0, i4, i3, i1) b = Slice(h, i4, most, i3, i1) n = Neg(b)
    r = Concat<axis = -1>(n, a) s = Mul(h, COS) t = Mul(r, SIN) z = Add(s, t) {TURNED.format("y", "z")}"""


@pytest.mark.parametrize(
    ("angles", "operators"),
    [
        ("", [ROTATE, "Transpose", "Transpose"]),
        ("c = Neg(few_cos) s2 = Neg(few_sin)", ["Neg", "Neg", "Reshape", "Reshape", ROTATE, "Transpose", "Transpose"]),
        ("each", ["Transpose", ROTATE, "Transpose"]),
    ],
    ids=["constants", "made by nodes", "of each head"],
)
def test_heads_are_transposed_behind(angles: str, operators: list[str]) -> None:
    body = OF_HEADS.replace("COS", "few_cos").replace("SIN", "few_sin")
    if angles == "each":
        body = OF_HEADS.replace("COS", "head_cos").replace("SIN", "head_sin")
    elif angles:
        body = f"{angles} {OF_HEADS}".replace("COS", "c").replace("SIN", "s2")
    nodes = fused(model(body))
    assert sorted(node.op_type for node in nodes) == sorted(operators)
    first, *_ = (node for node in nodes if node.op_type in (ROTATE, "Transpose"))
    assert (first.op_type == ROTATE) == (angles != "each")


def test_a_part_without_the_rest_is_rotated_alone() -> None:
    (part, node, rest, joined) = fused(model(f"{PART} z = Neg(x2) y = Concat<axis = -1>(m, z)"))[-4:]
    assert {part.op_type, node.op_type, rest.op_type, joined.op_type} == {"Slice", ROTATE, "Neg", "Concat"}


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_what_is_something_else_stays(body: str) -> None:
    given = model(body)
    operators = [node.op_type for node in given.graph]
    assert [node.op_type for node in fused(given)] == operators


@pytest.mark.parametrize("name", ["cosine", "sine"])
def test_angles_that_are_trained_stay(name: str) -> None:
    assert ROTATE not in [node.op_type for node in fused(model(f"{HALVES} {SUM}"), [name])]


def test_onnxs_operator_becomes_ours() -> None:
    arrays = {name: random(1, 5, 4) for name in ("c", "s")}
    text = "y = RotaryEmbedding<interleaved = 1>(x, c, s)"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 23]> f (float[1, 2, 5, 8] x) => (float[1, 2, 5, 8] y) {{ {text} }}'
    )
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    given = ir.from_proto(proto)
    WriteShapes()(given)
    (node,) = fused(given)
    assert (node.op_type, node.attributes["interleaved"].as_int(), node.attributes["rotated"].as_int()) == (
        ROTATE,
        1,
        8,
    )
