"""Which convolutions with stored filters work on panels, and which filters are loaded all the same."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from poet_onnx.passes.panel_comparison import CONVOLUTION, FILTERS, IMAGE, AnyComparison, ConvComparison, Windows
from poet_onnx.passes.stored_panels import UseStoredPanels

HEADER = '<ir_version: 8, opset_import: ["" : 15, "poet" : 1]>'
LOAD = "w = poet.LoadStored <dtype = 1, shape = [{filters}, 50, 2, 2]> (handle)"
FORWARD = "y = Conv <kernel_shape = [2, 2], pads = [0, 0, 1, 1], strides = [1, 1]> (x, w, bias)"
WAYS = "kernel = [2, 2], strides = [1, 1], dilations = [1, 1], begins = [0, 0], pixels = [3, 2], group = 1"
SPREAD = f"dx = poet.ConvDataGradient <image = [3, 2], {WAYS}, images = 2, rows = 3> (dy, w)"
GRADIENT = f"g = poet.ConvWeightGradient <{WAYS}, images = 2, rows = 3, columns = 6> (dy, x)"
UPDATE = (
    "as_filters = Constant <value_ints = [600, 50, 2, 2]> () dw = Reshape (g, as_filters) "
    "done = poet.UpdateStoredAdam <offset = 0> (dw, rates, handle)"
)
WINDOWS = Windows((2, 2), (1, 1), (1, 1), (0, 0), (3, 2))


def layer(filters: int = 600) -> str:
    """Return a convolution, its gradients and the update."""
    return "\n".join([LOAD.format(filters=filters), FORWARD, SPREAD, GRADIENT, UPDATE]).replace("600", str(filters))


def graph(nodes: str, batch: int = 1, filters: int = 600, outputs: str = "") -> ir.Model:
    made = f"float[{batch},{filters},3,2] y, float[{batch},50,3,2] dx, bool[1] done"
    inputs = f"float[{batch},50,3,2] x, float[{batch},{filters},3,2] dy, float[{filters}] bias"
    text = f"{HEADER} g ({inputs}, int64[1] handle, float[10] rates) => ({outputs or made}) {{ {nodes} }}"
    model = onnx.shape_inference.infer_shapes(with_loads(onnx.parser.parse_model(text), filters), data_prop=True)
    read = ir.from_proto(model)
    for number, node in enumerate(read.graph):
        node.name = f"node{number}"
    return read


def with_loads(model: onnx.ModelProto, filters: int) -> onnx.ModelProto:
    """Say what is loaded, which ONNX's shape inference cannot know."""
    loaded = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [filters, 50, 2, 2])
    model.graph.value_info.append(loaded)
    return model


def used(model: ir.Model, keeps: Callable[[AnyComparison], bool] = lambda comparison: True) -> list[ir.Node]:
    made = [(value.name, value.shape) for value in model.graph.outputs]
    UseStoredPanels(keeps)(model)
    assert [(value.name, value.shape) for value in model.graph.outputs] == made
    onnx.checker.check_model(ir.to_proto(model))
    return [node for node in model.graph if node.op_type != "Constant"]


def operators(nodes: list[ir.Node]) -> list[str]:
    return [node.op_type for node in nodes if node.op_type != "Reshape"]


@pytest.mark.parametrize("batch", [1, 2])
def test_a_convolution_and_its_gradients_work_on_panels(batch: int) -> None:
    found = used(graph(layer(), batch))
    assert [node.op_type for node in found] == ["ConvStored", "ConvStoredBackwardAdam"]
    forward, backward = found
    assert [value.name for value in forward.inputs if value] == ["x", "handle", "bias"]
    assert [value.name for value in backward.inputs if value] == ["dy", "x", "rates", "handle"]
    assert [value.name for value in backward.outputs] == ["dx", "done"]
    for node in found:
        assert list(node.attributes.get_ints("matrix", [])) == [600, 200]
        assert [list(node.attributes.get_ints(name, [])) for name in ("kernel", "begins", "pixels")] == [
            [2, 2],
            [0, 0],
            [3, 2],
        ]
    assert [backward.attributes.get_int(name, 0) for name in ("images", "rows")] == [2, 3]


def test_gradients_that_take_other_windows_at_a_time_are_no_layers() -> None:
    found = used(graph(layer().replace("images = 2, rows = 3, columns", "images = 1, rows = 2, columns")))
    assert "ConvWeightGradient" in [node.op_type for node in found]


def test_what_is_compared_is_what_the_graph_computes() -> None:
    compared: list[AnyComparison] = []
    used(graph(layer(), 2), keeps=lambda comparison: not compared.append(comparison))  # type: ignore[func-returns-value]
    assert compared == [
        ConvComparison(CONVOLUTION, (2, 50, 3, 2), 600, 128, WINDOWS, (1, 1), is_biased=True),
        ConvComparison(IMAGE, (2, 50, 3, 2), 600, 128, WINDOWS, images=2, rows=3),
        ConvComparison(FILTERS, (2, 50, 3, 2), 600, 128, WINDOWS, images=2, rows=3),
    ]
    assert str(compared[1]).endswith("(strides 1x1, dilations 1x1, pads 0x0 and 0x0, 2 images of 3 rows together)")
    assert str(compared[0]) == (
        "convolution of 2x50x3x2 with 600 filters of 2x2 in panels of 128 (strides 1x1, dilations 1x1, "
        "pads 0x0 and 1x1, with a bias)"
    )


