"""Every inferred size is the one that ONNX Runtime has: whole graphs by its profiler, operators one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from deep import sampled
from operator_cases import CASES, Case, build, feeds, floats, microsoft

from poet_onnx.errors import InputError
from poet_onnx.graph.extract import load_model
from poet_onnx.graph.operators.shape_context import TensorType
from poet_onnx.graph.shapes import infer
from poet_onnx.graph.shapes.declared import check_size
from poet_onnx.passes.normalize import normalize

USUAL = [("resnet18", 1), ("vgg16", 1), ("bert-2", 1), ("mobilenet", 2), ("densenet", 2), ("mlp-mse", 4)]
MORE = [("resnet18", 3), ("resnet50", 1), ("bert-2", 2), ("bert-base", 1), ("transformer", 3), ("unet", 2)]
PROFILED = sampled([*USUAL, *MORE, ("mlp-bce", 4), ("mlp-l1", 4)], *USUAL)

ELEMENT_TYPES = {"float": "FLOAT", "int64": "INT64", "int32": "INT32", "bool": "BOOL", "double": "DOUBLE"}


def session(model: Path | bytes, profile: Path | None = None) -> onnxruntime.InferenceSession:
    """Return a session that changes nothing in the graph."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def zeros(model: ir.Model) -> dict[str, Any]:
    """Return a feed of zeros; every index and label is valid, and sizes do not depend on values."""
    found = infer(model).types
    return {
        value.name: np.zeros(found[value.name].shape, found[value.name].dtype.numpy()) for value in model.graph.inputs
    }


def profiled_types(path: Path, model: ir.Model, folder: Path) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Return the types of each node's outputs as ONNX Runtime's profiler saw them, by node name."""
    running = session(path, folder / "profile")
    running.run(None, zeros(model))
    events = json.loads(Path(running.end_profiling()).read_text())
    seen = {}
    for event in events:
        name = event["name"].removesuffix("_kernel_time")
        if event.get("cat") == "Node" and name != event["name"]:
            outputs = [next(iter(output.items())) for output in event["args"]["output_type_shape"]]
            seen[name] = [(ELEMENT_TYPES[kind], tuple(shape)) for kind, shape in outputs]
    return seen


@pytest.mark.parametrize(("name", "batch"), PROFILED)
def test_whole_graphs_have_the_sizes_of_the_profile(
    name: str, batch: int, model_path: Callable[..., Path], tmp_path: Path
) -> None:
    path = model_path(name, batch=batch)
    model = load_model(path)
    types = infer(model).types
    profiled = profiled_types(path, model, tmp_path)
    assert set(profiled) == {node.name for node in model.graph}
    for node in model.graph:
        outputs = [types[value.name] for value in node.outputs if value.name]
        assert [(kind.dtype.name, kind.shape) for kind in outputs] == profiled[node.name or ""], node.name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators_have_the_shapes_of_the_kernels(case: Case) -> None:
    model = build(case)
    types = infer(model).types
    normalize()(model)
    arrays = session(ir.to_proto(model).SerializeToString()).run(None, feeds(case))
    assert [(types[f"y{i}"].shape, types[f"y{i}"].dtype.numpy()) for i in range(case.outputs)] == [
        (array.shape, array.dtype) for array in arrays
    ]


def test_shapes_that_the_graph_computes_are_followed() -> None:
    """The chain that exporters write to flatten all but the first dimension, and one that halves a dimension."""
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15]> g (float[4, 6, 10] x) => (float[] y, float[] z)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}, int64[1] minus = {-1}, int64 two = {2}> {
            s = Shape(x)  first = Slice(s, zero, one)  rest = Slice(s, one, three)  product = ReduceProd(rest)
            target = Concat<axis = 0>(first, product)  y = Reshape(x, target)
            scalar = Constant<value_int = 2>()  last = Gather<axis = 0>(s, scalar)  half = Div(last, two)
            row = Unsqueeze(half, zero)  starts = Sub(row, one)
            z = Slice(x, starts, row, minus)
        }"""
    )
    found = infer(ir.from_proto(graph))
    assert found.types["y"].shape == (4, 60)
    assert found.types["z"].shape == (4, 6, 1)
    assert found.values["target"].tolist() == [4, 60]


