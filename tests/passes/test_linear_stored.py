"""Which products with stored matrices work on panels, and which whole matrices are loaded all the same."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from poet_onnx.passes.panel_comparison import ACROSS, ALONG, GRADIENT, Comparison
from poet_onnx.passes.stored_panels import UseStoredPanels

HEADER = '<ir_version: 8, opset_import: ["" : 15, "poet" : 1, "com.microsoft" : 1]>'
INPUTS = "float[2,3,200] x, float[2,3,300] dy, float[300] bias, int64[1] handle, float[10] rates"
SHAPES = "float[200,300] wt, float[300,200] w, float[200,300] g, float[6,200] flat, float[6,300] dflat"
SHAPES += ", float[6,200] twice, float[200,300] half"
LOAD = "w = poet.LoadStored <dtype = 1, shape = [300, 200]> (handle)"
TRANSPOSED = "wt = poet.LoadStored <dtype = 1, shape = [200, 300], transposed = 1> (handle)"
FORWARD, BACKWARD = "y = MatMul (x, wt)", "dx = com.microsoft.FusedMatMul <transB = 1> (dy, wt)"
FLAT = "to6 = Constant <value_ints = [6, -1]> () flat = Reshape (x, to6) dflat = Reshape (dy, to6)"
GRADIENT_OF = "g = Gemm <transA = 1> (flat, dflat)"
UPDATE = "done = poet.UpdateStoredAdam <offset = 0, transposed = 1> (g, rates, handle)"
LAYER = f"{TRANSPOSED} {FORWARD} {BACKWARD} {FLAT} {GRADIENT_OF} {UPDATE}"
OUTPUTS = "float[2,3,300] y, float[2,3,200] dx, bool[1] done"


def graph(nodes: str, outputs: str = OUTPUTS) -> ir.Model:
    text = f"{HEADER} g ({INPUTS}) => ({outputs}) <{SHAPES}> {{ {nodes} }}"
    model = ir.from_proto(onnx.parser.parse_model(text))
    for number, node in enumerate(model.graph):
        node.name = f"node{number}"
    return model


def used(nodes: str, outputs: str = OUTPUTS, keeps: Callable[[Comparison], bool] = lambda comparison: True) -> ir.Graph:
    model = graph(nodes, outputs)
    made = [(value.name, value.shape) for value in model.graph.outputs]
    UseStoredPanels(keeps)(model)
    assert [(value.name, value.shape) for value in model.graph.outputs] == made
    onnx.checker.check_model(ir.to_proto(model))
    return model.graph


def operators(graph: ir.Graph) -> list[str]:
    return [node.op_type for node in graph if node.op_type not in ("Constant", "Reshape")]


def test_a_layer_and_its_gradients_work_on_panels() -> None:
    found = used(LAYER)
    forward, backward = (node for node in found if node.op_type.startswith("Linear"))
    assert operators(found) == ["LinearStored", "LinearStoredBackwardAdam"]
    assert [value.name for value in backward.inputs if value] == ["dy", "x", "rates", "handle"]
    assert [value.name for value in backward.outputs] == ["dx", "done"]
    for node in (forward, backward):
        assert list(node.attributes.get_ints("matrix", [])) == [300, 200]
        assert node.attributes.get_int("transposed", 0) == 1
    assert "Reshape" not in [node.op_type for node in found]


def test_what_is_compared_is_what_the_graph_computes() -> None:
    compared: list[Comparison] = []
    used(LAYER, keeps=lambda comparison: not compared.append(comparison))  # type: ignore[func-returns-value]
    panel = compared[0].panel_rows
    assert compared == [
        Comparison(ACROSS, (2, 3), (300, 200), panel, "MatMul", True, False),
        Comparison(ALONG, (2, 3), (300, 200), panel, "FusedMatMul", True, False),
        Comparison(GRADIENT, (6,), (300, 200), panel, "Gemm", True, False),
    ]


def test_a_large_matrix_is_compared_with_fewer_rows_where_it_trains() -> None:
    whole = Comparison(GRADIENT, (6,), (30_522, 768), 128, "Gemm", is_transposed=False, is_biased=False)
    repeated = whole.where_it_trains
    assert repeated.matrix == (5376 + 30_522 % 128, 768)
    assert repeated.where_it_trains == repeated
    assert Comparison(ALONG, (6,), (3072, 768), 128, "Gemm", False, False).where_it_trains.matrix == (3072, 768)


def test_larger_panels_stand_in_for_those_that_have_other_bits() -> None:
    usual = used(LAYER).node(0).attributes.get_int("panel_rows", 0)
    found = used(LAYER, keeps=lambda comparison: comparison.panel_rows > 2 * usual)
    assert found.node(0).attributes.get_int("panel_rows", 0) == 4 * usual


def test_only_products_work_on_panels_where_the_gradients_bits_differ() -> None:
    found = used(LAYER, keeps=lambda comparison: comparison.product != GRADIENT)
    assert operators(found) == ["LinearStored", "LinearStored", "Gemm", "UpdateStoredAdam"]
    assert [node.attributes.get_int("transposed", 0) for node in found if node.op_type == "LinearStored"] == [1, 0]


def test_the_matrix_is_loaded_where_no_panels_have_its_bits() -> None:
    model = graph(LAYER)
    before = str(model.graph)
    assert not UseStoredPanels(lambda comparison: comparison.product != ALONG)(model).modified
    assert str(model.graph) == before
    assert not model.metadata_props


@pytest.mark.parametrize(
    ("nodes", "outputs", "expected"),
    [
        (f"{TRANSPOSED} {FORWARD}", "float[2,3,300] y", ["LinearStored"]),
        (f"{LOAD} y = Gemm <transB = 1> (flat6, w, bias)", "float[6,300] y", ["LinearStored"]),
        (f"{LOAD} y = Gemm <transB = 1, alpha = 0.5> (flat6, w, bias)", "float[6,300] y", ["LoadStored", "Gemm"]),
        (f"{LOAD} y = Gemm <transB = 1, beta = 0.5> (flat6, w, bias)", "float[6,300] y", ["LoadStored", "Gemm"]),
        (f"{LOAD} y = Gemm <transA = 1> (dy6, w)", "float[6,200] y", ["LoadStored", "Gemm"]),
        (f"{TRANSPOSED} y = MatMul (wt, dy300)", "float[200,4] y", ["LoadStored", "MatMul"]),
        (
            f"{TRANSPOSED} {FORWARD} s = ReduceSum (wt)",
            "float[2,3,300] y, float[1,1] s",
            ["LoadStored", "MatMul", "ReduceSum"],
        ),
        (f"{TRANSPOSED} {FORWARD}", "float[2,3,300] y, float[200,300] wt", ["LoadStored", "MatMul"]),
        (f"{TRANSPOSED} {FORWARD} z = MatMul (x, wt)", "float[2,3,300] y, float[2,3,300] z", ["LinearStored"] * 2),
    ],
)
def test_all_readers_must_be_products(nodes: str, outputs: str, expected: list[str]) -> None:
    whole = f"{INPUTS}, float[6,200] flat6, float[300,6] dy6, float[300,4] dy300"
    text = f"{HEADER} g ({whole}) => ({outputs}) <{SHAPES}> {{ {nodes} }}"
    model = ir.from_proto(onnx.parser.parse_model(text))
    UseStoredPanels(lambda comparison: True)(model)
    assert operators(model.graph) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (GRADIENT_OF, "g = Gemm <transA = 1, alpha = 0.5> (flat, dflat)"),
        (GRADIENT_OF, "twice = Add (flat, flat) g = Gemm <transA = 1> (twice, dflat)"),
        (GRADIENT_OF, "half = Gemm <transA = 1> (flat, dflat) g = Add (half, half)"),
        (UPDATE, "done = poet.UpdateStoredAdam <offset = 0, transposed = 1> (g, rates, handle, loss)"),
        (UPDATE, f"{UPDATE} norm = ReduceSum (g)"),
    ],
)
def test_a_gradient_that_is_another_one_or_wanted_elsewhere_stays_whole(old: str, new: str) -> None:
    nodes = LAYER.replace(old, f"loss = ReduceSum (y) {new}" if "loss" in new else new)
    found = operators(used(nodes))
    assert found.count("LinearStored") == 2
    assert "UpdateStoredAdam" in found
    assert "Gemm" in found


def test_a_layer_whose_output_is_its_own_gradient_is_written_right() -> None:
    """As that of half the square of its output is."""
    nodes = f"{TRANSPOSED} {FORWARD} {BACKWARD} {FLAT} {GRADIENT_OF} {UPDATE}".replace("dy", "y")
    found = used(nodes)
    forward, backward = (node for node in found if node.op_type.startswith("Linear"))
    assert backward.op_type == "LinearStoredBackwardAdam"
    assert backward.inputs[0] is forward.outputs[0]