def test_large_filters_are_compared_in_part_where_it_trains() -> None:
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1), (4, 4))
    whole = ConvComparison(IMAGE, (1, 512, 4, 4), 600, 128, windows)
    assert whole.where_it_trains.filters == 256 + 600 % 128
    assert whole.where_it_trains.where_it_trains == whole.where_it_trains


def test_single_pixels_are_a_product_of_matrices() -> None:
    nodes = """
    w = poet.LoadStored <dtype = 1, shape = [400, 50, 1, 1]> (handle) y = Conv (x, w)
    as_matrix = Constant <value_ints = [400, 50]> () matrix = Reshape (w, as_matrix)
    to400 = Constant <value_ints = [400, 6]> () dflat = Reshape (dy, to400)
    to50 = Constant <value_ints = [50, 6]> () flat = Reshape (x, to50)
    dflatx = Gemm <transA = 1> (matrix, dflat)
    as_image = Constant <value_ints = [1, 50, 3, 2]> () dx = Reshape (dflatx, as_image)
    g = Gemm <transB = 1> (dflat, flat)
    as_filters = Constant <value_ints = [400, 50, 1, 1]> () dw = Reshape (g, as_filters)
    done = poet.UpdateStoredSgd <offset = 0> (dw, rates, handle)
    """
    model = graph(nodes, filters=400)
    model.graph.node(0).outputs[0].shape = ir.Shape([400, 50, 1, 1])
    compared: list[AnyComparison] = []
    found = used(model, keeps=lambda comparison: not compared.append(comparison))  # type: ignore[func-returns-value]
    assert [node.op_type for node in found] == ["ConvStored", "ConvStoredBackwardSgd"]
    assert [value.name for value in found[1].inputs if value] == ["dy", "x", "rates", "handle"]
    assert [str(each).split(" of ")[0] for each in compared] == ["convolution", "gradient", "gradient"]


def test_filters_that_only_convolutions_read_work_on_panels() -> None:
    nodes = f"{LOAD.format(filters=600)} {FORWARD} {FORWARD.replace('y = ', 'z = ')}"
    outputs = "float[1,600,3,2] y, float[1,600,3,2] z"
    assert operators(used(graph(nodes, outputs=outputs))) == ["ConvStored", "ConvStored"]


def test_larger_panels_stand_in_for_those_that_have_other_bits() -> None:
    found = used(graph(layer(), filters=600), keeps=lambda comparison: comparison.panel_rows > 128)
    assert [node.attributes.get_int("panel_rows", 0) for node in found] == [256, 256]


@pytest.mark.parametrize("product", [CONVOLUTION, IMAGE, FILTERS])
def test_filters_are_loaded_where_no_panels_have_their_bits(product: int) -> None:
    model = graph(layer())
    before = str(model.graph)

    def keeps(comparison: AnyComparison) -> bool:
        return comparison.product != product

    assert not UseStoredPanels(keeps)(model).modified
    assert str(model.graph) == before
    assert not model.metadata_props


def test_filters_are_loaded_where_panels_would_take_more() -> None:
    """Fewer filters than what panels take, two sets of columns and a piece of the gradient, make up for."""
    assert operators(used(graph(layer(300), filters=300)))[0] == "LoadStored"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            FORWARD,
            FORWARD.replace("strides", 'group = 1, auto_pad = "VALID", strides').replace("0, 0, 1, 1", "0, 0, 0, 0"),
        ),
        (SPREAD, SPREAD.replace("begins = [0, 0]", "begins = [1, 1]")),
        (SPREAD, SPREAD.replace("group = 1", "group = 2")),
        (GRADIENT, GRADIENT.replace("begins = [0, 0]", "begins = [1, 0]")),
        (GRADIENT, GRADIENT.replace("group = 1", "group = 2")),
        (GRADIENT, GRADIENT.replace("(dy, x)", "(dy, other)")),
        (GRADIENT, GRADIENT.replace("(dy, x)", "(y, x)")),
        (GRADIENT, GRADIENT.replace("g = ", "half = ") + " g = Add (half, half)"),
        ("offset = 0", "offset = 5"),
        (UPDATE, f"{UPDATE} norm = ReduceSum (g)"),
        (SPREAD, f"{SPREAD} sum = ReduceSum (w)"),
    ],
)
def test_filters_are_loaded_where_others_read_them_or_their_gradient_is_another_one(old: str, new: str) -> None:
    nodes = layer()
    assert old in nodes
    model = graph(f"other = Mul (x, x) {nodes.replace(old, new)}")
    found = operators(used(model))
    assert "LoadStored" in found
    assert not any(operator.startswith("ConvStored") for operator in found)
