"""Operators in double precision: what windows hold, as ONNX's reference and torch have it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from poet_onnx.verification.double_operators import OPERATORS

POOLS = [
    {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 2], "auto_pad": "VALID"},
]


@pytest.mark.parametrize("attributes", POOLS)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "Conv", "grouped", "dilated"])
def test_windows_are_those_of_the_reference(operator: str, attributes: dict[str, object]) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 4, 7, 8))
    given, arrays, kind = dict(attributes), [x], operator
    if operator not in ("MaxPool", "AveragePool"):
        kind, groups = "Conv", 2 if operator == "grouped" else 1
        given |= {"group": groups, "dilations": [2, 1] if operator == "dilated" and "pads" in given else [1, 1]}
        arrays += [generator.standard_normal((6, 4 // groups, *given["kernel_shape"])), generator.standard_normal(6)]  # type: ignore[misc]
    node = helper.make_node(kind, [f"x{i}" for i in range(len(arrays))], ["y"], **given)
    double = onnx.TensorProto.DOUBLE
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(f"x{i}", double, array.shape) for i, array in enumerate(arrays)],
        [helper.make_tensor_value_info("y", double, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    expected = ReferenceEvaluator(model).run(None, {f"x{i}": array for i, array in enumerate(arrays)})[0]
    np.testing.assert_allclose(OPERATORS["", kind](arrays, given)[0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("image", "size", "stride", "padding"), [(8, 3, 2, 0), (9, 4, 3, 1), (5, 3, 3, 1), (2, 1, 2, 0)]
)
def test_windows_whose_number_is_rounded_up_are_those_of_torch(
    image: int, size: int, stride: int, padding: int
) -> None:
    """Of the last two the window that would begin behind the image is left out."""
    x = np.random.default_rng(0).standard_normal((2, 3, image, image))
    given = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [padding] * 4, "ceil_mode": 1}
    functional, window = torch.nn.functional, (torch.from_numpy(x), size, stride, padding)
    right = functional.max_pool2d(*window, ceil_mode=True)
    np.testing.assert_array_equal(OPERATORS["", "MaxPool"]([x], given)[0], right)
    for include in (0, 1):
        right = functional.avg_pool2d(*window, ceil_mode=True, count_include_pad=bool(include))
        (found,) = OPERATORS["", "AveragePool"]([x], {**given, "count_include_pad": include})
        np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)