def test_nodes_that_differ_in_one_thing_alone_have_shapes_of_their_own() -> None:
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15]> g (float[4, 1, 6] x, float[6] v) => (float[] y, float[] z)
        <int64[3] twice = {1, 2, 1}, int64[3] thrice = {1, 3, 1}> {
            a = Transpose<perm = [0, 2, 1]>(x)  b = Transpose<perm = [2, 1, 0]>(x)  c = Transpose(x)
            d = Tile(x, twice)  e = Tile(x, thrice)  f = Tile(x, twice)
            g = MatMul(x, v)  h, i = Split<axis = 0>(x)  j, k = Split<axis = 2>(x)
            y = Identity(a)  z = Identity(e)
        }"""
    )
    types = infer(ir.from_proto(graph)).types
    shapes = {"a": (4, 6, 1), "b": (6, 1, 4), "c": (6, 1, 4), "d": (4, 2, 6), "e": (4, 3, 6), "f": (4, 2, 6)}
    shapes |= {
        "g": (4, 1),
        "h": (2, 1, 6),
        "i": (2, 1, 6),
        "j": (4, 1, 3),
        "k": (4, 1, 3),
        "y": (4, 6, 1),
        "z": (4, 3, 6),
    }
    assert {name: types[name].shape for name in shapes} == shapes


def test_an_attribute_that_is_a_type_is_no_obstacle() -> None:
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    nodes = [onnx.helper.make_node("Optional", [], [name], name=name, type=kind) for name in ("first", "second")]
    graph = onnx.helper.make_graph(nodes, "g", [], [])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)])
    with pytest.raises(InputError, match=r"'first', made by node 'first' .* is a optional"):
        infer(ir.from_proto(model))


def test_shapes_that_go_through_the_concatenation_of_training_graphs_are_followed() -> None:
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]> g (float[batch, 6, 10] x) => (float[] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[2] rest = {-1, 5}> {
            s = Shape(x)  first = Slice(s, zero, one)
            target, lengths = com.microsoft.ConcatTraining<axis = 0>(first, rest)  y = Reshape(x, target)
        }"""
    )
    found = infer(ir.from_proto(graph), {"batch": 4})
    assert found.types["y"].shape == (4, 12, 5)
    assert found.values["target"].tolist() == [4, -1, 5]
    assert found.values["lengths"].tolist() == [1, 2]


def test_division_of_integers_rounds_towards_zero_as_the_kernel_does() -> None:
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15]> g () => (int64[4] y)
        <int64[4] a = {7, -7, 7, -7}, int64[4] b = {2, 2, -2, -2}> { y = Div(a, b) }"""
    )
    kernel = session(graph.SerializeToString()).run(None, {})[0]
    assert infer(ir.from_proto(graph)).values["y"].tolist() == kernel.tolist() == [3, -3, -3, 3]


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_have_the_sign_that_the_kernel_gives_them(fmod: int) -> None:
    graph = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 15]> g () => (int64[4] y)
        <int64[4] a = {{7, -7, 7, -7}}, int64[4] b = {{4, 4, -4, -4}}> {{ y = Mod <fmod = {fmod}> (a, b) }}"""
    )
    kernel = session(graph.SerializeToString()).run(None, {})[0]
    expected = [3, -3, 3, -3] if fmod else [3, 1, -1, -3]
    assert infer(ir.from_proto(graph)).values["y"].tolist() == kernel.tolist() == expected


@pytest.mark.parametrize("bounds", [["low"], ["low", ""], ["low", "high"]])
def test_bounds_of_numbers_are_kept_as_the_kernel_keeps_them(bounds: list[str]) -> None:
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15]> g () => (int64[4] y)
        <int64[4] a = {-3, 0, 2, 9}, int64 low = {0}, int64 high = {5}> { y = Clip(a) }"""
    )
    graph.graph.node[0].input.extend(bounds)  # "" is a bound that is left out, as torch's legacy exporter writes it
    kernel = session(graph.SerializeToString()).run(None, {})[0]
    expected = [0, 0, 2, 5 if "high" in bounds else 9]
    assert infer(ir.from_proto(graph)).values["y"].tolist() == kernel.tolist() == expected


def test_bounds_that_are_attributes_are_kept() -> None:
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 6]> g () => (float[3] y)
        <float[3] a = {-3, 1, 9}> { y = Clip <min = 0.0, max = 5.0> (a) }"""
    )
    assert infer(ir.from_proto(graph)).values["y"].tolist() == [0, 1, 5]


