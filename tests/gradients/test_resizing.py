"""The gradient of a resize is what ONNX Runtime's own resize, which is linear, makes of its transpose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from forward_models import random, step

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.runtime import count_arena

SIZE = 8
WAYS = {
    "aligned, a scale that does not divide": ("linear", "align_corners", "", [1.7, 1.3]),
    "aligned cubic": ("cubic", "align_corners", "", [0.6, 0.45]),
    "aligned, doubled": ("linear", "align_corners", "", [2.0, 2.0]),
    "nearest at a tie": ("nearest", "half_pixel", "", [1.7, 1.3]),
    "nearest below": ("nearest", "asymmetric", ', nearest_mode = "floor"', [0.6, 0.45]),
    "nearest above": ("nearest", "align_corners", ', nearest_mode = "ceil"', [0.6, 1.0]),
    "symmetric": ("linear", "half_pixel_symmetric", "", [1.7, 0.6]),
    "to one": ("cubic", "pytorch_half_pixel", "", [0.125, 0.45]),
}


def network(way: str) -> onnx.ModelProto:
    mode, coordinates, more, scales = WAYS[way]
    attributes = f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}"{more}'
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 19]> net (float[1,1,{SIZE},{SIZE}] x) => (float[a,b,c,d] y)'
        f" {{ h = Mul (x, weight) y = Resize <{attributes}> (h, , scales) }}"
    )
    arrays = {"weight": np.ones((1, 1, SIZE, SIZE), np.float32), "scales": np.array([1, 1, *scales], np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_of_what_onnxruntime_computes(way: str) -> None:
    model, x = network(way), random(1, 1, SIZE, SIZE)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    units = np.eye(SIZE * SIZE, dtype=np.float32).reshape(-1, 1, 1, SIZE, SIZE)
    rows = np.array([np.asarray(session.run(None, {"x": unit})[0]).ravel() for unit in units], np.float64)
    y = np.asarray(session.run(None, {"x": x})[0])
    made = poet_onnx.train_graph(model, loss="mse", train="weight")
    loss, found = step(made, x=x, target=np.zeros_like(y))
    assert loss == pytest.approx(float(np.mean(np.square(y))), rel=1e-5)
    expected = 2 / y.size * (rows @ y.ravel().astype(np.float64)).reshape(x.shape) * x
    np.testing.assert_allclose(found["weight"], expected, atol=2e-6 * np.abs(expected).max())


def rounded(opset: int, scales: list[float], shape: str) -> onnx.ModelProto:
    """Return a model that resizes 5 rows and 10 columns."""
    given = "scales" if opset == 10 else ", scales"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> net (float[1,1,5,10] x) => (float[1,1,{shape}] y)'
        f' {{ h = Mul (x, weight) y = Resize <mode = "linear"> (h, {given}) }}'
    )
    arrays = {"weight": np.ones((1, 1, 5, 10), np.float32), "scales": np.array([1, 1, *scales], np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


@pytest.mark.parametrize("opset", [10, 13, 19])
def test_a_size_is_rounded_down_after_a_product_in_single_precision(opset: int, tmp_path: Path) -> None:
    """2.6 is a little less: its product with 5 is 13, where ONNX infers 12."""
    model, x = rounded(opset, [2.6, 1.3], "13,13"), random(1, 1, 5, 10)
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    path = tmp_path / "net.onnx"
    poet_onnx.rewrite(model, loss="mse", device="host", target="stock", optimizer="sgd", train=["weight"]).save(path)
    session = poet_onnx.TrainingSession(path, path.with_suffix(".safetensors"), eval_model=tmp_path / "net.eval.onnx")
    with count_arena() as counter:
        loss = session.step(x, np.zeros_like(y))
        assert counter.statistics.unplanned == 0 < counter.statistics.planned
    assert loss == pytest.approx(float(np.mean(np.square(y))), rel=1e-5)


def test_a_scale_that_is_no_quotient_of_sizes_is_refused_where_the_sizes_are_in_doubt() -> None:
    with pytest.raises(InputError, match=r"makes \[1, 1, 13, 17\] of \[1, 1, 5, 10\] .* export it with sizes"):
        poet_onnx.train_graph(rounded(19, [2.6, 1.75], "13,17"), loss="mse", train="weight")
