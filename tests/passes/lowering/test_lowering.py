"""Every lowered operator computes what ONNX Runtime's training kernels compute, on both runtimes."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from lowering_case import Case, node
from lowering_cases import CASES
from lowering_results import expected, payload
from lowering_runs import AFTER, Arrays, run_on_stock, run_step
from stock_environment import NEEDS_STOCK

from poet_onnx.errors import InputError
from poet_onnx.graph.operators.windows import strips
from poet_onnx.passes.lowering import LowerTraining, prepare
from poet_onnx.passes.normalize import WriteShapes, normalize

LARGEST_ERROR = 1e-6
"""Largest difference of an element, relative to the largest element of its tensor."""

CANCELLING = {"FastGeluGrad": 3e-6, "BiasFastGeluGrad_dX": 3e-6}
"""The same for operators that lose digits in ONNX Runtime's kernels, too: 1 + tanh(x) for negative x."""


@cache
def lowered(case: Case, *, kernels: bool = True) -> ir.Model:
    """Return the model of a case in the stock runtime's operators."""
    model = case.model()
    normalize()(model)
    LowerTraining(kernels=kernels)(model)
    WriteShapes()(model)
    return model


def kernels_in(model: ir.Model) -> set[str]:
    """Return the operators of a model for which the operator library has a kernel."""
    return {node.op_type for node in model.graph if node.domain == "poet"}


def error(case: Case, found: Arrays, *, state: bool = True) -> float:
    """Return the largest relative error of a case's tensors."""
    worst = 0.0
    for name, right in expected(case).items():
        if name.startswith(AFTER) and not state:
            continue
        assert right.shape == found[name].shape, name
        difference = np.abs(right.astype(np.float64) - found[name]).max(initial=0.0)
        worst = max(worst, float(difference / max(np.abs(right).max(initial=0.0), np.finfo(np.float32).tiny)))
    return worst


def allowed(case: Case) -> float:
    return CANCELLING.get(case.name.split("-")[0], LARGEST_ERROR)


def test_there_are_enough_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 150


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operators_agree_on_one_runtime(case: Case) -> None:
    """With the operator library's kernels, and with plain nodes in their place where it has one for the case."""
    model = lowered(case)
    assert error(case, run_step(payload(model), case.feeds)) <= allowed(case)
    if not kernels_in(model):
        return
    model = lowered(case, kernels=False)
    assert {node.domain for node in model.graph} <= {"", "com.microsoft"}
    found = run_step(payload(model), case.feeds)
    if "done" in found:  # the sum is a new tensor
        right = expected(case)[f"{AFTER}buffer"]
        assert np.abs(found["done"] - right).max() <= LARGEST_ERROR * np.abs(right).max()
        return
    assert error(case, found, state=False) <= allowed(case)


@NEEDS_STOCK
def test_operators_agree_across_runtimes(tmp_path: Path) -> None:
    results = run_on_stock(tmp_path, ((str(i), payload(lowered(case)), case.feeds) for i, case in enumerate(CASES)))
    errors = {case.name: error(case, results[str(i)]) for i, case in enumerate(CASES)}
    assert [(case.name, errors[case.name]) for case in CASES if errors[case.name] > allowed(case)] == []


def test_the_library_has_kernels_for_these() -> None:
    found = {operator for case in CASES for operator in kernels_in(lowered(case))}
    accumulating = {"Accumulate", "AccumulateRows"}
    normalizing = {"BatchNormalize", "BatchNormalizeGradient", "LayerNormalizeGradient"}
    assert found == accumulating | normalizing | {
        "ActivationGradient",
        "ConvDataGradient",
        "ConvWeightGradient",
        "CrossEntropyGradient",
        "DepthwiseDataGradient",
        "DepthwiseWeightGradient",
        "Exponentiate",
        "GatherGradient",
        "MaxPoolGradient",
        "MaxPoolTaps",
        "RectifierGradient",
        "SoftmaxGradient",
    }