def test_named_dimensions_are_fixed() -> None:
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15]> g (float[batch, 6] x, float[6, 2] w) => (float[batch, 2] y)
        { y = MatMul(x, w) }"""
    )
    model = ir.from_proto(graph)
    assert infer(model, {"batch": 5}).types["y"].shape == (5, 2)
    with pytest.raises(InputError, match=r"Dimension 0 of the graph input 'x' is not fixed.*--dim batch=8"):
        infer(model)
    with pytest.raises(InputError, match="no dimension named 'time'; its named dimensions are batch"):
        infer(model, {"time": 5})
    with pytest.raises(InputError, match="cannot be 0"):
        infer(model, {"batch": 0})


def refuse(text: str) -> str:
    """Return the sentence with which a model is refused."""
    model = ir.from_proto(onnx.parser.parse_model(text))
    with pytest.raises(InputError) as refusal:
        infer(model)
    return str(refusal.value)


HEAD = '<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>'


def test_unknown_sizes_and_operators_are_named() -> None:
    sentence = refuse(HEAD + "g (float[4] x) => (int64[1, n] y) { [find] y = NonZero(x) }")
    assert sentence.startswith("The size of tensor 'y', made by node 'find' (operator NonZero), is not known")
    normalized = '<ir_version: 8, opset_import: ["" : 15, "ai.onnx.ml" : 3]> g (float[4, 3] x) => (float[4, n] y) {'
    sentence = refuse(normalized + " z = ai.onnx.ml.Normalizer (x) y = Relu (z) }")
    assert sentence.endswith("with the sizes of what its operators make, or without such nodes.")
    sentence = refuse(HEAD + "g (float[4] x) => (float[] y) { y = Frobnicate(x) }")
    assert "'y' (operator Frobnicate) is unknown in ONNX opset 15" in sentence
    assert sentence.endswith(
        "ONNX has none of that name: write it by others where the network is defined, and export that."
    )
    assert refuse(HEAD + "g (float[4] x) => (float[] y) { y = Swish(x) }").endswith("export it with a newer opset.")
    assert "imports no version of domain 'elsewhere'" in refuse(
        HEAD + "g (float[4] x) => (float[4] y) { y = elsewhere.Op(x) }"
    )
    assert "is unknown in domain 'com.microsoft'" in refuse(
        HEAD + "g (float[4] x) => (float[] y) { z = com.microsoft.Frobnicate(x) y = Relu(z) }"
    )
    assert "its inputs of shapes" in refuse(
        HEAD + "g (float[4, 5] x) => (float[] y) { y = com.microsoft.FusedMatMul(x, x) }"
    )
    assert "must be a constant" in refuse(
        HEAD + "g (int64[2] s, int64[3] i, float[3, 4] x) => (float[] y) { y = com.microsoft.GatherGrad(s, i, x) }"
    )
    assert "only the model's value_info can tell" in refuse(
        HEAD + "g (float[1, 1, 4, 4] x) => (float[] y) { y = AveragePoolGrad<kernel_shape = [2, 2]>(x) }"
    )
    assert "is a sequence" in refuse(HEAD + "g (float[4] x) => (float[4] y) { z = SequenceConstruct(x) y = Relu(x) }")
    assert "made by nothing" in refuse(HEAD + "g (float[4] x) => (float[4] y) { y = Add(x, ghost) }")
    assert "made only later" in refuse(HEAD + "g (float[4] x) => (float[4] y) { y = Add(x, z) z = Relu(x) }")


def test_an_operator_of_the_runtime_that_the_file_describes_is_taken_at_its_word() -> None:
    text = HEAD + "g (float[4] x) => (float[4] y) <float[4] z> { z = com.microsoft.Frobnicate(x) y = Relu(z) }"
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert infer(model).types["z"].shape == (4,)


def test_a_pooling_gradient_finds_the_pooling_that_made_its_indices() -> None:
    text = """g (float[1, 2, 5, 5] x, float[1, 2, 2, 2] d) => (float[] g) {
        y, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
        g = MaxPoolGrad<kernel_shape = [2, 2], strides = [2, 2]>(d, i) }"""
    assert infer(ir.from_proto(onnx.parser.parse_model(HEAD + text))).types["g"].shape == (1, 2, 5, 5)


def test_packed_elements_are_counted_in_whole_bytes() -> None:
    from poet_onnx.graph.shapes import TensorType

    assert TensorType(ir.DataType.INT4, (3,)).size_bytes == 2
    assert TensorType(ir.DataType.FLOAT, ()).size_bytes == 4
    assert TensorType(ir.DataType.BFLOAT16, (0, 7)).size_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_fused_matmul_in_random_shapes(seed: int) -> None:
    """Ranks 2 to 4, transposed in every way that the operands allow."""
    generator = np.random.default_rng(seed)
    rank = int(generator.integers(2, 5))
    batch = tuple(int(n) for n in generator.integers(1, 4, rank - 2))
    rows, inner, columns = (int(n) for n in generator.integers(1, 6, 3))
    flags = {"transA": int(generator.integers(2)), "transB": int(generator.integers(2))}
    flags |= {
        "transBatchA": int(rank > 2 and generator.integers(2)),
        "transBatchB": int(rank > 2 and generator.integers(2)),
    }
    shapes = []
    for side, (first, second) in (("A", (rows, inner)), ("B", (inner, columns))):
        pair = (second, first) if flags[f"trans{side}"] else (first, second)
        shape = (*batch, *pair)
        if flags[f"transBatch{side}"]:
            shape = (pair[0], *batch, pair[1])
        shapes.append(floats(*shape))
    test_operators_have_the_shapes_of_the_kernels(microsoft("FusedMatMul", *shapes, **flags))


def test_a_tensor_without_an_element_type_is_refused() -> None:
    with pytest.raises(InputError, match="has no element type"):
        check_size("Tensor 'x'", TensorType(ir.DataType.UNDEFINED, (2,)))


FIXED = {
    "(float[4,9] x) => (y) <int64[2] s = {2, 7}> { y = Reshape(x, s) }": r"36 elements, .* target \[2, 7\] has 14;",
    "(float[4,9] x) => (y) <int64[2] s = {8, -1}> { y = Reshape(x, s) }": r"target \[8, -1\] has a multiple of 8;",
    "(float[9] x) => (y) <int64[2] s = {9, 0}> { y = Reshape(x, s) }": r"target \[9, 0\] keeps a size that \[9\]",
    "(float[4,9] x) => (y) <int64[2] s = {2, 9}> { y = Expand(x, s) }": r"size 4 in \[4, 9\], and its target 2 in",
    "(float[64,9] x) => (y) <int64[2] s = {2, 64}> { y = Gather(x, s) }": "index 64 is outside the size 64 of",
    "(float[5,9] x) => (y) <int64[1] s = {-10}> { y = Gather<axis: int = 1>(x, s) }": "index -10 is outside the size",
    "(float[9] x) => (y) <int64[1] s = {9}> { y = GatherElements(x, s) }": "index 9 is outside the size 9",
}


@pytest.mark.parametrize("text", FIXED)
def test_constants_of_another_size_are_refused_with_both_numbers(text: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 15]> g {text}')
    model.graph.node[0].name = "odd"
    with pytest.raises(InputError, match=rf"'odd' .*{FIXED[text]}.* give another size"):
        infer(ir.from_proto(model))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("(float[4,9] x) => (y) <int64[3] s = {0, 3, -1}> { y = Reshape(x, s) }", (4, 3, 3)),
        ("(float[4,0] x) => (y) <int64[2] s = {0, 0}> { y = Reshape(x, s) }", (4, 0)),
        ("(float[4,0] x) => (y) <int64[2] s = {0, 7}> { y = Reshape<allowzero: int = 1>(x, s) }", (0, 7)),
        ("(float[4,0] x) => (y) <int64[2] s = {3, -1}> { y = Reshape(x, s) }", (3, 0)),
        ("(float x) => (y) <int64[2] s = {1, 1}> { y = Reshape(x, s) }", (1, 1)),
        ("(float[4,9] x) => (y) <int64[3] s = {3, 1, 9}> { y = Expand(x, s) }", (3, 4, 9)),
        ("(float[4,1] x) => (y) <int64[2] s = {4, 0}> { y = Expand(x, s) }", (4, 0)),
        ("(float[64,9] x) => (y) <int64[2] s = {-64, 63}> { y = Gather(x, s) }", (2, 9)),
        ("(float[0,9] x) => (y) <int64[0] s = {}> { y = Gather(x, s) }", (0, 9)),
    ],
)
def test_constants_that_fit_are_taken(text: str, shape: tuple[int, ...]) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 15]> g {text}')
    assert infer(ir.from_proto(model)).types["y"].shape == shape
