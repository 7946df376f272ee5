"""Gradients of gathers: the runtime's bits of one thread, with any number of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import poet_onnx
from poet_onnx.passes.gathers import AddGatheredRows, SumGathersInOrder
from poet_onnx.runtime import session_options
from poet_onnx.training.prepared import Wishes, open_model

MICROSOFT = "com.microsoft"
HEADER = '<ir_version: 8, opset_import: ["" : 15, "poet" : 1]>'
TABLE = (60, 5, 70)
COUNT = 3000


def gather_gradient(axis: int, *, shape: tuple[int, ...] | None = TABLE) -> ir.Model:
    """Return a model of a GatherGrad; without a shape none is declared."""
    taken = (*TABLE[: axis % 3], 3, COUNT // 3, *TABLE[axis % 3 + 1 :])
    graph = helper.make_graph(
        [helper.make_node("GatherGrad", ["shape", "indices", "dy"], ["dx"], "gather", domain=MICROSOFT, axis=axis)],
        "gathers",
        [
            helper.make_tensor_value_info("indices", TensorProto.INT64, [3, COUNT // 3]),
            helper.make_tensor_value_info("dy", TensorProto.FLOAT, taken),
        ],
        [helper.make_tensor_value_info("dx", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.array(TABLE), "shape")],
    )
    imports = [helper.make_opsetid("", 15), helper.make_opsetid(MICROSOFT, 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def made(model: ir.Model, axis: int, threads: int) -> bytes:
    """Return the bits of a model's gradient."""
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), session_options(threads=threads))
    random = np.random.default_rng(9)
    feeds = {
        "indices": random.integers(0, TABLE[axis], (3, COUNT // 3)),
        "dy": random.standard_normal(session.get_inputs()[1].shape, dtype=np.float32),
    }
    found: np.ndarray = session.run(None, feeds)[0]
    assert found.shape == TABLE
    return found.tobytes()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_bits_are_the_runtimes_of_one_thread(axis: int) -> None:
    expected = made(gather_gradient(axis), axis, 1)
    model = gather_gradient(axis)
    SumGathersInOrder()(model)
    assert [node.op_type for node in model.graph] == ["GatherGradient"]
    assert [made(model, axis, threads) for threads in (1, 2, 4)] == [expected] * 3


def test_a_gradient_of_unknown_shape_stays_as_it_is() -> None:
    model = gather_gradient(0, shape=None)
    assert not SumGathersInOrder()(model).modified
    assert [node.op_type for node in model.graph] == ["GatherGrad"]


@pytest.mark.parametrize("threads", [1, 2])
def test_graphs_for_several_threads_have_repeatable_sums(model_path: Callable[..., Path], threads: int) -> None:
    path, kept = model_path("transformer"), threads == 1
    result = poet_onnx.rewrite(path, device="a72", target="training", activation_budget="100%", threads=threads)
    wishes = Wishes(None, None, False, False, "auto", None, threads)
    loaded = open_model(path, wishes, lambda: None).model
    assert isinstance(loaded, bytes)
    for model in (result.model, ir.from_proto(onnx.load_model_from_string(loaded))):
        operators = {node.op_type for node in model.graph}
        assert ("GatherGrad" in operators) == kept
        assert bool(operators & {"GatherGradient", "AccumulateRows"}) != kept
    assert poet_onnx.verify(path, result.model, feeds=1).passed


def with_sum(nodes: str, *, axis: int = 0) -> ir.Model:
    """Return a model in whose nodes GATHERED stands for the gradient of a gather from [6, 6]."""
    text = nodes.replace("GATHERED", f"g = poet.GatherGradient <shape = [6, 6], axis = {axis}> (rows, dy)")
    inputs = (
        "float[6, 6] x, int64[4] rows, float[4, 6] dy" if axis == 0 else "float[6, 6] x, int64[4] rows, float[6, 4] dy"
    )
    made = "float[6, 6] g, float[6, 6] h, float[6, 6] z"
    return ir.from_proto(onnx.parser.parse_model(f"{HEADER} g ({inputs}) => (float[6, 6] y) <{made}> {{ {text} }}"))


def result_of(model: ir.Model) -> bytes:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), session_options())
    random = np.random.default_rng(4)
    x, dy = random.standard_normal((6, 6), np.float32), random.standard_normal((4, 6), np.float32)
    x[2] = -0.0
    found: np.ndarray = session.run(None, {"x": x, "rows": np.array([5, 1, -1, 5]), "dy": dy})[0]
    return found.tobytes()


@pytest.mark.parametrize("total", ["Sum (x, g)", "Sum (g, x)", "Add (x, g)", "Add (g, x)"])
def test_rows_are_added_to_another_gradient_of_the_table(total: str) -> None:
    model = with_sum(f"GATHERED y = {total}")
    expected = result_of(model)
    assert AddGatheredRows()(model).modified
    assert [node.op_type for node in model.graph] == ["AddRows"]
    assert result_of(model) == expected


def test_gradients_of_two_gathers_need_one_table() -> None:
    second = "h = poet.GatherGradient <shape = [6, 6], axis = 0> (rows, dy)"
    model = with_sum(f"GATHERED {second} y = Sum (g, h)")
    expected = result_of(model)
    assert AddGatheredRows()(model).modified
    assert sorted(node.op_type for node in model.graph) == ["AddRows", "GatherGradient"]
    assert result_of(model) == expected


@pytest.mark.parametrize(
    ("nodes", "axis"),
    [
        ("GATHERED y = Add (x, g)", 1),
        ("GATHERED y = Mul (x, g)", 0),
        ("GATHERED y = Sum (x, x, g)", 0),
        ("GATHERED z = Add (x, g) y = Mul (z, g)", 0),
    ],
)
def test_other_sums_stay(nodes: str, axis: int) -> None:
    assert not AddGatheredRows()(with_sum(nodes, axis=axis)).modified
