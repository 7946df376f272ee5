"""Weights of a few bits become plain ONNX that computes what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper
from quantized_models import MS, Weight, bias_of, model_of, product_model

from poet_onnx.errors import InputError
from poet_onnx.files.external_data import FileTensor
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.normalize import Normalization
from poet_onnx.passes.quantized.unfuse import UnfuseQuantized, is_quantized
from poet_onnx.passes.raise_opset import RaiseOpset
from poet_onnx.runtime import session_options

Array = np.ndarray[Any, Any]
IDS = np.array([[3, 0], [6, -1]])
WEIGHTS = [
    Weight(12, 64),
    Weight(12, 64, has_zeros=True),
    Weight(7, 96, size=16, has_zeros=True),
    Weight(12, 80, has_zeros=True),
    Weight(5, 33, has_zeros=True),
    Weight(9, 300, size=256),
    Weight(12, 64, bits=8),
    Weight(12, 80, bits=8, has_zeros=True),
]
"""Whole blocks and such that end early; an odd count of zeros, and of columns; the least and the largest block."""


def unfused(proto: onnx.ModelProto | Path) -> ir.Model:
    model = as_model(proto)
    if is_quantized(model.graph):
        Normalization(RaiseOpset())(model)
    Normalization(UnfuseQuantized())(model)
    assert not is_quantized(model.graph)
    return model


def run(model: ir.Model, feeds: Mapping[str, Array]) -> Array:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), session_options())
    return np.asarray(session.run(["y"], dict(feeds))[0])


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_one_with_the_numbers_of_the_weight(weight: Weight, bias: bool) -> None:
    model = unfused(product_model(weight, bias=bias))
    assert operators(model) == ["DequantizeLinear", "Transpose", "MatMul", *["Add"] * bias]
    assert model.graph.initializers["w"].shape == (weight.rows, weight.columns)
    x = np.random.default_rng(4).standard_normal((2, 5, weight.columns)).astype(np.float32)
    expected = x.astype(np.float64) @ weight.floats.T + (bias_of(weight) if bias else 0)
    np.testing.assert_allclose(run(model, {"x": x}), expected, rtol=1e-5, atol=1e-5)


TABLES = [
    *((weight, True) for weight in WEIGHTS if weight.bits == 8 or weight.columns % 2 == 0),
    *((weight, False) for weight in WEIGHTS if weight.bits == 4),
]
"""Codes of 8 bits are bytes; two of 4 bits are where a row has whole bytes of them."""


@pytest.mark.parametrize(("weight", "in_bytes"), TABLES, ids=str)
def test_rows_of_a_table_are_the_numbers_themselves(weight: Weight, in_bytes: bool) -> None:
    node, initializers = weight.gather("ids", "y", "w", in_bytes=in_bytes)
    shape = (2, 2, weight.columns)
    model = unfused(model_of([node], initializers, ("ids", TensorProto.INT64, (2, 2)), ("y", shape), 21))
    assert operators(model) == ["DequantizeLinear", "Gather"]
    ids = IDS % weight.rows - weight.rows * (IDS < 0)
    assert run(model, {"ids": ids}).tobytes() == weight.floats[ids].tobytes()


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_blocks_run_along_the_rows_however_the_matrix_lay(weight: Weight, turned: bool, signed: bool) -> None:
    node, initializers = weight.dequantized("d", "w", turned=turned, signed=signed)
    product = helper.make_node("Gemm", ["x", "d"], ["y"], transB=int(not turned))
    sizes = (3, weight.columns), (3, weight.rows)
    model = unfused(model_of([node, product], initializers, ("x", TensorProto.FLOAT, sizes[0]), ("y", sizes[1]), 21))
    found = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    assert (found.attributes["axis"].value, found.inputs[0] and found.inputs[0].shape) == (
        1,
        (weight.rows, weight.columns),
    )
    x = np.random.default_rng(4).standard_normal(sizes[0]).astype(np.float32)
    np.testing.assert_allclose(run(model, {"x": x}), x.astype(np.float64) @ weight.floats.T, rtol=1e-5, atol=1e-5)


def tied(head: Weight) -> onnx.ModelProto:
    table = Weight(40, 64, has_zeros=True)
    nodes, initializers = [], []
    for node, own in (table.gather("ids", "h", "t"), head.matmul_nbits("h", "y", "w")):
        nodes.append(node)
        initializers += own
    return model_of(nodes, initializers, ("ids", TensorProto.INT64, (2, 3)), ("y", (2, 3, 40)))


def test_a_table_that_is_also_the_head_is_there_once() -> None:
    """Each of its readers has floats of its own."""
    model = unfused(tied(Weight(40, 64, has_zeros=True)))
    floats = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    assert [tuple(node.inputs) for node in floats] == [tuple(floats[0].inputs)] * 2
    assert set(model.graph.initializers) == {"t", "t/scales", "t/zeros"}
    other = unfused(tied(Weight(40, 64)))
    assert {"t", "w"} < set(other.graph.initializers)


def test_weights_in_a_file_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(product_model(Weight(12, 64)), path, save_as_external_data=True, size_threshold=0)
    tensor = unfused(path).graph.initializers["w"].const_value
    assert isinstance(tensor, FileTensor)
    assert tensor.dtype == ir.DataType.UINT4
    np.testing.assert_array_equal(tensor.numpy().astype(np.uint8), Weight(12, 64).codes)


def test_the_name_of_the_float_weight_is_taken_where_it_is_free() -> None:
    node, initializers = Weight(12, 64).matmul_nbits("x", "h", "w")
    other = helper.make_node("MatMul", ["h", "w"], ["y"])
    initializers.append(onnx.numpy_helper.from_array(np.eye(12, dtype=np.float32), "w"))
    model = unfused(model_of([node, other], initializers, ("x", TensorProto.FLOAT, (2, 64)), ("y", (2, 12))))
    assert {"w", "w_Q4"} < set(model.graph.initializers)
    assert next(node.name for node in model.graph if node.op_type == "MatMul") == "w_node"
    np.testing.assert_allclose(run(model, {"x": np.ones((2, 64), np.float32)})[0], Weight(12, 64).floats.sum(1), 1e-4)


def changed(**attributes: int) -> onnx.ModelProto:
    model = product_model(Weight(12, 64))
    (node,) = model.graph.node
    kept = [attribute for attribute in node.attribute if attribute.name not in attributes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in attributes.items())])
    return model


def with_columns_reordered() -> onnx.ModelProto:
    model = product_model(Weight(12, 64, has_zeros=True))
    model.graph.node[0].input.append("order")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(64, np.int32), "order"))
    return model


def with_floats_as_zeros() -> onnx.ModelProto:
    model = product_model(Weight(12, 64, has_zeros=True))
    zeros = next(each for each in model.graph.initializer if each.name == "w_zero_points")
    zeros.CopyFrom(onnx.numpy_helper.from_array(np.zeros(24, np.float32), "w_zero_points"))
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (changed(bits=2), "it has 2 bits"),
        (changed(block_size=8), "its blocks have 8 numbers"),
        (changed(block_size=48), "its blocks have 48 numbers"),
        (changed(N=13), "are no matrix of 13x64"),
        (with_columns_reordered(), "its columns are reordered"),
        (changed(weight_prepacked=1), "its codes lie as a GPU reads them"),
        (with_floats_as_zeros(), "its zero points are not integers"),
    ],
)
def test_what_is_not_known_is_refused_by_name(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(InputError, match=rf"'w_node_Q4' \(MatMulNBits\) is quantized in a way .*{message}"):
        unfused(model)


def test_operators_that_opset_21_changed_are_refused_and_others_written_anew() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "{MS}" : 1]>
        g (float[2, 6] x) => (float y) {{
            m = ReduceMean <axes = [1], keepdims = 0> (x)
            a, b = Split <axis = 0> (m)
            s = Sub(a, b)
            y = ReduceMax <keepdims = 0> (s)
        }}"""
    model = as_model(onnx.parser.parse_model(text))
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    before = run(model, {"x": x})
    for number, node in enumerate(model.graph):
        node.name = f"n{number}"
    RaiseOpset()(model)
    assert (model.opset_imports[""], model.ir_version) == (21, 10)
    assert run(model, {"x": x}).tobytes() == before.tobytes()
    pool = "g (float[1, 2, 4, 4] x) => (float[1, 2, 3, 3] y) { y = AveragePool <kernel_shape = [2, 2]> (x) }"
    old = as_model(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {pool}'))
    old.graph[0].name = "pool"
    with pytest.raises(InputError, match=r"AveragePool in 'pool'.* means something else than in opset 17"):
        Normalization(RaiseOpset())(old)
