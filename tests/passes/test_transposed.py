"""Transposed weights of onnxruntime's artifacts are read and updated as they lie, and copies of tensors go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from poet_onnx.graph import Role
from poet_onnx.graph.extract.roles import say_role
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.lowering import prepare
from poet_onnx.passes.normalize import WriteShapes
from poet_onnx.passes.transposed import ReadTransposed
from poet_onnx.passes.views import is_matrix_transpose

SIZES = {"x": (2, 4, 3), "w": (5, 3), "dy": (2, 4, 5), "a": (8, 3), "b": (8, 5), "c": (3, 5)}
TURNED = "t = Transpose <perm = [1, 0]> (w)"
BACK = "p = com.microsoft.FusedMatMul <transB = 1> (dy, t)"


def model(nodes: str, made: str, *names: str) -> onnx.ModelProto:
    def declared(name: str, sizes: tuple[int, ...]) -> str:
        return f"float[{', '.join(map(str, sizes))}] {name}"

    inputs = ", ".join(declared(name, SIZES[name]) for name in names)
    text = f"""<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g ({inputs}) => ({made}) {{ {nodes} }}"""
    return onnx.parser.parse_model(text)


def run(given: onnx.ModelProto) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    feeds = {value.name: random.standard_normal(SIZES[value.name]).astype(np.float32) for value in given.graph.input}
    session = onnxruntime.InferenceSession(given.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def read_as_they_lie(given: onnx.ModelProto) -> ir.Model:
    changed = ir.from_proto(given)
    WriteShapes()(changed)
    buffer = ir.val("sum", ir.DataType.FLOAT, [5, 3])
    say_role(buffer, Role.GRADIENT_BUFFER, "w")
    changed.graph.inputs.append(buffer)
    ReadTransposed()(changed)
    changed.graph.inputs.remove(buffer)
    for before, after in zip(run(given), run(ir.to_proto(changed)), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)
    return changed


@pytest.mark.parametrize(
    ("nodes", "made", "names", "left"),
    [
        (f"{TURNED} y = MatMul(x, t)", "float[2, 4, 5] y", "xw", ["FusedMatMul"]),
        (f"{TURNED} {BACK}", "float[2, 4, 3] p", ("dy", "w"), ["MatMul"]),
        (
            f"{TURNED} y = MatMul(x, t) {BACK} z = Add(p, x)",
            "float[2, 4, 5] y, float[2, 4, 3] z",
            ("x", "w", "dy"),
            None,
        ),
        ("d = Gemm <transA = 1> (a, b) t = Transpose <perm = [1, 0]> (d)", "float[5, 3] t", "ab", ["Gemm"]),
        ("d = Gemm <transB = 1> (a, w) t = Transpose (d)", "float[5, 8] t", "aw", ["Gemm"]),
    ],
)
def test_products_are_those_with_a_copy(nodes: str, made: str, names: tuple[str, ...], left: list[str] | None) -> None:
    found = [node.op_type for node in read_as_they_lie(model(nodes, made, *names)).graph]
    assert "Transpose" not in found
    assert left is None or found == left


@pytest.mark.parametrize(
    ("nodes", "made", "names"),
    [
        (f"{TURNED} p = com.microsoft.FusedMatMul <transB = 1, alpha = 2.0> (dy, t)", "float[2, 4, 3] p", ("dy", "w")),
        (f"{TURNED} y = MatMul(t, w)", "float[3, 3] y", ("w",)),
        (f"{TURNED} y = Neg(t)", "float[3, 5] y", ("w",)),
        (
            "d = Gemm <transA = 1> (a, b) t = Transpose <perm = [1, 0]> (d) y = Neg(d)",
            "float[5, 3] t, float[3, 5] y",
            ("a", "b"),
        ),
        ("d = Gemm <transA = 1> (a, b, c) t = Transpose <perm = [1, 0]> (d)", "float[5, 3] t", ("a", "b", "c")),
        ("d = Gemm <transA = 1, alpha = 0.5> (a, b) t = Transpose <perm = [1, 0]> (d)", "float[5, 3] t", ("a", "b")),
    ],
)
def test_a_copy_stays_where_somebody_else_needs_it(nodes: str, made: str, names: tuple[str, ...]) -> None:
    given = model(nodes, made, *names)
    assert [node.op_type for node in read_as_they_lie(given).graph] == [node.op_type for node in given.graph.node]


def test_a_weight_that_is_not_trained_is_left() -> None:
    left = ir.from_proto(model(f"{TURNED} y = MatMul(x, t)", "float[2, 4, 5] y", "x", "w"))
    assert not ReadTransposed()(left).modified


def test_artifacts_are_lowered_without_copies_of_weights_or_gradients(model_path: Callable[..., Path]) -> None:
    lowered = as_model(model_path("transformer"))
    given = {node.op_type for node in lowered.graph}
    prepare(target="stock")(lowered)
    inputs = set(lowered.graph.inputs)
    assert {"Identity", "Transpose"} <= given
    assert "Identity" not in {node.op_type for node in lowered.graph}
    assert [node.name for node in lowered.graph if is_matrix_transpose(node) and node.inputs[0] in inputs] == []
