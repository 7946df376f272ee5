"""Which products with weights of few bits work on panels, and which weights are floats all the same."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest
from onnx import NodeProto, TensorProto, helper
from quantized_models import Weight, model_of

from poet_onnx.description.names import PANELS_KEY
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.normalize import Normalization, WriteShapes
from poet_onnx.passes.panel_comparison import ACROSS, ALONG, Comparison
from poet_onnx.passes.quantized.panels import UseQuantizedPanels, has_blocks

WEIGHT = Weight(300, 64, has_zeros=True)
X, Y = ("x", TensorProto.FLOAT, (2, 3, 64)), ("y", (2, 3, 300))
FLAT = ("x", TensorProto.FLOAT, (6, 64))


def used(
    readers: list[NodeProto],
    x: tuple[str, int, tuple[int, ...]] = X,
    y: tuple[str, tuple[int, ...]] = Y,
    keeps: Callable[[Comparison], bool] = lambda comparison: True,
    weight: Weight = WEIGHT,
    *,
    signed: bool = False,
) -> ir.Model:
    node, initializers = weight.dequantized("w", "q", turned=False, signed=signed)
    model = as_model(model_of([node, *readers], initializers, x, y, 21))
    for number, each in enumerate(model.graph):
        each.name = f"node{number}"
    Normalization(WriteShapes())(model)
    UseQuantizedPanels(keeps)(model)  # type: ignore[arg-type]
    onnx.checker.check_model(ir.to_proto(model))
    return model


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


TURNED = helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0])
FORWARD = helper.make_node("MatMul", ["x", "t"], ["y"])
BACK = helper.make_node("FusedMatMul", ["y", "t"], ["dx"], domain="com.microsoft", transB=1)
LOSS = helper.make_node("Neg", ["dx"], ["z"])
SUMMED = (
    helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0),
    helper.make_node("Add", ["y", "s"], ["z"]),
)


def test_a_product_and_its_gradient_work_on_panels() -> None:
    """Codes, scales and zeros are there once, and floats of the whole weight nowhere."""
    compared: list[Comparison] = []
    model = used(
        [TURNED, FORWARD, BACK, LOSS],
        y=("z", (2, 3, 64)),
        keeps=lambda comparison: not compared.append(comparison),  # type: ignore[func-returns-value]
    )
    assert operators(model) == ["LinearQuantized", "LinearQuantized", "Neg"]
    forward, back, _ = model.graph
    names = [value.name for value in forward.inputs if value]
    assert names == ["x", "q_DQ_Q4/bytes", "q_DQ_scales", "q_DQ_zero_points/bytes"]
    assert [value.name for value in back.inputs if value] == ["y", *names[1:]]
    assert set(model.graph.initializers) == set(names[1:])
    for node, way in ((forward, 1), (back, 0)):
        given = {name: node.attributes[name].value for name in ("bits", "block", "signed", "zeroed", "transposed")}
        assert given == {"bits": 4, "block": 32, "signed": 0, "zeroed": 1, "transposed": way}
    panel = compared[0].panel_rows
    assert set(compared) == {
        Comparison(ACROSS, (2, 3), (300, 64), panel, "MatMul", True, False),
        Comparison(ALONG, (2, 3), (300, 64), panel, "FusedMatMul", True, False),
    }
    assert model.metadata_props[PANELS_KEY]
    assert not has_blocks(model.graph)


@pytest.mark.parametrize(
    ("readers", "x", "y", "expected"),
    [
        ([helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)], FLAT, ("y", (6, 300)), ["LinearQuantized"]),
        (
            [helper.make_node("Gather", ["w", "x"], ["y"])],
            ("x", TensorProto.INT64, (5,)),
            ("y", (5, 64)),
            ["GatherQuantized"],
        ),
        (
            [helper.make_node("Gather", ["w", "x"], ["y"], axis=1)],
            ("x", TensorProto.INT64, (5,)),
            ("y", (300, 5)),
            ["DequantizeLinear", "Gather"],
        ),
        (
            [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1, alpha=0.5)],
            FLAT,
            ("y", (6, 300)),
            ["DequantizeLinear", "Gemm"],
        ),
        (
            [TURNED, FORWARD, *SUMMED],
            X,
            ("z", (2, 3, 300)),
            ["DequantizeLinear", "LinearQuantized", "ReduceSum", "Add"],
        ),
    ],
)
def test_other_readers_read_floats(
    readers: list[NodeProto],
    x: tuple[str, int, tuple[int, ...]],
    y: tuple[str, tuple[int, ...]],
    expected: list[str],
) -> None:
    assert operators(used(readers, x, y)) == expected


def test_a_product_whose_panels_have_other_bits_stays_whole() -> None:
    tried: list[int] = []

    def keeps(comparison: Comparison) -> bool:
        tried.append(comparison.panel_rows)
        return False

    model = used([TURNED, FORWARD], keeps=keeps)
    assert operators(model) == ["DequantizeLinear", "Transpose", "MatMul"]
    assert tried == [tried[0], 2 * tried[0], 4 * tried[0]]
    assert PANELS_KEY not in model.metadata_props


def test_a_large_matrix_is_compared_in_part() -> None:
    compared: list[Comparison] = []
    used(
        [TURNED, FORWARD],
        ("x", TensorProto.FLOAT, (2, 3, 512)),
        ("y", (2, 3, 40_000)),
        keeps=lambda comparison: not compared.append(comparison),  # type: ignore[func-returns-value]
        weight=Weight(40_000, 512, bits=8),
    )
    (only,) = set(compared)
    assert only == only.where_it_trains
    assert only.matrix[0] < 40_000


def test_signed_codes_without_zeros_stay_as_they_are() -> None:
    model = used([TURNED, FORWARD], weight=Weight(300, 64), signed=True)
    (node,) = model.graph
    assert len(node.inputs) == 3
    assert (node.attributes["signed"].value, node.attributes["zeroed"].value) == (1, 0)