def test_half_of_a_gradient_is_not_computed_for_nobody() -> None:
    (data,) = [case for case in CASES if case.name == "ConvGrad-1x4to6-9x9-3x3-pads[1,1,1,1]-dx"]
    (weight,) = [case for case in CASES if case.name == "ConvGrad-1x4to6-9x9-3x3-pads[1,1,1,1]-dw"]
    assert [node.op_type for node in lowered(data).graph] == ["ConvDataGradient"]
    assert [node.op_type for node in lowered(data, kernels=False).graph] == ["ConvTranspose"]
    assert "ConvDataGradient" not in [node.op_type for node in lowered(weight).graph]


def test_operators_without_an_expansion_are_named_all_at_once() -> None:
    nodes = [
        onnx.helper.make_node("LSTMGrad", ["x"], ["a"], "first", domain="com.microsoft"),
        onnx.helper.make_node("Neg", ["a"], ["n"], "fine"),
        *(onnx.helper.make_node("Fancy", ["n"], [f"b{i}"], f"fancy_{i}", domain="com.microsoft") for i in range(5)),
    ]
    names = ["a", *(f"b{i}" for i in range(5))]
    infos = [onnx.helper.make_tensor_value_info(name, 1, [3]) for name in ("x", *names)]
    graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:])
    imports = [onnx.helper.make_opsetid("", 15), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports, ir_version=9))
    with pytest.raises(InputError, match=r"Fancy in 'fancy_0', 'fancy_1', 'fancy_2' and 2 more; LSTMGrad in 'first'"):
        prepare(target="stock")(model)


def test_half_precision_is_refused_where_it_would_be_updated_in_place() -> None:
    nodes = [onnx.helper.make_node("InPlaceAccumulatorV2", ["b", "g", "o"], ["d"], "sum", domain="com.microsoft")]
    half, flag = onnx.TensorProto.FLOAT16, onnx.TensorProto.BOOL
    infos = [onnx.helper.make_tensor_value_info(name, half, [3]) for name in ("b", "g")]
    infos += [onnx.helper.make_tensor_value_info(name, flag, [1]) for name in ("o", "d")]
    graph = onnx.helper.make_graph(nodes, "g", infos[:3], infos[3:])
    imports = [onnx.helper.make_opsetid("", 15), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports, ir_version=9))
    with pytest.raises(InputError, match=r"float16 cannot be updated in place .* InPlaceAccumulatorV2 in 'sum'"):
        prepare(target="stock")(model)


def test_old_operators_are_refused() -> None:
    model = CASES[0].model()
    model.opset_imports[""] = 12
    with pytest.raises(InputError, match=r"of ONNX opset 12: export it with opset 13 or later"):
        prepare(target="stock")(model)


def test_a_model_for_the_training_runtime_stays_as_it_is() -> None:
    model = CASES[0].model()
    prepare(target="training")(model)
    assert [node.op_type for node in model.graph] == ["ConvGrad"]


def test_gradients_of_long_rows_need_little_beside_them() -> None:
    """Of an image that is one pixel high, as lines of sound or of measured currents are."""
    image, filters = (1, 16, 1, 4000), (16, 16, 1, 64)
    feeds = {"dy": np.zeros((1, 16, 1, 3937), np.float32), "x": np.zeros(image, np.float32)}
    feeds["w"] = np.zeros(filters, np.float32)
    made = node("ConvGrad", "dy x w", "dx dw", kernel_shape=filters[2:])
    model = lowered(Case("long rows", (made,), feeds, {"dx": image, "dw": filters}))
    windows = [
        max(strips(feeds["dy"].shape, *(each.attributes.get_int(name) for name in ("images", "rows"))))
        for each in model.graph
    ]
    assert kernels_in(model) == {"ConvDataGradient", "ConvWeightGradient"}
    assert max(windows) * math.prod(filters[1:]) < 6 * math.prod(image)
