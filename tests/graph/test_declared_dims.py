"""Dimensions that an exporter left open are named, those without a name by their input and place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import poet_onnx
from poet_onnx.errors import InputError

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[?, 3] x, float[n, 3] z) => (float[m, k] y) { %s }'


def open_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT % "a = Add (x, z) y = MatMul (a, w)")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param in ("", "?")
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
    return model


def test_one_without_a_name_has_that_of_its_input_and_place() -> None:
    with pytest.raises(InputError, match=r"give the size of 'x\.0', such as --dim x\.0=8"):
        poet_onnx.train_graph(open_model(), loss="mse", dims={"n": 4})
    with pytest.raises(InputError, match=r"no dimension named 'N'; its named dimensions are n, x\.0"):
        poet_onnx.train_graph(open_model(), loss="mse", dims={"N": 4})
    made = poet_onnx.train_graph(open_model(), loss="mse", dims={"x.0": 4, "n": 4})
    shapes = {value.name: value.shape for value in made.training.graph.inputs}
    assert [list(shapes[name] or ()) for name in ("x", "z", "target")] == [[4, 3], [4, 3], [4, 2]]
